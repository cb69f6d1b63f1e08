// All runs: their results in a table, their curves in one picture, where their configs differ.
import { day, duration, el, link, modelName, percent, plural, progress, short, table, th } from "../dom.js";
import { get } from "../data.js";
import { figure } from "../chart.js";

const CURVES = ["reward/mean", "held_out/success", "update/cross_entropy", "update/entropy", "update/kl"];

/** @param {import("../app.js").Place} _ @returns {Promise<import("../app.js").Page>} */
export async function show(_) {
  const { runs, differences } = await get("runs");
  const names = runs.map((/** @type {any} */ run) => run.name);
  const metrics = await Promise.all(names.map((/** @type {string} */ run) => get("metrics", { run, names: CURVES.join(",") })));
  const content = [
    el("h1", {}, plural(names.length, "run")),
    runsTable(runs),
    el("div", { class: "figures" }, CURVES.map((curve) => together(curve, names, metrics))),
    el("h2", {}, "Where the configs differ"),
    differences.length ? configs(differences) : el("p", { class: "dim" }, "Nowhere."),
  ];
  return { title: "runs", content, live: true };
}

/** Returns a table which in a narrow window has a card for each run. @param {any[]} runs */
function runsTable(runs) {
  const columns = ["run", "state", "began", "took", "model", "steps", "held out", "reward", "warnings", "starts", "config"];
  const made = table("Runs", columns.map((name) => th(name)), runs.map((run) => row(run, columns)));
  made.classList.add("cards");
  return made;
}

/** @param {any} run @param {string[]} columns */
function row(run, columns) {
  const cells = [
    el("a", { href: link(run.name), title: run.folder }, run.name),
    stateOf(run),
    day(run.begun),
    duration(run.seconds),
    el("span", { title: run.model }, modelName(run.model)),
    progress(run),
    between(percent(run.before), percent(run.after)),
    between(short(run.first_reward), short(run.last_reward)),
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
  const having = metrics.map((each, index) => ({ ...each, name: names[index] })).filter((each) => each.series[curve]);
  if (having.length === 0) return null;
  const steps = [...new Set(having.flatMap((each) => each.steps))].sort((a, b) => a - b);
  const series = having.map((each) => {
    const values = new Map(each.steps.map((step, index) => [step, each.series[curve][index]]));
    return { name: each.name, values: steps.map((step) => values.get(step) ?? null), points: curve.startsWith("held_out") };
  });
  return figure({ title: curve, steps, series });
}

/** Returns each key with its values, and the runs that have them: it fits the window however many
 * runs there are. @param {{key: string, values: Record<string, string | null>}[]} differences */
function configs(differences) {
  return table("Where the configs differ", [th("key"), th("value"), th("runs")], differences.flatMap(({ key, values }) => {
    const texts = [...new Set(Object.values(values))];
    return texts.map((text, index) => el("tr", {},
      index === 0 ? el("th", { scope: "rowgroup", rowspan: texts.length }, key) : null,
      el("td", { class: "long" }, text ?? el("span", { class: "dim" }, "absent")),
      el("td", { class: "long" }, Object.keys(values).filter((name) => values[name] === text).join(", "))));
  }));
}
