// What changed in a run: held-out tasks before and after, and the curves of what may be the reason.
import { day, duration, el, lateFold, link, modelName, percent, plural, progress, table, th } from "../dom.js";
import { get } from "../data.js";
import { figure } from "../chart.js";

/** @typedef {{title: string, names: string[], band?: string, share?: [string, string], stacked?: boolean, unit?: string, least?: number}} Kind */

/** @type {Kind[]} */
const CHARTS = [
  { title: "Reward", names: ["reward/mean"], band: "reward/std" },
  { title: "Success", names: ["reward/success", "held_out/success"] },
  { title: "Groups with signal", names: [], share: ["groups/with_advantage", "groups/total"] },
  { title: "Sampled tokens an episode", names: [], share: ["tokens/sampled", "episodes/total"] },
  { title: "Calls an episode", names: ["episodes/turns_mean"] },
  { title: "Cross-entropy of given replies", names: ["update/cross_entropy", "held_out/cross_entropy"] },
  { title: "Preference loss", names: ["preference/loss"] },
  { title: "Pairs whose chosen reply gains more", names: ["preference/accuracy"] },
  { title: "Implicit reward of good and bad replies", names: ["preference/good_reward", "preference/bad_reward"] },
  { title: "Entropy", names: ["update/entropy"] },
  { title: "KL to the reference", names: ["update/kl"], least: 1e-6 },
  { title: "Sampler and trainer apart (KL)", names: ["update/sampler_kl_k3"], least: 1e-6 },
  { title: "Clipped tokens", names: ["update/clip_fraction_low", "update/clip_fraction_high"], least: 0.01 },
  { title: "Gradient norm", names: ["update/grad_norm"] },
  { title: "Staleness", names: ["staleness/mean", "staleness/max"] },
  { title: "Sampled tokens a second", names: ["rollout/tokens_per_s"] },
  { title: "Time by phase", stacked: true, unit: " s",
    names: ["rollout/seconds", "update/seconds", "sync/seconds", "trainer/waited_s", "trainer/update_s", "trainer/publish_s"] },
  { title: "Episodes that failed or were cut",
    names: ["episodes/timeout", "episodes/env_error", "episodes/agent_error", "episodes/judge_error", "episodes/cut", "episodes/malformed"] },
];
const FIRST = 12;
const AGAIN_MS = 15_000; // a killed run writes nothing that would be noticed

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, query, set }) {
  const names = CHARTS.flatMap((kind) => [...kind.names, kind.band, ...(kind.share ?? [])]).filter(Boolean);
  const own = query.metric ? query.metric.split(",") : [];
  const metrics = await get("metrics", { run, names: [...names, ...own].join(",") });
  const result = el("section", { "aria-label": "Held-out tasks" }, el("p", { class: "dim" }, "Counting the held-out tasks …"));
  // The curves need one small file, the tasks all episodes: the page does not wait for them.
  get("changes", { run }).then((changes) => result.replaceChildren(...changed(run, changes, query, set)))
    .catch((error) => result.replaceChildren(el("p", { class: "error" }, error.message)));
  const status = el("p", { class: "facts", id: "status" });
  keepStatus(run, status);
  const config = el("section", { "aria-label": "Config" });
  get("config", { run }).then(({ keys }) => config.replaceChildren(...configOf(keys)))
    .catch((error) => config.replaceChildren(el("p", { class: "error" }, error.message)));
  const attempts = el("section", {});
  get("run", { run }).then((facts) => attempts.replaceChildren(...about(run, facts)))
    .catch((error) => attempts.replaceChildren(el("p", { class: "error" }, error.message)));
  const charts = CHARTS.map((kind) => ({ kind, made: drawn(kind, metrics, run) }));
  const absent = charts.filter((each) => each.made === null).map((each) => each.kind.title.toLowerCase());
  const content = [
    el("h1", {}, run),
    status,
    result,
    warnings(run, metrics.warnings),
    why(run),
    el("h2", {}, "Over the steps"),
    metrics.steps.length === 0 ? el("p", { class: "dim" }, "No step has been written yet.") : null,
    el("div", { class: "figures" }, charts.map((each) => each.made),
      own.map((name) => drawn({ title: name, names: [name] }, metrics, run))),
    other(metrics.names, own, set),
    metrics.steps.length && absent.length ? el("p", { class: "dim" }, `This run has no numbers of: ${absent.join(", ")}.`) : null,
    config,
    attempts,
  ].filter((each) => each !== null);
  return { title: run, content, live: true, crumbs: [["all runs", "#/"], [run, null]] };
}

