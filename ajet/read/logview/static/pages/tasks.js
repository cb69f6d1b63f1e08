// All tasks: how each went at the first and the last step at which it was played, sorted.
import { el, link, number, percent, plural, table, th } from "../dom.js";
import { get } from "../data.js";

/** @typedef {{task_id: string, query: string, num: number, successes: number, num_steps: number, reward: number | null,
 *   first_step: number, last_step: number, first: number, last: number, change: number}} Task */

/** @type {[string, string][]} */
const COLUMNS = [["first", "first"], ["last", "last"], ["change", "change"], ["reward", "mean reward"], ["episodes", "episodes"], ["steps", "steps"]];

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, query, set }) {
  const { mode, sort, solved, limit } = query;
  const data = await get("tasks", { run, mode, sort, solved, limit });
  const isNever = solved === "never";
  const isJudged = isNever || data.tasks.some((/** @type {Task} */ task) => task.reward !== null);
  const select = /** @type {HTMLSelectElement} */ (el("select", { name: "mode", change: () => set({ mode: select.value }) },
    data.modes.map((/** @type {string} */ each) => el("option", { value: each, selected: each === data.mode }, each))));
  const never = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", name: "solved", checked: isNever, change: () => set({ solved: never.checked ? "never" : null }) }));
  const sortBy = (/** @type {string} */ name) => set({ sort: data.sort === `-${name}` ? name : `-${name}` });
  const shown = table("Tasks", [el("th", { scope: "col", class: "wide" }, heading("task", "task", data.sort, sortBy)),
    ...COLUMNS.map(([name, text]) => el("th", { scope: "col", class: "num", "aria-sort": order(name, data.sort) }, heading(name, text, data.sort, sortBy)))],
  data.tasks.map((/** @type {Task} */ task) => row(run, task)));
  /** @type {HTMLElement} */ (shown.querySelector("tbody")).id = "rows";
  const content = [
    el("h1", {}, "Tasks"),
    el("p", { id: "count", role: "status" }, `${plural(data.num, "task")} of mode ${data.mode}${isJudged ? `, ${data.num_never} never solved` : ""}`),
    el("div", { class: "choices" }, el("label", {}, "mode ", select), isJudged ? el("label", {}, never, " never solved only") : null),
    data.tasks.length === 0 ? el("p", { class: "dim" }, isNever && data.num ? "Every task was solved at least once." : `No task of mode ${data.mode} was played.`) : shown,
    data.next === null ? null : el("button", { id: "more", click: () => set({ limit: data.tasks.length + 100 }) }, "More tasks"),
  ].filter((each) => each !== null);
  return { title: "tasks", content, crumbs: [[run, link(run)], ["tasks", null]], live: true };
}

/** @param {string} name @param {string} sort */
function order(name, sort) {
  if (sort.replace("-", "") !== name) return null;
  return sort.startsWith("-") ? "descending" : "ascending";
}

/** @param {string} name @param {string} text @param {string} sort @param {(name: string) => void} sortBy */
function heading(name, text, sort, sortBy) {
  const found = order(name, sort);
  const arrow = found === null ? "" : found === "descending" ? " ↓" : " ↑";
  return el("button", { class: "plain", name: `sort-${name}`, click: () => sortBy(name) }, text + arrow);
}

/** @param {string} run @param {Task} task */
function row(run, task) {
  const points = `${task.change > 0 ? "+" : task.change < 0 ? "−" : "±"}${Math.abs(100 * task.change).toFixed(0)}`;
  return el("tr", {},
    el("td", { class: "wide" }, el("a", { class: "row", href: link(run, ["task", task.task_id]), title: task.task_id }, task.query.replace(/\s+/g, " ") || task.task_id)),
    el("td", { class: "num", title: `step ${task.first_step}` }, percent(task.first)), el("td", { class: "num", title: `step ${task.last_step}` }, percent(task.last)),
    el("td", { class: `num ${task.change > 0 ? "good" : task.change < 0 ? "bad" : ""}` }, task.num_steps > 1 ? points : "–"),
    el("td", { class: "num" }, number(task.reward)), el("td", { class: "num" }, task.num), el("td", { class: "num" }, task.num_steps));
}
