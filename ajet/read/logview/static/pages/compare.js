// Two episodes of one task side by side, as of two checkpoints: where they first part.
import { earned, el, fold, link, said, taskHeading } from "../dom.js";
import { get } from "../data.js";
import { colourChoice, colourOf, showNumbers, strongestOf } from "../tokens.js";
import { value } from "./episode.js";
import { lane, parting } from "./group.js";

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, path, query, set }) {
  const task_id = path[1] ?? "";
  const data = await get("compare", { run, task_id, left: query.left, right: query.right });
  const colour = colourOf(query.colour ?? "logprob");
  const strongest = strongestOf(data.sides.flatMap((/** @type {any} */ side) => side.turns.map((/** @type {any} */ turn) => turn.sampled)));
  const names = data.sides.map((/** @type {any} */ side, /** @type {number} */ index) => `${index ? "right" : "left"}: step ${side.step}, ${side.mode}`);
  const lanes = el("div", { class: "lanes pair", role: "region", "aria-label": "Two episodes side by side", tabindex: 0 },
    data.sides.map((/** @type {any} */ side, /** @type {number} */ index) => lane(run, side, data.parting, colour, strongest, names[index])));
  showNumbers(lanes);
  const same = JSON.stringify(data.sides[0].asked) === JSON.stringify(data.sides[1].asked);
  const content = [
    taskHeading(data),
    el("p", { class: "pager" }, el("a", { href: link(run, ["task", data.task_id]) }, "this task through the steps"),
      el("button", { name: "swap", click: () => set({ left: data.right, right: data.left }) }, "swap")),
    el("div", { class: "choices" }, choice("left", data, set), choice("right", data, set)),
    answers(data, names),
    data.left === data.right ? el("p", { class: "box" }, "Both sides are the same episode.") : parting({ ...data, num_members: 2 }, "Both", (number) => (number ? "right" : "left")),
    data.sides.map((/** @type {any} */ side, /** @type {number} */ index) => (index && same ? null : asked(side, same ? "What both were asked" : `What the ${index ? "right" : "left"} was asked`))),
    colourChoice(colour, (chosen) => set({ colour: chosen })),
    lanes,
  ].flat().filter((each) => each !== null);
  return {
    title: `compare ${data.task_id}`, content,
    crumbs: [[run, link(run)], ["tasks", link(run, ["tasks"])], [`task ${data.task_id}`, link(run, ["task", data.task_id])], ["side by side", null]],
  };
}

/** Returns what was expected, and what the two episodes answered. @param {any} data @param {string[]} names */
export function answers(data, names) {
  return [
    data.expected ? el("p", {}, el("b", {}, `expected (${data.expected.name}) `), value(data.expected.value)) : null,
    el("dl", { class: "answers" }, data.sides.map((/** @type {any} */ side, /** @type {number} */ index) => [
      el("dt", {}, names[index]),
      el("dd", {}, el("span", { class: side.is_success ? "good" : side.is_success === null ? null : "bad" }, `${earned(side)} `), side.final_answer ? value(side.final_answer.value) : "no answer"),
    ])),
  ];
}

/** @param {any} side @param {string} title */
function asked(side, title) {
  return fold(title, side.asked.map((/** @type {any} */ message) => el("div", { class: "message" }, el("h3", {}, message.role), said(message.text))));
}

/** @param {"left" | "right"} side @param {any} data @param {(changes: any) => void} set */
function choice(side, data, set) {
  const words = (/** @type {import("../data.js").Row} */ row) => `step ${row.step} ${row.mode}, member ${row.rollout_index + 1}, ${earned(row)}`;
  const select = /** @type {HTMLSelectElement} */ (el("select", { name: side, change: () => set({ [side]: select.value }) },
    data.episodes.map((/** @type {import("../data.js").Row} */ row) => el("option", { value: row.episode_id, selected: row.episode_id === data[side] }, words(row)))));
  return el("label", {}, `${side} `, select);
}