/** Shows the run's status, and asks for it again as long as it runs and is shown.
 * @param {string} run @param {HTMLElement} place */
async function keepStatus(run, place) {
  try {
    /** @type {import("../data.js").Status} */
    const status = await get("status", { run });
    const facts = [
      ["state", el("span", { class: `state ${status.state}` }, status.state)],
      ["step", progress(status)],
      ["left", status.seconds_left === null ? null : `about ${duration(status.seconds_left)}`],
      ["began", day(status.begun)],
      [status.state === "running" ? "running for" : "took", duration(status.seconds)],
      ["model", el("span", { title: status.model }, modelName(status.model))],
    ];
    place.replaceChildren(...facts.filter(([, value]) => value !== null).map(([name, value]) => el("span", {}, el("b", {}, `${name} `), value)));
    if (status.state === "running") setTimeout(() => place.isConnected && keepStatus(run, place), AGAIN_MS);
  } catch (error) {
    place.replaceChildren(el("span", { class: "error" }, error instanceof Error ? error.message : String(error)));
  }
}

/** Returns the keys that are not the defaults, and all of them folded away.
 * @param {import("../data.js").ConfigKey[]} keys */
function configOf(keys) {
  const rows = (/** @type {import("../data.js").ConfigKey[]} */ some) => table("Config", [th("key"), th("value")],
    some.map(({ key, value }) => el("tr", {}, el("th", { scope: "row" }, key), el("td", { class: "long" }, value))));
  const chosen = keys.filter((each) => !each.is_default);
  if (keys.length === 0) return [el("h2", {}, "Config"), el("p", { class: "dim" }, "The run has stored none.")];
  const whole = lateFold("config", `All ${plural(keys.length, "key")}, with the defaults`, () => rows(keys));
  const title = `Config: ${plural(chosen.length, "key")} ${chosen.length === 1 ? "is" : "are"} not the default`;
  return [el("h2", {}, title), chosen.length ? rows(chosen) : null, whole].filter((each) => each !== null);
}

/** @param {string} run @param {import("../data.js").Changes} changes @param {Record<string, string>} query @param {(changes: any) => void} set */
function changed(run, changes, query, set) {
  const { before, after, difference, second } = changes;
  if (!before) return [el("p", { class: "dim" }, "No held-out task has been played yet.")];
  if (!after || !difference) {
    return [el("p", { class: "headline" }, `Held-out success ${percent(before.value)}`),
      el("p", { class: "dim" }, `${plural(before.num_tasks, "task")} after step ${before.step}; there is no second evaluation yet.`)];
  }
  const points = (/** @type {number} */ share) => `${share >= 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(1)}`;
  return [
    el("p", { class: "headline" }, "Held-out success ", el("b", {}, percent(before.value)), " → ",
      el("b", { class: difference.low > 0 ? "good" : difference.high < 0 ? "bad" : null }, percent(after.value))),
    el("p", {}, `${points(difference.value)} points, 95 % interval ${points(difference.low)} to ${points(difference.high)}`
      + `, over ${plural(after.num_tasks, "task")}, from step ${before.step} to step ${after.step}. `,
    `${plural(changes.num_rose, "task")} rose, ${changes.num_fell} fell, ${changes.num_same} are as before.`),
    second && second.after !== null ? el("p", {}, `${second.decoding === "greedy" ? "Greedy" : "Sampled"}, the same tasks: `
      + `${percent(second.before)} → ${percent(second.after)}.`) : null,
    el("div", { class: "two" },
      moved(run, "Fell", "fell", changes.fell, changes.num_fell, query, set),
      moved(run, "Rose", "rose", changes.rose, changes.num_rose, query, set)),
  ].filter((each) => each !== null);
}

/** @param {string} run @param {string} title @param {string} name @param {import("../data.js").Change[]} tasks
 * @param {number} count @param {Record<string, string>} query @param {(changes: any) => void} set */
function moved(run, title, name, tasks, count, query, set) {
  const isAll = query.all === name;
  const seen = isAll ? tasks : tasks.slice(0, FIRST);
  const times = (/** @type {[number, number]} */ [wins, num]) => `${wins}/${num}`;
  return el("section", {},
    el("h2", {}, `${title}: ${plural(count, "task")}`),
    count === 0 ? el("p", { class: "dim" }, "None.") : table(title, [th("before", true), th("after", true), th("task")],
      seen.map((task) => el("tr", {},
        el("td", { class: "num" }, times(task.before)), el("td", { class: "num" }, times(task.after)),
        el("td", { class: "wide" }, el("a", { href: link(run, ["task", task.task_id]), title: task.task_id }, task.query || task.task_id))))),
    tasks.length > FIRST ? el("button", { click: () => set({ all: isAll ? null : name }) },
      isAll ? "Only the first" : `All ${tasks.length}${tasks.length < count ? ` of ${count}` : ""}`) : null);
}

