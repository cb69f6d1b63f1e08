// Shows the page that the address names, and handles keys. An address is #/RUN/PAGE/…?QUERY, and
// says all that is chosen: it can be kept, sent and gone back to.
import { byId, el, link } from "./dom.js";
import { get, listen } from "./data.js";
import * as runs from "./pages/runs.js";
import * as overview from "./pages/overview.js";
import * as step from "./pages/step.js";
import * as tasks from "./pages/tasks.js";
import * as task from "./pages/task.js";
import * as compare from "./pages/compare.js";
import * as difference from "./pages/difference.js";
import * as group from "./pages/group.js";
import * as episodes from "./pages/episodes.js";
import * as episode from "./pages/episode.js";

/**
 * What a page gets: the run, the rest of the path, the query, and `set`, which changes the query of
 * the address (without a new entry in the history where `quiet`).
 * @typedef {{run: string, path: string[], query: Record<string, string>,
 *   set: (changes: Record<string, any>, quiet?: boolean) => void}} Place
 * What it returns: its content, title and crumbs, its neighbours, whether it is made anew when the
 * run has written a step, what goes to the next token or frame, the one before or none (0), and what
 * plays the frames.
 * @typedef {{title: string, content: Node[], crumbs?: [string, string | null][],
 *   previous?: string | null, following?: string | null, live?: boolean, step?: (by: number) => void,
 *   play?: () => void}} Page
 */

/** @type {Record<string, {show: (place: Place) => Promise<Page>}>} */
const PAGES = { "": overview, step, tasks, task, compare, difference, group, episodes, episode };
/** @type {string[]} */
let names = [];
/** @type {Page | null} */
let shown = null;
let asked = 0; // the newest request for a page: an earlier one that comes later is left out

/** @returns {Place} */
function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const values = Object.fromEntries(new URLSearchParams(query ?? ""));
  const [run = "", ...rest] = parts;
  return {
    run, path: rest, query: values,
    set: (changes, quiet = false) => {
      Object.assign(values, changes);
      const address = link(run, rest, values);
      if (!quiet) {
        location.hash = address;
        return;
      }
      history.replaceState(null, "", address);
      byId("page").dataset.address = location.hash;
    },
  };
}

async function route(isRefresh = false) {
  const number = ++asked;
  try {
    if (names.length === 0) names = (await get("runs")).runs.map((/** @type {any} */ each) => each.name);
    if (!location.hash.replace(/^#\/?/, "") && names.length === 1) {
      history.replaceState(null, "", link(names[0]));
    }
    const place = here();
    const page = place.run ? PAGES[place.path[0] ?? ""] : runs;
    if (!page) throw new Error("there is no such page");
    const made = await page.show(place);
    if (number === asked) put(place, made, isRefresh);
  } catch (error) {
    if (number !== asked) return;
    byId("error").textContent = error instanceof Error ? error.message : String(error);
    byId("error").hidden = false;
    byId("page").dataset.address = location.hash;
    if (!isRefresh) byId("page").replaceChildren();
  }
}

/** @param {Place} place @param {Page} page @param {boolean} isRefresh */
function put(place, page, isRefresh) {
  const isSamePlace = byId("page").dataset.address?.split("?")[0] === location.hash.split("?")[0];
  const focused = document.activeElement?.getAttribute("name");
  shown = page;
  document.title = `${page.title} · ajet`;
  byId("error").hidden = true;
  byId("tip").hidden = true;
  byId("page").replaceChildren(...page.content);
  byId("page").dataset.address = location.hash;
  byId("nav").replaceChildren(...navigation(place));
  const [of_run, is_fork] = place.run.split("/forks/");
  /** @type {[string, string | null][]} */
  const crumbs = is_fork ? [[of_run, link(of_run)], ...(page.crumbs ?? [])] : page.crumbs ?? [];
  byId("crumbs").replaceChildren(...crumbs.map(([text, href]) =>
    (href ? el("a", { href }, text) : el("span", { "aria-current": "page" }, text))));
  if (focused) focusNamed(focused);
  else if (!isRefresh && !isSamePlace) {
    scrollTo(0, 0);
    byId("page").focus({ preventScroll: true });
  }
}

/** Gives the focus back to a field that was made anew. @param {string} name */
function focusNamed(name) {
  const fields = [...byId("page").querySelectorAll(`[name="${CSS.escape(name)}"]`)];
  const field = fields.find((each) => each instanceof HTMLInputElement && each.checked) ?? fields[0];
  if (field instanceof HTMLElement) field.focus({ preventScroll: true });
}

/** @param {Place} place */
function navigation({ run, path }) {
  const current = (/** @type {string} */ name) => (run && (path[0] ?? "") === name ? "page" : null);
  const of_run = run === "" ? [] : [
    el("a", { href: link(run), "aria-current": current("") }, "What changed"),
    el("a", { href: link(run, ["step"]), "aria-current": current("step") }, "Steps"),
    el("a", { href: link(run, ["tasks"]), "aria-current": current("tasks") }, "Tasks"),
    el("a", { href: link(run, ["episodes"]), "aria-current": current("episodes") }, "Episodes"),
  ];
  const all = names.length > 1 ? [el("a", { href: "#/", "aria-current": run ? null : "page" }, "Runs")] : [];
  return [...all, ...of_run];
}

/** @param {number} by */
function move(by) {
  const rows = [...document.querySelectorAll("#rows a.row")];
  if (rows.length) {
    const at = rows.indexOf(/** @type {Element} */ (document.activeElement));
    const row = rows[Math.max(0, Math.min(rows.length - 1, at + by))];
    if (row instanceof HTMLElement) row.focus();
    return;
  }
  const target = by > 0 ? shown?.following : shown?.previous;
  if (target) location.hash = target;
}

/** @type {Record<string, () => void>} */
const KEYS = {
  j: () => move(1), ArrowRight: () => move(1),
  k: () => move(-1), ArrowLeft: () => move(-1),
  u: () => {
    const up = shown?.crumbs?.at(-2)?.[1];
    if (up) location.hash = up;
  },
  "[": () => shown?.step?.(-1),
  "]": () => shown?.step?.(1),
  Escape: () => shown?.step?.(0),
  p: () => shown?.play?.(),
  "/": () => {
    const place = here();
    if (place.path[0] === "episodes" || !place.run) focusNamed("text");
    else location.hash = link(place.run, ["episodes"], { focus: "text" });
  },
  "?": () => /** @type {HTMLDialogElement} */ (byId("help")).showModal(),
};

addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  const types = target.closest("input, select, textarea, dialog[open]");
  const isLoading = byId("page").dataset.address !== location.hash; // neighbours of another page
  const scrolls = event.key.startsWith("Arrow") && target.closest(".table, .lanes");
  if (types || scrolls || isLoading || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
byId("help-button").addEventListener("click", KEYS["?"]);
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#/") || location.hash === "") route();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => route(true));
listen(({ run, step: newest }) => {
  const place = here();
  byId("live").textContent = `${run}: step ${newest} is there`;
  if (shown?.live && (place.run === run || place.run === "")) route(true);
});
route();
