// The calls of an episode as a tree: a call that goes on from an earlier one stands behind it on its
// timeline; one that begins anew, or leaves it in the middle, begins a timeline of its own.
import { el, fold, plural } from "./dom.js";

/** @typedef {import("./data.js").Turn} Turn */
/** @typedef {{agent: string, calls: Turn[], from: Turn | null, shared: number}} Timeline */

/** Returns the timelines, each behind the one that it leaves. @param {Turn[]} turns @returns {Timeline[]} */
export function timelinesOf(turns) {
  /** @type {Timeline[]} */
  const found = [];
  for (const turn of turns) {
    const base = turn.base_turn === null ? null : turns[turn.base_turn];
    const own = base && found.find((timeline) => timeline.calls.at(-1) === base);
    if (base && own && turn.prompt_kept === promptLength(base) + base.sampled.ids.length) own.calls.push(turn);
    else found.push({ agent: turn.agent_name, calls: [turn], from: base, shared: turn.prompt_kept });
  }
  return found;
}

/** @param {Turn} turn */
function promptLength(turn) {
  return turn.prompt_kept + turn.prompt.ids.length;
}

/** Returns the tree, or null where all calls are on one timeline. @param {Turn[]} turns */
export function tree(turns) {
  const found = timelinesOf(turns);
  if (found.length < 2) return null;
  const agents = [...new Set(found.map((timeline) => timeline.agent))];
  return fold(`Timelines: ${found.length} of ${plural(agents.length, "agent")}`, [
    el("ul", { class: "tree" }, found.filter((each) => parentOf(each, found) === null).map((each) => branch(each, found))),
  ], agents.length > 1);
}

/** @param {Timeline} timeline @param {Timeline[]} all */
function parentOf(timeline, all) {
  const { from, shared } = timeline;
  return from === null || shared === 0 ? null : all.find((each) => each !== timeline && each.calls.includes(from)) ?? null;
}

/** @param {Timeline} timeline @param {Timeline[]} all @returns {HTMLElement} */
function branch(timeline, all) {
  const below = all.filter((each) => parentOf(each, all) === timeline);
  const parent = parentOf(timeline, all);
  const begins = parent === null ? "" : ` leaves call ${/** @type {Turn} */ (timeline.from).turn_index + 1} after ${plural(timeline.shared, "token")}: `;
  return el("li", {}, el("b", {}, timeline.agent), begins, " ",
    timeline.calls.map((turn, index) => [index ? " → " : "", el("button", { class: "plain call", click: () => goTo(turn) },
      `call ${turn.turn_index + 1} (${plural(turn.sampled.ids.length, "token")})`)]),
    below.length ? el("ul", {}, below.map((each) => branch(each, all))) : null);
}

/** Scrolls to a call, and gives it the focus. @param {Turn} turn */
function goTo(turn) {
  const place = document.querySelector(`#turns [data-call="${turn.turn_index}"]`);
  if (!(place instanceof HTMLElement)) return;
  place.scrollIntoView({ block: "start" });
  place.focus({ preventScroll: true });
}
