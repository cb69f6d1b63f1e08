// What the model saw before each call, one frame after another: an environment's board is then seen
// to move. Played, stepped through, by keys too.
import { el } from "./dom.js";
import { partsOf } from "./images.js";

const FRAME_MS = 700;
/** @typedef {{seen: (string | HTMLElement)[], did: string, call: number}} Frame */

/** Returns the frames of an episode. @param {import("./data.js").Turn[]} turns
 * @param {import("./images.js").Picture} picture @returns {Frame[]} */
export function framesOf(turns, picture) {
  // Without a history an observation may be the same as before, and so nothing new.
  const seen = (/** @type {import("./data.js").Turn} */ turn) => (turn.new_messages.length ? turn.new_messages : turn.messages.slice(-1));
  return turns.map((turn) => ({
    seen: seen(turn).filter((said) => said.role !== "system").flatMap((said, index) => [...(index ? ["\n"] : []), ...partsOf(said, picture)]),
    did: partsOf(turn.reply, picture).join("") || (turn.reply.tool_calls ?? []).map((/** @type {any} */ call) => `${call?.function?.name} ${call?.function?.arguments ?? ""}`).join("\n"),
    call: turn.turn_index + 1,
  }));
}

/** Returns the player. @param {Frame[]} frames @param {number} first the frame to begin with
 * @param {(frame: number) => void} onShow */
export function player(frames, first, onShow) {
  let at = Math.max(0, Math.min(frames.length - 1, first));
  /** @type {ReturnType<typeof setInterval> | null} */
  let timer = null;
  const seen = el("pre", { class: "frame", tabindex: 0, role: "region", "aria-label": "What the model saw" });
  const did = el("pre", { class: "frame did", tabindex: 0, role: "region", "aria-label": "What it did" });
  const place = el("span", { role: "status" });
  const slider = /** @type {HTMLInputElement} */ (el("input", {
    type: "range", min: 0, max: frames.length - 1, step: 1, "aria-label": "frame", input: () => go(Number(slider.value)),
  }));
  const play = el("button", { name: "play", click: () => toggle() });
  const show = () => {
    seen.replaceChildren(...(frames[at].seen.length ? frames[at].seen : ["(nothing new was said)"]));
    did.textContent = frames[at].did || "(no text)";
    place.textContent = `frame ${at + 1} of ${frames.length}, call ${frames[at].call}`;
    slider.value = String(at);
    play.textContent = timer === null ? "play" : "pause";
  };
  const stop = () => {
    if (timer !== null) clearInterval(timer);
    timer = null;
  };
  const go = (/** @type {number} */ to) => {
    stop();
    at = Math.max(0, Math.min(frames.length - 1, to));
    show();
    onShow(at);
  };
  const toggle = () => {
    if (timer !== null) return go(at);
    if (at === frames.length - 1) at = 0;
    timer = setInterval(() => {
      if (!seen.isConnected) return stop();
      if (at === frames.length - 1) return go(at);
      at += 1;
      return show();
    }, FRAME_MS);
    return show();
  };
  show();
  const element = el("section", { id: "frames", "aria-label": "Frames" },
    el("p", { class: "choices" }, el("button", { name: "frame-before", click: () => go(at - 1) }, "← before"), play,
      el("button", { name: "frame-next", click: () => go(at + 1) }, "next →"), slider, place),
    el("div", { class: "two" }, el("div", {}, el("h3", {}, "seen"), seen), el("div", {}, el("h3", {}, "done"), did)));
  return { element, step: (/** @type {number} */ by) => (by === 0 ? stop() : go(at + by)), toggle };
}
