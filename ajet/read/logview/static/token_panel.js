// One token: its exact numbers, and how the model went on from the same text through training.
import { el, link, number, percent, plural, table, th } from "./dom.js";
import { get } from "./data.js";
import { figure } from "./chart.js";
import { facts, numbersAt } from "./tokens.js";

/** @typedef {import("./data.js").Turn} Turn */
/** @typedef {{step: number, mode: string, num: number, chose: number, p: number | null, episode_id: string}} AtStep */

/** Returns the call and the index that an address names, if there is such a token.
 * @param {string | undefined} name @param {Turn[]} turns @returns {[number, number] | null} */
export function chosenToken(name, turns) {
  const [turn, index] = (name ?? "").split(".").map(Number);
  return turns[turn]?.sampled.ids[index] === undefined ? null : [turn, index];
}

/** Returns the sampled token before or after one, over all calls; without one the first or the last.
 * @param {Turn[]} turns @param {[number, number] | null} chosen @param {number} by @returns {[number, number] | null} */
export function neighbour(turns, chosen, by) {
  const all = turns.flatMap((turn) => turn.sampled.ids.map((_, index) => /** @type {[number, number]} */ ([turn.turn_index, index])));
  const at = chosen === null ? (by > 0 ? -1 : all.length) : all.findIndex(([turn, index]) => turn === chosen[0] && index === chosen[1]);
  return all[Math.max(0, Math.min(all.length - 1, at + by))] ?? null;
}

/** @param {string} run @param {any} data an episode @param {[number, number]} chosen
 * @param {(at: [number, number] | null) => void} choose */
export function tokenPanel(run, data, chosen, choose) {
  const [turn, index] = chosen;
  const token = numbersAt(data.turns[turn].sampled, index, turn);
  const training = el("div", {}, el("p", { class: "dim" }, "Looking through the episodes of this task …"));
  get("token", { run, episode: data.episode_id, turn, token: index })
    .then((found) => training.replaceChildren(...throughTraining(run, found)))
    .catch((error) => training.replaceChildren(el("p", { class: "error" }, error.message)));
  const go = (/** @type {number} */ by) => choose(neighbour(data.turns, chosen, by));
  return el("section", { class: "panel", "aria-label": "The chosen token", tabindex: 0 },
    el("h2", {}, `token ${index + 1} of call ${turn + 1} `, el("code", {}, token.text.replaceAll("\n", "↵")),
      el("button", { name: "token-before", click: () => go(-1) }, "← before"), el("button", { name: "token-next", click: () => go(1) }, "next →"),
      el("button", { name: "token-close", click: () => choose(null) }, "close")),
    el("p", { class: "facts" }, facts(token).map(([name, text]) => el("span", {}, el("b", {}, name), ` ${text}`))),
    training);
}

/** @param {string} run @param {any} found */
function throughTraining(run, found) {
  /** @type {AtStep[]} */
  const steps = found.steps;
  const came = steps.reduce((sum, each) => sum + each.num, 0);
  const chose = steps.reduce((sum, each) => sum + each.chose, 0);
  return [
    el("h3", {}, "Through training"),
    el("div", { class: "two" },
      el("div", {},
        el("p", {}, `${plural(came, "episode")} of this task (of ${found.num_compared}) came to exactly this text; ${chose} went on with this token.`),
        table("What was sampled here", [th("token"), th("times", true), th("share")], found.tokens.map((/** @type {any} */ each) => el("tr", {},
          el("td", {}, el("code", {}, each.text.replaceAll("\n", "↵")), each.is_chosen ? " (this one)" : ""),
          el("td", { class: "num" }, each.num), el("td", {}, bar(each.num / came))))),
        found.num_tokens > found.tokens.length ? el("p", { class: "dim" }, `and ${plural(found.num_tokens - found.tokens.length, "other token")}`) : null,
        steps.length > 1 ? null : el("p", { class: "dim" }, "Only one step came to it, so there is no curve.")),
      el("div", {}, scored(found.scores),
        steps.length > 1 ? curve(run, steps) : null,
        table("At each step", [th("step", true), th("mode"), th("came here", true), th("this token", true), th("p when sampled", true)],
          steps.map((each) => el("tr", {},
            el("td", { class: "num" }, el("a", { href: link(run, ["episode", each.episode_id]) }, String(each.step))), el("td", { class: "dim" }, each.mode),
            el("td", { class: "num" }, each.num), el("td", { class: "num" }, `${each.chose}`), el("td", { class: "num" }, number(each.p, 3))))))),
  ];
}

/** @param {number} share */
function bar(share) {
  const made = el("span", { class: "share" });
  made.style.width = `${(6 * share).toFixed(2)}rem`;
  return [made, ` ${percent(share)}`];
}

/** @param {string} run @param {AtStep[]} steps */
function curve(run, steps) {
  const numbers = [...new Set(steps.map((each) => each.step))].sort((a, b) => a - b);
  const sums = numbers.map((step) => steps.filter((each) => each.step === step));
  const total = (/** @type {AtStep[]} */ list, /** @type {"num" | "chose"} */ name) => list.reduce((sum, each) => sum + each[name], 0);
  const probability = (/** @type {AtStep[]} */ list) => {
    const known = list.filter((each) => each.p !== null);
    return known.length ? known.reduce((sum, each) => sum + each.chose * /** @type {number} */ (each.p), 0) / total(known, "chose") : null;
  };
  return figure({
    title: "This token after this text", steps: numbers, isShare: true,
    series: [
      { name: "share of the episodes that came here", values: sums.map((list) => total(list, "chose") / total(list, "num")), points: true },
      { name: "its probability where it was sampled", values: sums.map(probability), points: true },
    ],
    href: (step) => link(run, ["episode", steps.find((each) => each.step === step)?.episode_id ?? ""]),
  });
}

/** @param {{step: number, logprob: number}[]} scores */
function scored(scores) {
  if (scores.length === 0) {
    return el("p", { class: "dim" }, "Its probability under each kept checkpoint is not computed: ", el("code", {}, "ajet inspect score"), " does it (see the commands for this episode).");
  }
  return figure({
    title: "Its probability under each checkpoint", isShare: true, steps: scores.map((each) => each.step),
    series: [{ name: "p", values: scores.map((each) => Math.exp(each.logprob)), points: true }],
  });
}
