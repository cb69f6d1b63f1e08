// One step: its groups with a strip of rewards each, so that a group without signal is seen at once.
import { el, link, number, percent, plural, rewardRange, short, strip, table, th } from "../dom.js";
import { get } from "../data.js";

/** @type {Record<string, [string, (group: import("../data.js").GroupRow) => number]>} */
const SORTS = {
  order: ["as played", () => 0],
  variance: ["variance of rewards", (group) => -(group.variance ?? -1)],
  reward: ["reward", (group) => group.reward ?? Infinity],
  length: ["tokens", (group) => -group.tokens],
  time: ["seconds", (group) => -group.seconds],
};

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, path, query, set }) {
  const mode = query.mode ?? "train";
  const asked = path[1] ?? (await newest(run, mode));
  const data = await get("step", { run, step: asked, mode });
  const at = (/** @type {number | null} */ step) => (step === null ? null : link(run, ["step", step], query));
  /** @type {import("../data.js").GroupRow[]} */
  const groups = [...data.groups];
  const sort = SORTS[query.sort] ? query.sort : "order";
  groups.sort((a, b) => SORTS[sort][1](a) - SORTS[sort][1](b));
  const range = rewardRange(groups.flatMap((group) => group.strip));
  const dead = groups.filter((group) => group.has_signal === false).length;
  const content = [
    el("h1", {}, `Step ${data.step}${mode === "train" ? "" : `, ${mode}`}`),
    el("p", { class: "pager" },
      data.previous === null ? null : el("a", { href: at(data.previous) }, `← step ${data.previous}`),
      data.following === null ? null : el("a", { href: at(data.following) }, `step ${data.following} →`)),
    facts(data, groups, dead),
    ...data.warnings.map((/** @type {import("../data.js").Warning} */ warning) =>
      el("p", { class: "warning" }, el("b", {}, warning.name), ` ${warning.text}`)),
    el("div", { class: "choices" },
      choice("mode", mode, data.modes.map((/** @type {string} */ each) => [each, each]), set),
      choice("sort", sort, Object.entries(SORTS).map(([name, [text]]) => [name, text]), set)),
    groups.length === 0 ? el("p", { class: "dim" }, `Step ${data.step} has no episodes of mode ${mode}.`)
      : table("Groups", [th("members"), th("signal"), th("task"), th("reward", true), th("variance", true), th("tokens", true), th("seconds", true)],
        groups.map((group) => row(run, data, group, range))),
  ];
  return {
    title: `step ${data.step}`, content, previous: at(data.previous), following: at(data.following), live: path[1] === undefined,
    crumbs: [[run, link(run)], [`step ${data.step}`, null]],
  };
}

/** Returns the newest step with episodes of a mode. @param {string} run @param {string} mode */
async function newest(run, mode) {
  const { episodes } = await get("episodes", { run, mode, limit: 1 });
  return episodes[0]?.step ?? 0;
}

/** @param {any} data @param {import("../data.js").GroupRow[]} groups @param {number} dead */
function facts(data, groups, dead) {
  const members = groups.flatMap((group) => group.strip);
  const solved = members.filter((member) => member.is_success).length;
  const said = [plural(groups.length, "group"), plural(members.length, "episode")];
  if (members.some((member) => member.is_success !== null)) said.push(`success ${percent(solved / members.length)}`);
  if (groups.some((group) => group.has_signal !== null)) said.push(`${plural(dead, "group")} without signal`);
  const names = ["update/kl", "update/entropy", "update/grad_norm"].filter((name) => data.mode === "train" && data.metrics[name] !== undefined);
  return el("p", {}, [...said, ...names.map((name) => `${name} ${short(data.metrics[name])}`)].join("  ·  "));
}

/** @param {string} name @param {string} value @param {[string, string][]} options @param {(changes: any) => void} set */
function choice(name, value, options, set) {
  const select = /** @type {HTMLSelectElement} */ (el("select", { name, change: () => set({ [name]: select.value }) },
    options.map(([each, text]) => el("option", { value: each, selected: each === value }, text))));
  return el("label", {}, `${name === "sort" ? "sort by" : name} `, select);
}

/** @param {string} run @param {any} data @param {import("../data.js").GroupRow} group @param {[number, number]} range */
function row(run, data, group, range) {
  const signal = group.has_signal === null ? "not trained" : group.has_signal ? "" : "none";
  return el("tr", { class: group.has_signal === false ? "dead" : null },
    el("td", {}, strip(run, group.strip, range)), el("td", {}, signal),
    el("td", { class: "wide" }, el("a", { href: link(run, ["group", data.step, data.mode, group.group_id]), title: group.task_id }, group.query || group.task_id)),
    el("td", { class: "num" }, number(group.reward)), el("td", { class: "num" }, number(group.variance)),
    el("td", { class: "num" }, number(group.tokens, 0)), el("td", { class: "num" }, number(group.seconds, 1)));
}
