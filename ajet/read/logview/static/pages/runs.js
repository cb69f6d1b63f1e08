// All runs: their results in a table, their curves in one picture, where their configs differ.
import { day, duration, el, link, modelName, percent, plural, progress, short, table, th } from "../dom.js";
import { get } from "../data.js";
import { figure } from "../chart.js";

const MAX_KEYS = 6; // columns of keys that all runs have and that differ; the table below has all
const NAMING = ["ajet.experiment_name", "ajet.experiment_dir"];
const CURVES = ["reward/mean", "held_out/success", "update/cross_entropy", "update/entropy", "update/kl"];

/** @param {import("../app.js").Place} _ @returns {Promise<import("../app.js").Page>} */
export async function show(_) {
  const { runs, differences } = await get("runs");
  const names = runs.map((/** @type {any} */ run) => run.name);
  const metrics = await Promise.all(names.map((/** @type {string} */ run) => get("metrics", { run, names: CURVES.join(",") })));
  const keys = differences.filter((/** @type {Difference} */ each) =>
    !NAMING.includes(each.key) && !Object.values(each.values).includes(null)).slice(0, MAX_KEYS);
  const isMeasured = (/** @type {string} */ decoding) => runs.some((/** @type {any} */ run) =>
    (run.held_out[decoding]?.before ?? run.held_out[decoding]?.after ?? null) !== null);
  const decodings = [...new Set(runs.flatMap((/** @type {any} */ run) => Object.keys(run.held_out)))].filter(isMeasured);
  const content = [
    el("h1", {}, plural(names.length, "run")),
    runsTable(runs, keys, decodings),
    el("div", { class: "figures" }, CURVES.map((curve) => together(curve, names, metrics))),
    el("h2", {}, "Where the configs differ"),
    differences.length ? configs(differences) : el("p", { class: "dim" }, "Nowhere."),
  ];
  return { title: "runs", content, live: true };
}

/** @typedef {{key: string, values: Record<string, string | null>}} Difference */

/** Returns a table which in a narrow window has a card for each run.
 * @param {any[]} runs @param {Difference[]} keys @param {string[]} decodings */
function runsTable(runs, keys, decodings) {
  const names = keys.map(({ key }) => key.split(".").slice(-1)[0]);
  const rates = decodings.map((decoding) => `held out${decoding && `, ${decoding}`}`);
  const columns = ["run", "state", "steps", ...rates, "reward", ...names, "model", "began", "took", "warnings", "starts", "config"];
  const made = table("Runs", columns.map((name) => th(name)), runs.map((run) => row(run, columns, keys, decodings)));
  made.classList.add("cards");
  return made;
}

/** @param {any} run @param {string[]} columns @param {Difference[]} keys @param {string[]} decodings */
function row(run, columns, keys, decodings) {
  const cells = [
    el("a", { href: link(run.name), title: run.folder }, run.name),
    stateOf(run),
    progress(run),
    ...decodings.map((decoding) => between(percent(run.held_out[decoding]?.before ?? null), percent(run.held_out[decoding]?.after ?? null))),
    between(short(run.first_reward), short(run.last_reward)),
    ...keys.map(({ key, values }) => el("span", { title: key }, values[run.name])),
    el("span", { title: run.model }, modelName(run.model)),
    day(run.begun),
    duration(run.seconds),
    run.num_warnings,
    run.attempts,
    el("a", { href: link(run.name, ["difference"]), "aria-label": `config and code of ${run.name} beside another` }, "compare"),
  ];
  const long = ["run", "model"]; // names, which may be broken
  return el("tr", {}, cells.map((cell, index) =>
    el("td", { "data-label": columns[index], class: long.includes(columns[index]) ? "long" : null }, cell)));
}

/** @param {import("../data.js").Status} status */
function stateOf(status) {
  const left = status.seconds_left === null ? "" : `, ${duration(status.seconds_left)} left`;
  return el("span", { class: `state ${status.state}` }, `${status.state}${left}`);
}

/** @param {string} first @param {string} last */
function between(first, last) {
  return last === "–" ? first : `${first} → ${last}`;
}

/** Returns one curve of all runs that have it.
 * @param {string} curve @param {string[]} names @param {import("../data.js").Metrics[]} metrics */
function together(curve, names, metrics) {
  const having = metrics.map((each, index) => ({ ...each, name: names[index], colour: index })).filter((each) => each.series[curve]);
  if (having.length === 0) return null;
  const steps = [...new Set(having.flatMap((each) => each.steps))].sort((a, b) => a - b);
  const series = having.map((each) => {
    const values = new Map(each.steps.map((step, index) => [step, each.series[curve][index]]));
    return { name: each.name, colour: each.colour, values: steps.map((step) => values.get(step) ?? null), points: curve.startsWith("held_out") };
  });
  return figure({ title: curve, steps, series });
}

/** Returns each key with its values, and the runs that have them: it fits the window however many
 * runs there are. @param {Difference[]} differences */
function configs(differences) {
  return table("Where the configs differ", [th("key"), th("value"), th("runs")], differences.flatMap(({ key, values }) => {
    const texts = [...new Set(Object.values(values))];
    return texts.map((text, index) => el("tr", {},
      index === 0 ? el("th", { scope: "rowgroup", rowspan: texts.length }, key) : null,
      el("td", { class: "long" }, text ?? el("span", { class: "dim" }, "absent")),
      el("td", { class: "long" }, Object.keys(values).filter((name) => values[name] === text).join(", "))));
  }));
}
