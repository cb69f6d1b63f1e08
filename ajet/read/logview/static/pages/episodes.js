// The list of episodes: searched, filtered and sorted, with the columns that were chosen.
import { byId, el, fold, link, number, plural, table } from "../dom.js";
import { get } from "../data.js";

/** @typedef {{name: string, text: string, group: string, sort?: string, num?: boolean, show: (row: import("../data.js").Row) => string}} Column */

/** @type {Column[]} */
const COLUMNS = [
  { name: "step", text: "step", group: "which", sort: "step", num: true, show: (row) => String(row.step) },
  { name: "mode", text: "mode", group: "which", show: (row) => row.mode },
  { name: "task", text: "task id", group: "which", sort: "task", show: (row) => row.task_id },
  { name: "status", text: "status", group: "result", sort: "status", show: (row) => row.status },
  { name: "reward", text: "reward", group: "result", sort: "reward", num: true, show: (row) => number(row.reward) },
  { name: "advantage", text: "advantage", group: "result", sort: "advantage", num: true, show: (row) => number(row.advantage) },
  { name: "error", text: "error", group: "result", show: (row) => row.error ?? "" },
  { name: "turns", text: "calls", group: "size", sort: "turns", num: true, show: (row) => String(row.num_turns) },
  { name: "tokens", text: "tokens", group: "size", sort: "tokens", num: true, show: (row) => String(row.num_sampled_tokens) },
  { name: "seconds", text: "seconds", group: "size", sort: "seconds", num: true, show: (row) => number(row.seconds) },
  { name: "staleness", text: "staleness", group: "size", sort: "staleness", num: true, show: (row) => number(row.staleness, 0) },
];
const USUAL = "step,mode,status,reward,advantage,turns,tokens,seconds";
const TYPING_MS = 150; // until what is typed is taken for whole
const RANGES = [
  ["step", "first_step", "last_step"], ["reward", "min_reward", "max_reward"], ["tokens", "min_tokens", "max_tokens"], ["staleness", "min_staleness", ""],
];
const FILTERS = ["text", "mode", "status", "is_success", "tag", "task_id", "tool", "agent", ...RANGES.flatMap(([, from, to]) => [from, to])].filter(Boolean);

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, query, set }) {
  const menus = await get("run", { run });
  const state = { ...query }; // grows with what is typed, while the address follows
  const list = el("div", { id: "list" });
  let asked = 0;
  const load = async (/** @type {number | null} */ after = null) => {
    const mine = ++asked;
    if (needsWords(state)) byId("live").textContent = "searching …";
    const given = Object.fromEntries(FILTERS.map((name) => [name, state[name]]));
    const data = await get("episodes", { run, ...given, sort: state.sort, after })
      .finally(() => { if (mine === asked) byId("live").textContent = ""; });
    if (mine !== asked) return;
    if (after === null) list.replaceChildren(...listed(run, data, state, load, sortBy));
    else append(list, run, data, state, load);
    if (data.not_searched && after === null && list.isConnected) await load(); // the server searches some at a time
  };
  const change = (/** @type {Record<string, any>} */ changes) => {
    Object.assign(state, changes);
    set(Object.fromEntries(Object.keys(state).map((name) => [name, state[name] || null])), true);
    load().catch((error) => list.replaceChildren(el("p", { class: "error" }, error.message)));
  };
  const sortBy = (/** @type {string} */ name) => change({ sort: state.sort === `-${name}` ? name : `-${name}` });
  const form = filters(menus, state, change);
  const loaded = load().catch((error) => list.replaceChildren(el("p", { class: "error" }, error.message)));
  if (!needsWords(state)) await loaded; // the first search may take seconds
  if (query.focus) {
    set({ focus: null }, true);
    setTimeout(() => /** @type {HTMLInputElement} */ (form.elements.namedItem("text")).focus());
  }
  const content = [el("h1", {}, "Episodes"), form, chooseColumns(state, change), list];
  return { title: "episodes", content, crumbs: [[run, link(run)], ["episodes", null]], live: false };
}

/** @param {Record<string, string>} state */
function needsWords(state) {
  return Boolean(state.text || state.tool || state.agent);
}

/** @param {any} menus @param {Record<string, string>} state @param {(changes: any) => void} change @returns {HTMLFormElement} */
function filters(menus, state, change) {
  const text = (/** @type {string} */ name, /** @type {string} */ words, /** @type {any} */ more = {}) =>
    el("input", { name, value: state[name] ?? "", "aria-label": words, placeholder: words, ...more });
  const select = (/** @type {string} */ name, /** @type {string} */ words, /** @type {[string, string][]} */ options) =>
    el("label", {}, `${words} `, el("select", { name }, el("option", { value: "" }, "any"),
      options.map(([value, shown]) => el("option", { value, selected: state[name] === value }, shown))));
  const pairs = (/** @type {string[]} */ values) => values.map((value) => /** @type {[string, string]} */ ([value, value]));
  const ends = { type: "number", step: "any" };
  const form = /** @type {HTMLFormElement} */ (el("form", { id: "filters", autocomplete: "off", role: "search" },
    text("text", "Search in everything said", { type: "search" }),
    select("mode", "mode", pairs(menus.modes)), select("status", "status", pairs(menus.statuses)),
    select("is_success", "success", [["true", "yes"], ["false", "no"]]),
    menus.tags.length ? select("tag", "tag", pairs(menus.tags)) : null,
    RANGES.map(([words, from, to]) => el("span", { class: "range" }, words,
      text(from, `${words} from`, { ...ends, placeholder: "from" }), to ? text(to, `${words} to`, { ...ends, placeholder: "to" }) : null)),
    text("task_id", "task id", { size: 14 }), text("tool", "tool called", { size: 14 }), text("agent", "agent", { size: 10 }),
    el("button", { type: "reset" }, "Clear")));
  const read = () => change(Object.fromEntries(FILTERS.map((name) => {
    const field = form.elements.namedItem(name);
    return [name, field instanceof HTMLInputElement || field instanceof HTMLSelectElement ? field.value : ""];
  })));
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let typing;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(read, event.target instanceof HTMLSelectElement ? 0 : TYPING_MS);
  });
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    for (const field of form.elements) {
      if (field instanceof HTMLInputElement || field instanceof HTMLSelectElement) field.value = "";
    }
    read();
  });
  return form;
}

