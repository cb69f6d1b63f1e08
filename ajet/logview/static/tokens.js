// Shows tokens as text on a coloured ground: what was sampled, and what the prompt held.
import { byId, el } from "./dom.js";

/** @typedef {"mask" | "logprob" | "advantage"} Colour */
/** @typedef {{id: number, logprob?: number | null, advantage?: number | null, mask?: number}} Numbers */

/** @type {Record<Colour, string>} */
export const COLOURS = { mask: "loss mask", logprob: "log-probability", advantage: "advantage" };
const UNLIKELY = -5; // this log-probability and below gets the full colour
/** @type {WeakMap<Element, Numbers>} */
const numbers = new WeakMap();

/** @param {string | undefined} name @returns {Colour} */
export function colourOf(name) {
  return name === "logprob" || name === "advantage" ? name : "mask";
}

/** Returns the sampled tokens. The one at `marked` is where the members of a group part.
 * @param {import("./data.js").Sampled} sampled @param {Colour} colour @param {number} strongest
 * @param {number | null} [marked] */
export function sampledSpans({ ids, texts, logprobs, advantages, mask }, colour, strongest, marked = null) {
  return ids.map((id, index) => {
    const span = el("span", { class: index === marked ? "sampled parting" : "sampled" }, texts[index].replaceAll("\n", "↵\n"));
    const token = { id, logprob: logprobs[index], advantage: advantages?.[index] ?? null, mask: mask?.[index] ?? 0 };
    numbers.set(span, token);
    span.style.backgroundColor = ground(token, colour, strongest);
    return span;
  });
}

/** @param {{ids: number[], texts: string[]}} prompt */
export function contextSpans({ ids, texts }) {
  return ids.map((id, index) => {
    const span = el("span", { class: "context" }, texts[index]);
    numbers.set(span, { id });
    return span;
  });
}

/** Returns the largest size of an advantage. @param {import("./data.js").Sampled[]} all */
export function strongestOf(all) {
  return all.flatMap((sampled) => sampled.advantages ?? [])
    .reduce((/** @type {number} */ most, value) => Math.max(most, Math.abs(value ?? 0)), 1e-9);
}

/** Says in words what a colour would leave blank. @param {import("./data.js").Sampled} sampled @param {Colour} colour */
export function blankWord(sampled, colour) {
  if (sampled.ids.length === 0) return "no token was sampled";
  if (colour === "mask" && !sampled.mask?.some(Boolean)) return "no token is trained";
  if (colour === "advantage" && !sampled.advantages) return "no advantage: nothing of it was trained";
  if (colour === "advantage" && !sampled.advantages?.some((value) => value !== null && Math.abs(value) > 0)) {
    return "advantage 0 on every token: no signal";
  }
  const likely = sampled.logprobs.every((value) => value !== null && value > -0.05);
  return colour === "logprob" && likely ? "every token was nearly certain (p > 0.95)" : "";
}

/** @param {Numbers} token @param {Colour} colour @param {number} strongest */
function ground(token, colour, strongest) {
  if (colour === "mask") return token.mask ? "rgba(var(--green), .3)" : "rgba(var(--amber), .3)";
  if (colour === "logprob") return `rgba(var(--red), ${0.6 * Math.min(1, (token.logprob ?? 0) / UNLIKELY)})`;
  const hue = (token.advantage ?? 0) > 0 ? "--green" : "--red";
  return `rgba(var(${hue}), ${(0.5 * Math.abs(token.advantage ?? 0)) / strongest})`;
}

/** @param {Colour} colour */
export function legend(colour) {
  /** @type {Record<Colour, [string, string][]>} */
  const kinds = {
    mask: [["sampled and trained", "rgba(var(--green), .3)"], ["sampled, not trained", "rgba(var(--amber), .3)"]],
    logprob: [["likely", "transparent"], ["p = 0.1", "rgba(var(--red), .28)"], ["p < 0.01", "rgba(var(--red), .6)"]],
    advantage: [["worse than its group", "rgba(var(--red), .5)"], ["better", "rgba(var(--green), .5)"]],
  };
  return el("span", { class: "legend" }, kinds[colour].map(([text, background]) => {
    const mark = el("i", {}, text);
    mark.style.backgroundColor = background;
    return mark;
  }));
}

/** Returns the choice of a colour. @param {Colour} colour @param {(colour: string) => void} onChange */
export function colourChoice(colour, onChange) {
  return el("div", { class: "choice", role: "radiogroup", "aria-label": "Colour the tokens by" },
    Object.entries(COLOURS).map(([value, text]) => el("label", {},
      el("input", { type: "radio", name: "colour", value, checked: value === colour, change: () => onChange(value) }), text)),
    legend(colour));
}

/** Shows the exact numbers of a token under the pointer. @param {HTMLElement} place */
export function showNumbers(place) {
  place.addEventListener("mouseover", (event) => {
    const span = /** @type {Element} */ (event.target);
    const token = numbers.get(span);
    const box = byId("tip");
    box.hidden = !token;
    if (!token) return;
    const lines = [`id         ${token.id}`];
    if (token.logprob !== undefined) {
      const known = token.logprob !== null;
      lines.push(`logprob    ${known ? /** @type {number} */ (token.logprob).toFixed(4) : "–"}  (p ${known ? Math.exp(/** @type {number} */ (token.logprob)).toFixed(3) : "–"})`);
      lines.push(`advantage  ${token.advantage?.toFixed(4) ?? "–"}`, token.mask ? "trained" : "not trained");
    }
    box.textContent = lines.join("\n");
    const { left, bottom } = span.getClientRects()[0];
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - 260))}px`;
    box.style.top = `${Math.min(bottom + 6, innerHeight - 100)}px`;
  });
  place.addEventListener("mouseleave", () => (byId("tip").hidden = true));
}
