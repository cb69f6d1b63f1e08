// One group: its members side by side, where they first part, and which tokens got credit.
import { earned, el, link, number, plural, rewardRange, strip, table, taskHeading, th } from "../dom.js";
import { get } from "../data.js";
import { blankWord, colourChoice, colourOf, sampledSpans, showNumbers, strongestOf } from "../tokens.js";
import { value } from "./episode.js";

const MAX_GIVEN = 400;

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, path, query, set }) {
  const [, step = "0", mode = "train", group_id = ""] = path;
  const data = await get("group", { run, step, mode, group_id });
  const colour = colourOf(query.colour ?? (data.has_signal === null ? "mask" : "advantage"));
  const at = (/** @type {string | null} */ name) => (name === null ? null : link(run, ["group", step, mode, name], query));
  const strongest = strongestOf(data.members.flatMap((/** @type {any} */ member) => member.turns.map((/** @type {any} */ turn) => turn.sampled)));
  const lanes = el("div", { class: "lanes", role: "region", "aria-label": "Members side by side", tabindex: 0 },
    data.members.map((/** @type {any} */ member) => lane(run, member, data.parting, colour, strongest)));
  showNumbers(lanes);
  const content = [
    taskHeading(data),
    el("p", { class: "pager" },
      data.previous === null ? null : el("a", { href: at(data.previous) }, "← previous group"),
      data.following === null ? null : el("a", { href: at(data.following) }, "next group →"),
      el("a", { href: link(run, ["task", data.task_id]) }, "this task through the steps")),
    el("p", {}, [
      plural(data.num_members, "member"), ...(data.reward === null ? [] : [`mean reward ${number(data.reward)}`, `variance ${number(data.variance)}`]),
      data.has_signal === null ? "not trained" : data.has_signal ? "with signal" : "without signal: every advantage is 0",
    ].join("  ·  "), "  ", strip(run, data.strip, rewardRange(data.strip))),
    data.expected ? el("p", {}, el("b", {}, `expected (${data.expected.name}) `), value(data.expected.value)) : null,
    parting(data),
    colourChoice(colour, (chosen) => set({ colour: chosen })),
    data.members.length < data.num_members ? el("p", { class: "dim" }, `The first ${data.members.length} members.`) : null,
    lanes,
  ].filter((each) => each !== null);
  return {
    title: `group ${group_id}`, content, previous: at(data.previous), following: at(data.following),
    crumbs: [[run, link(run)], [`step ${step}`, link(run, ["step", step], mode === "train" ? {} : { mode })], [`group ${group_id}`, null]],
  };
}

/** Says where episodes side by side part. `who` names one of them by its number.
 * @param {any} data @param {string} [all] @param {(number: number) => string} [who] */
export function parting(data, all = "The members", who = (member) => String(member + 1)) {
  const { parting: found } = data;
  if (found === null) {
    return data.num_members > 1 ? el("p", { class: "box" }, `${all} sampled the same tokens to the end: they do not part.`) : null;
  }
  const call = `call ${found.turn + 1}`;
  const isJudged = found.ways.some((/** @type {any} */ way) => way.reward !== null);
  if (found.of === "prompt") {
    return el("p", { class: "box" }, `${all} part in the prompt of ${call}, at token ${found.token + 1}: they were given different text, or not all made this call.`);
  }
  return el("section", { class: "box", "aria-label": "Where they part" },
    el("h2", {}, `They part at token ${found.token + 1} of ${call}`),
    found.shared.length
      ? el("p", {}, `${all} say `, el("code", {}, `${found.shared.length < found.token ? "…" : ""}${found.shared.join("")}`), ", then:")
      : el("p", {}, "It is the first token that the model chose:"),
    table("Ways to go on", [th("next token"), th("members"), th(`mean ${isJudged ? "reward" : "advantage"}`, true)], found.ways.map((/** @type {any} */ way) => el("tr", {},
      el("td", {}, way.text === null ? el("span", { class: "dim" }, "the reply ends") : el("code", {}, way.text.replaceAll("\n", "↵"))),
      el("td", {}, way.members.map(who).join(", ")),
      el("td", { class: "num" }, number(isJudged ? way.reward : way.advantage))))));
}

/** Returns the calls of one episode below one another. @param {string} run @param {any} member @param {any} parted
 * @param {import("../tokens.js").Colour} colour @param {number} strongest @param {string} [name] */
export function lane(run, member, parted, colour, strongest, name = `member ${member.rollout_index + 1}`) {
  const failed = !/^(ok|truncated)$/.test(member.status);
  return el("section", { class: "lane", "aria-label": name },
    el("h3", {}, el("a", { href: link(run, ["episode", member.episode_id], { colour }) }, name),
      el("span", { class: member.is_success ? "good" : failed ? "bad" : null }, earned(member)),
      el("span", { class: failed ? "bad" : "dim" }, member.status)),
    member.turns.length === 0 ? el("p", { class: "dim" }, "The model was not called.") : null,
    member.turns.map((/** @type {any} */ turn) => call(turn, parted, colour, strongest)));
}

/** @param {any} turn @param {any} parted @param {import("../tokens.js").Colour} colour @param {number} strongest */
function call(turn, parted, colour, strongest) {
  const marked = parted?.of === "reply" && parted.turn === turn.turn_index ? parted.token : null;
  const given = turn.given.length > MAX_GIVEN ? `${turn.given.slice(0, MAX_GIVEN)} …` : turn.given;
  const word = blankWord(turn.sampled, colour);
  return el("div", {},
    given ? el("p", { class: "given" }, given) : null,
    el("p", { class: "tokens" }, sampledSpans(turn.sampled, turn.turn_index, colour, strongest, marked)),
    word ? el("p", { class: "word" }, word) : null);
}
