// Makes elements, and writes numbers. What was recorded is put in as text only, never as HTML: a
// model may write <script> as well as anything else.

const IN_A_ROW = 16; // members of a strip before it takes another row

/** @typedef {Node | string | number | null | undefined | false | any[]} Child */

/**
 * Makes an element: el("a", {href: "#/", class: "dim"}, "text", element). A property that is a
 * function is a listener, one that is null, undefined or false is left out, true has no value.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...kept(children));
  return element;
}

/** Returns what is to be appended. @param {Child[]} children @returns {(Node | string)[]} */
function kept(children) {
  return children.flatMap((child) => {
    if (child === null || child === undefined || child === false || child === "") return [];
    if (Array.isArray(child)) return kept(child);
    return [typeof child === "number" ? String(child) : child];
  });
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** Returns the number with so many digits after the point; a dash where there is none.
 * @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

/** Returns the number with three digits that matter. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** @param {number | null | undefined} share */
export function percent(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}\u00a0%`;
}

/** Returns "3 h 20 min", the two largest units. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= /** @type {number} */ (size));
  if (first < 0) return "0 s";
  let rest = whole;
  return units.slice(first, first + 2).flatMap(([name, size]) => {
    const count = Math.floor(rest / /** @type {number} */ (size));
    rest %= /** @type {number} */ (size);
    return count ? [`${count}\u00a0${name}`] : [];
  }).join(" ");
}

/** Returns "2026-03-01 09:30" of a local time. @param {string | null} begun */
export function day(begun) {
  return begun === null ? "–" : begun.slice(0, 16).replace("T", "\u00a0");
}

/** Returns a model's name: the last part of a folder's path. @param {string | null} model */
export function modelName(model) {
  return model === null ? "–" : model.startsWith("/") ? model.replace(/\/+$/, "").split("/").at(-1) ?? "" : model;
}

/** Returns "12 of 60". @param {import("./data.js").Status} status */
export function progress({ step, total_steps }) {
  return total_steps === null ? String(step) : `${step} of ${total_steps}`;
}

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/**
 * Returns the address of a page: link(run, ["step", 12], {mode: "train"}). An empty value is left
 * out of the query.
 * @param {string | null} run
 * @param {(string | number)[]} [path]
 * @param {Record<string, any>} [query]
 */
export function link(run, path = [], query = {}) {
  const parts = (run === null ? [] : [run, ...path]).map((part) => encodeURIComponent(part));
  const used = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const asked = new URLSearchParams(used.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.join("/")}${asked ? `?${asked}` : ""}`;
}

/** Returns a table that can be scrolled sideways, also by keyboard.
 * @param {string} label @param {Child[]} head header cells @param {Child[]} rows */
export function table(label, head, rows) {
  return el("div", { class: "table", role: "region", "aria-label": label, tabindex: 0 },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** @param {string} text @param {boolean} [isNumber] */
export function th(text, isNumber = false) {
  return el("th", { scope: "col", class: isNumber ? "num" : null }, text);
}

/** Returns an episode's reward, or where nobody judged it the mean of its advantages.
 * @param {{reward: number | null, advantage: number | null}} episode */
export function earned({ reward, advantage }) {
  return reward === null && advantage !== null ? `advantage ${number(advantage)}` : `reward ${number(reward)}`;
}

/**
 * Returns the members of a group as a strip: one small link each, filled by its reward between the
 * lowest and the highest of the page, with a sign for what a colour may not say. Without rewards it
 * is filled by its advantage.
 * @param {string} run @param {import("./data.js").Member[]} members @param {[number, number]} range
 */
export function strip(run, members, [low, high]) {
  const made = el("span", { class: "strip" }, members.map((member) => {
    const failed = !/^(ok|truncated)$/.test(member.status);
    const sign = failed ? "!" : member.is_success ? "✓" : "·";
    const words = `member ${member.rollout_index + 1}: ${earned(member)}, ${member.status}`;
    const worth = member.reward ?? member.advantage;
    const cell = el("a", {
      href: link(run, ["episode", member.episode_id]), title: words, "aria-label": words, tabindex: -1,
      class: failed ? "cell failed" : "cell",
    }, sign);
    const share = high > low ? ((worth ?? low) - low) / (high - low) : Number((worth ?? 0) > 0);
    cell.style.backgroundColor = failed ? "" : `rgba(var(--green), ${(0.06 + 0.5 * share).toFixed(3)})`;
    return cell;
  }));
  made.style.minWidth = `${Math.min(members.length, IN_A_ROW) * 1.5}rem`;
  return made;
}

/** @param {import("./data.js").Member[]} members @returns {[number, number]} */
export function rewardRange(members) {
  const rewards = members.map((member) => member.reward ?? member.advantage).filter((reward) => reward !== null);
  return [Math.min(...rewards, Infinity), Math.max(...rewards, -Infinity)];
}

/** Returns what somebody said to the model. Several lines may be a grid or a table, so they have a
 * font in which they line up. @param {string} text */
export function said(text) {
  return el("p", { class: text.includes("\n") ? "said lines" : "said" }, text);
}

/** Returns the heading of a task's page. @param {{query: string, task_id: string}} task */
export function taskHeading({ query, task_id }) {
  return el("h1", { class: query.includes("\n") ? "text lines" : "text" }, query || task_id);
}

/** Returns text that is folded away behind its first words.
 * @param {Child} summary @param {Child[]} content @param {boolean} [open] */
export function fold(summary, content, open = false) {
  return el("details", { open }, el("summary", {}, summary), ...content);
}

/** The folds that are open, by page and name: a page that is made anew has them open again. @type {Set<string>} */
const opened = new Set();

/** Returns a fold whose content is made when it is opened. It stays open when a step is written and
 * the page is made anew.
 * @param {string} name unique on the page @param {Child} summary @param {() => Child} content */
export function lateFold(name, summary, content) {
  const key = `${location.hash.split("?")[0]} ${name}`;
  const made = /** @type {HTMLDetailsElement} */ (el("details", { open: opened.has(key), toggle: () => {
    if (made.open) opened.add(key);
    else opened.delete(key);
    if (made.open && made.childElementCount === 1) made.append(...kept([content()]));
  } }, el("summary", {}, summary)));
  return made;
}
