// Two starts of runs side by side: where their configs differ, and their code as a diff.
import { el, link, plural, table, th } from "../dom.js";
import { get } from "../data.js";

/** @typedef {{name: string, in_left: boolean, in_right: boolean, lines: string[]}} File */

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, query, set }) {
  const data = await get("difference", { run, left: query.left, right: query.right });
  const same = data.left === data.right;
  const content = [
    el("h1", {}, "Config and code"),
    el("div", { class: "choices" }, choice("left", data, set), choice("right", data, set),
      el("button", { name: "swap", click: () => set({ left: data.right, right: data.left }) }, "swap")),
    same ? el("p", { class: "box" }, "Both sides are the same start: choose another.") : null,
    el("h2", {}, `Config: ${plural(data.config.length, "key")} ${data.config.length === 1 ? "differs" : "differ"}`),
    data.config.length === 0 ? null : table("Where the configs differ", [th("key"), th("left"), th("right")],
      data.config.map((/** @type {any} */ each) => el("tr", {}, el("th", { scope: "row" }, each.key),
        [each.left, each.right].map((text) => el("td", { class: "value", title: text ?? "" }, text ?? el("span", { class: "dim" }, "absent")))))),
    el("h2", {}, `Code: ${data.code.length} of ${plural(data.num_files, "file")} ${data.code.length === 1 ? "differs" : "differ"}`),
    data.code.map(file),
  ].flat().filter((each) => each !== null);
  return { title: "config and code", content, crumbs: [[run, link(run)], ["config and code", null]] };
}

/** @param {File} each */
function file(each) {
  const only = each.in_left && each.in_right ? "" : each.in_left ? " (only left)" : " (only right)";
  return el("section", { "aria-label": each.name },
    el("h3", {}, el("code", {}, each.name), el("span", { class: "dim" }, only)),
    el("pre", { class: "diff", tabindex: 0, role: "region", "aria-label": `what differs in ${each.name}` }, each.lines.map((line) =>
      el("span", { class: line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "place" : null }, line || " "))));
}

/** @param {"left" | "right"} side @param {any} data @param {(changes: any) => void} set */
function choice(side, data, set) {
  const select = /** @type {HTMLSelectElement} */ (el("select", { name: side, change: () => set({ [side]: select.value }) },
    data.starts.map((/** @type {any} */ start) => el("option", { value: start.name, selected: start.name === data[side] },
      `${start.name.slice(0, start.name.lastIndexOf(":"))}: ${start.text}`))));
  return el("label", {}, `${side} `, select);
}