/** @param {Record<string, string>} state @param {(changes: any) => void} change */
function chooseColumns(state, change) {
  const chosen = chosenColumns(state).map((column) => column.name);
  const boxes = COLUMNS.map((column) => el("label", {}, el("input", {
    type: "checkbox", checked: chosen.includes(column.name), value: column.name,
    change: () => change({ columns: names(boxes) }),
  }), ` ${column.text}`));
  const groups = [...new Set(COLUMNS.map((column) => column.group))];
  return fold("columns", groups.map((group) => el("fieldset", { class: "choices" }, el("legend", {}, group),
    boxes.filter((_, index) => COLUMNS[index].group === group))));
}

/** @param {HTMLElement[]} boxes */
function names(boxes) {
  const inputs = boxes.map((box) => /** @type {HTMLInputElement} */ (box.querySelector("input")));
  return inputs.filter((input) => input.checked).map((input) => input.value).join(",") || "step";
}

/** @param {Record<string, string>} state */
function chosenColumns(state) {
  const names = (state.columns || USUAL).split(",");
  return COLUMNS.filter((column) => names.includes(column.name));
}

/** @param {string} run @param {any} data @param {Record<string, string>} state
 * @param {(after: number | null) => Promise<void>} load @param {(name: string) => void} sortBy */
function listed(run, data, state, load, sortBy) {
  const left = data.not_searched ? `; ${plural(data.not_searched, "older episode")} not searched yet` : "";
  if (data.count === 0) return [el("p", { class: "dim", id: "count" }, left ? `No episode so far${left}` : "No episode passes.")];
  const sort = state.sort || "-step";
  const head = [el("th", { scope: "col", class: "wide" }, "question"), ...chosenColumns(state).map((column) => {
    const order = sort.replace("-", "") === column.sort ? (sort.startsWith("-") ? "descending" : "ascending") : null;
    const arrow = order === null ? "" : order === "descending" ? " ↓" : " ↑";
    return el("th", { scope: "col", class: column.num ? "num" : null, "aria-sort": order },
      column.sort ? el("button", { class: "plain", click: () => sortBy(/** @type {string} */ (column.sort)) }, column.text + arrow) : column.text);
  })];
  const shown = table("Episodes", head, data.episodes.map((/** @type {import("../data.js").Row} */ row) => line(run, row, state)));
  /** @type {HTMLElement} */ (shown.querySelector("tbody")).id = "rows";
  /** @type {HTMLElement} */ (shown.querySelector("thead")).prepend(groupsRow(chosenColumns(state)));
  return [el("p", { class: "dim", id: "count", role: "status" }, plural(data.count, "episode") + left), shown, further(data, load)].filter((each) => each !== null);
}

/** Returns the row above the columns' names: what each group of columns is about. @param {Column[]} columns */
function groupsRow(columns) {
  const groups = [...new Set(columns.map((column) => column.group))];
  return el("tr", { class: "groups" }, el("td", {}), groups.map((group) =>
    el("th", { scope: "colgroup", colspan: columns.filter((column) => column.group === group).length }, group)));
}

/** @param {any} data @param {(after: number | null) => Promise<void>} load */
function further(data, load) {
  return data.next === null ? null : el("button", { id: "more", click: () => load(data.next) }, "More episodes");
}

/** @param {HTMLElement} list @param {string} run @param {any} data @param {Record<string, string>} state
 * @param {(after: number | null) => Promise<void>} load */
function append(list, run, data, state, load) {
  list.querySelector("tbody")?.append(...data.episodes.map((/** @type {import("../data.js").Row} */ row) => line(run, row, state)));
  list.querySelector("#more")?.remove();
  const button = further(data, load);
  if (button) list.append(button);
}

/** @param {string} run @param {import("../data.js").Row} row @param {Record<string, string>} state */
function line(run, row, state) {
  const classes = (/** @type {Column} */ column) => [
    column.num ? "num" : "", column.name === "reward" && row.is_success ? "good" : "",
    column.name === "status" && !/^(ok|truncated)$/.test(row.status) ? "bad" : "", column.name === "error" ? "bad value" : "",
  ].join(" ").trim();
  return el("tr", {},
    el("td", { class: "wide" }, el("a", { class: "row", href: link(run, ["episode", row.episode_id]), title: row.episode_id }, row.query.replace(/\s+/g, " ") || row.task_id)),
    chosenColumns(state).map((column) => el("td", { class: classes(column) || null }, column.show(row))));
}