/** @param {string} run @param {import("../data.js").Warning[]} list */
function warnings(run, list) {
  if (list.length === 0) return null;
  return el("ul", { class: "warnings", id: "warnings", "aria-label": "What the run warned of" }, list.map((warning) =>
    el("li", {}, el("a", { href: link(run, ["step", warning.step]) }, `step ${warning.step}`),
      el("b", {}, warning.name), el("span", {}, warning.text))));
}

/** The last answers of `why`, by run: shown until a newer one is there. @type {Map<string, import("../data.js").Why>} */
const answered = new Map();

/** What `ajet why` says; it reads many episodes, so only on request. @param {string} run */
function why(run) {
  return lateFold("why", "What holds the reward back?", () => {
    const last = answered.get(run);
    const answer = el("div", { class: "why" }, last ? causes(run, last) : el("p", { class: "dim" }, "Reading the episodes …"));
    get("why", { run }).then((report) => {
      answered.set(run, report);
      answer.replaceChildren(...causes(run, report));
    }).catch((error) => answer.replaceChildren(el("p", { class: "error" }, error.message)));
    return answer;
  });
}

/** @param {string} run @param {import("../data.js").Why} report */
function causes(run, report) {
  return [
    el("p", {}, report.headline),
    report.causes.length ? el("ol", {}, report.causes.map((cause) => el("li", {}, el("p", {}, cause.found),
      el("p", { class: "good" }, cause.change),
      cause.episode_id ? el("p", {}, el("a", { href: link(run, ["episode", cause.episode_id]) }, `Episode ${cause.episode_id}`)) : null)))
      : el("p", {}, report.advice),
  ];
}

/** @param {Kind} kind @param {import("../data.js").Metrics} metrics @param {string} run */
function drawn(kind, metrics, run) {
  const { steps, series } = metrics;
  const some = (/** @type {(number | null)[] | undefined} */ values) => values?.some((value) => value !== null);
  let found = kind.names.filter((name) => some(series[name])).map((name) => ({
    name, values: series[name], points: name.startsWith("held_out"),
  }));
  if (kind.share) {
    const [part, whole] = kind.share.map((name) => series[name]);
    if (!part || !whole) return null;
    const values = part.map((value, index) => (value === null || !whole[index] ? null : value / /** @type {number} */ (whole[index])));
    found = [{ name: kind.share.join(" / "), values, points: false }];
  }
  if (found.some((each) => each.name.startsWith("trainer/"))) found = found.filter((each) => each.name.startsWith("trainer/"));
  if (kind.title.startsWith("Episodes that")) found = found.filter((each) => each.values.some(Boolean));
  if (found.length === 0) return null;
  const band = kind.band ? series[kind.band] : undefined;
  return figure({
    title: kind.title, steps, series: found, band, stacked: kind.stacked && found.length > 1, unit: kind.unit, least: kind.least,
    warnings: metrics.warnings, href: (step) => link(run, ["step", step]),
  });
}

/** @param {string[]} names @param {string[]} own @param {(changes: any) => void} set */
function other(names, own, set) {
  const select = /** @type {HTMLSelectElement} */ (el("select", { name: "metric", change: () => set({ metric: [...own, select.value].join(",") }) },
    el("option", { value: "" }, "choose …"), names.map((name) => el("option", { value: name }, name))));
  return el("p", {}, el("label", {}, "Another metric ", select),
    own.length ? el("button", { click: () => set({ metric: null }) }, "Without them") : null);
}

/** @param {string} run @param {any} facts */
function about(run, facts) {
  const lines = facts.attempts.map((/** @type {string} */ text) => el("li", {}, text));
  return [
    el("h2", {}, "The run"),
    el("p", {}, `${plural(facts.count, "episode")} in `, el("code", {}, facts.folder),
      facts.has_tokenizer ? "" : "; no tokenizer was found: tokens show as ids"),
    lines.length ? el("ol", {}, lines) : null,
    el("p", {}, el("a", { href: link(run, ["difference"]) }, lines.length > 1 ? "Config and code: the last start beside the one before" : "Config and code beside another start")),
  ].filter((each) => each !== null);
}
