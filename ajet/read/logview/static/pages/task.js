// One task through the steps: its success over time, and its episodes beside each other.
import { el, link, number, plural, rewardRange, strip, table, taskHeading, th } from "../dom.js";
import { get } from "../data.js";
import { figure } from "../chart.js";
import { answers } from "./compare.js";

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, path }) {
  const data = await get("task", { run, task_id: path[1] ?? "" });
  const steps = [...new Set(data.steps.map((/** @type {any} */ each) => each.step))].sort((a, b) => a - b);
  const modes = [...new Set(data.steps.map((/** @type {any} */ each) => each.mode))];
  const series = modes.map((mode) => ({
    name: `success, ${mode}`, points: true,
    values: steps.map((step) => {
      const found = data.steps.find((/** @type {any} */ each) => each.step === step && each.mode === mode);
      return found ? found.successes / found.num : null;
    }),
  }));
  const range = rewardRange(data.episodes);
  const ends = el("section", { "aria-label": "First and last answer" });
  get("compare", { run, task_id: data.task_id }).then((pair) => {
    const names = pair.sides.map((/** @type {any} */ side, /** @type {number} */ index) => `${index ? "last" : "first"}: step ${side.step}, ${side.mode}`);
    ends.replaceChildren(...answers(pair, names).filter((each) => each !== null));
  }).catch((error) => ends.replaceChildren(el("p", { class: "error" }, error.message)));
  const content = [
    taskHeading(data),
    el("p", { class: "dim" }, `task ${data.task_id}  ·  ${plural(data.count, "episode")}`,
      data.count > data.episodes.length ? `, the first ${data.episodes.length} are below` : ""),
    el("p", { class: "pager" },
      el("a", { href: link(run, ["compare", data.task_id]) }, "first and last, side by side"),
      el("a", { href: link(run, ["episodes"], { task_id: data.task_id, sort: "-reward" }) }, "as a list")),
    ends,
    el("div", { class: "figures" }, figure({ title: "Success over the steps", isShare: true, steps, series })),
    table("Steps", [th("step", true), th("mode"), th("success", true), th("reward", true), th("episodes")],
      data.steps.map((/** @type {any} */ each) => row(run, each, data.episodes, range))),
  ];
  return { title: data.query || data.task_id, content, crumbs: [[run, link(run)], ["tasks", link(run, ["tasks"])], [`task ${data.task_id}`, null]], live: true };
}

/** @param {string} run @param {any} each @param {import("../data.js").Row[]} episodes @param {[number, number]} range */
function row(run, each, episodes, range) {
  const members = episodes.filter((episode) => episode.step === each.step && episode.mode === each.mode);
  const href = members.length ? link(run, ["group", each.step, each.mode, members[0].group_id]) : link(run, ["step", each.step], { mode: each.mode });
  return el("tr", {},
    el("td", { class: "num" }, el("a", { href }, String(each.step))), el("td", { class: "dim" }, each.mode),
    el("td", { class: "num" }, `${each.successes}/${each.num}`), el("td", { class: "num" }, number(each.reward)),
    el("td", {}, strip(run, members, range)));
}
