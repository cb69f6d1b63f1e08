// All runs: their results in a table, their curves in one picture, where their configs differ.
import { el, link, percent, plural, short, table, th } from "../dom.js";
import { get } from "../data.js";
import { figure } from "../chart.js";

const MAX_KEYS = 6; // columns of keys that differ; the table below has all of them
const NAMING = ["ajet.experiment_name", "ajet.experiment_dir"];
const CURVES = ["reward/mean", "held_out/success", "update/cross_entropy", "update/entropy", "update/kl"];

/** @param {import("../app.js").Place} _ @returns {Promise<import("../app.js").Page>} */
export async function show(_) {
  const { runs, differences } = await get("runs");
  const names = runs.map((/** @type {any} */ run) => run.name);
  const metrics = await Promise.all(names.map((/** @type {string} */ run) => get("metrics", { run, names: CURVES.join(",") })));
  const keys = differences.filter((/** @type {Difference} */ each) => !NAMING.includes(each.key)).slice(0, MAX_KEYS);
  const decodings = [...new Set(runs.flatMap((/** @type {any} */ run) => Object.keys(run.held_out)))];
  const content = [
    el("h1", {}, plural(names.length, "run")),
    table("Runs", [
      th("run"), ...keys.map((/** @type {Difference} */ each) => el("th", { scope: "col", title: each.key }, each.key.split(".").slice(-1)[0])),
      th("steps", true), ...decodings.flatMap((decoding) => [th(`held out${decoding && `, ${decoding}`}, before`, true), th("after", true)]),
      th("reward, first step", true), th("last step", true), th("warnings", true), th("starts", true), th("beside another"),
    ], runs.map((/** @type {any} */ run) => row(run, keys, decodings))),
    el("div", { class: "figures" }, CURVES.map((curve) => together(curve, names, metrics))),
    el("h2", {}, "Where the configs differ"),
    differences.length ? configs(names, differences) : el("p", { class: "dim" }, "Nowhere."),
  ];
  return { title: "runs", content, live: true };
}

/** @typedef {{key: string, values: Record<string, string | null>}} Difference */

/** @param {any} run @param {Difference[]} keys @param {string[]} decodings */
function row(run, keys, decodings) {
  const rates = decodings.flatMap((decoding) => [run.held_out[decoding]?.before, run.held_out[decoding]?.after]);
  return el("tr", {},
    el("td", {}, el("a", { href: link(run.name), title: run.folder }, run.name)),
    keys.map(({ values }) => el("td", { class: "value" }, values[run.name] ?? "–")),
    el("td", { class: "num" }, run.steps),
    [...rates.map((rate) => percent(rate ?? null)), short(run.first_reward), short(run.last_reward), run.num_warnings, run.attempts]
      .map((text) => el("td", { class: "num" }, String(text))),
    el("td", {}, el("a", { href: link(run.name, ["difference"]), "aria-label": `config and code of ${run.name} beside another` }, "config and code")));
}

/** Returns one curve of all runs that have it.
 * @param {string} curve @param {string[]} names @param {import("../data.js").Metrics[]} metrics */
function together(curve, names, metrics) {
  const having = metrics.map((each, index) => ({ ...each, name: names[index] })).filter((each) => each.series[curve]);
  if (having.length === 0) return null;
  const steps = [...new Set(having.flatMap((each) => each.steps))].sort((a, b) => a - b);
  const series = having.map((each) => {
    const values = new Map(each.steps.map((step, index) => [step, each.series[curve][index]]));
    return { name: each.name, values: steps.map((step) => values.get(step) ?? null), points: curve.startsWith("held_out") };
  });
  return figure({ title: curve, steps, series });
}

/** @param {string[]} names @param {Difference[]} differences */
function configs(names, differences) {
  return table("Where the configs differ", [th("key"), ...names.map((name) => th(name))],
    differences.map(({ key, values }) => el("tr", {}, el("th", { scope: "row" }, key),
      names.map((name) => el("td", { class: "value" }, values[name] ?? "–")))));
}
