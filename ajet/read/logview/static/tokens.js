// Shows tokens as text on a coloured ground: what was sampled, and what the prompt held.
import { byId, el, plural } from "./dom.js";

/** @typedef {"mask" | "logprob" | "advantage" | "ratio" | "clip" | "entropy" | "kl"} Colour */
/** @typedef {import("./data.js").Sampled} Sampled */
/**
 * The numbers of one token. A sampled one has a place: its call and its index in it.
 * @typedef {{id: number, text: string, place?: [number, number], logprob?: number | null, advantage?: number | null,
 *   mask?: number, policy?: number | null, ratio?: number | null, entropy?: number | null, kl?: number | null, cuts?: string[]}} Numbers
 */

/** @type {Record<Colour, string>} */
export const COLOURS = {
  mask: "loss mask", logprob: "log-probability", advantage: "advantage", ratio: "ratio", clip: "clip", entropy: "entropy", kl: "KL to the reference",
};
const UNLIKELY = -5; // this log-probability and below gets the full colour
const FAR = Math.log(1.5); // this log-ratio of the loss and beyond
const UNSURE = 2.5; // this entropy in nats and above
const APART = 1; // this log-ratio to the reference and beyond
const NOT_COMPUTED = "the update did not compute this call";
const [GREEN, RED, AMBER] = ["--green", "--red", "--amber"];
/** @type {WeakMap<Element, Numbers>} */
const numbers = new WeakMap();

/** @param {string | undefined} name @returns {Colour} */
export function colourOf(name) {
  return name !== undefined && name in COLOURS ? /** @type {Colour} */ (name) : "mask";
}

/** Returns the numbers of the token at an index of what a call sampled.
 * @param {Sampled} sampled @param {number} index @param {number} turn @returns {Numbers} */
export function numbersAt(sampled, index, turn) {
  const at = (/** @type {(number | null)[] | null} */ values) => values?.[index] ?? null;
  return {
    id: sampled.ids[index], text: sampled.texts[index], place: [turn, index], logprob: at(sampled.logprobs), advantage: at(sampled.advantages),
    mask: sampled.mask?.[index] ?? 0, policy: at(sampled.policy_logprobs), ratio: at(sampled.ratios), entropy: at(sampled.entropies), kl: at(sampled.kl),
    cuts: Object.keys(sampled.cuts).filter((name) => sampled.cuts[name].includes(index)),
  };
}

/** Returns the sampled tokens. The one at `marked` is where the members of a group part.
 * @param {Sampled} sampled @param {number} turn @param {Colour} colour @param {number} strongest
 * @param {number | null} [marked] @param {number | null} [chosen] */
export function sampledSpans(sampled, turn, colour, strongest, marked = null, chosen = null) {
  return sampled.ids.map((_, index) => {
    const kinds = ["sampled", index === marked ? "parting" : "", index === chosen ? "chosen" : ""];
    const span = el("span", { class: kinds.filter(Boolean).join(" ") }, sampled.texts[index].replaceAll("\n", "↵\n"));
    const token = numbersAt(sampled, index, turn);
    numbers.set(span, token);
    span.style.backgroundColor = ground(token, colour, strongest);
    return span;
  });
}

/** Marks the chosen token among those of a place, and no other, and brings it into sight.
 * @param {HTMLElement} place @param {[number, number] | null} chosen */
export function markChosen(place, chosen) {
  for (const span of place.querySelectorAll(".sampled")) {
    const at = numbers.get(span)?.place;
    const isChosen = Boolean(chosen && at && at[0] === chosen[0] && at[1] === chosen[1]);
    span.classList.toggle("chosen", isChosen);
    if (isChosen) span.scrollIntoView({ block: "nearest" });
  }
}

/** Returns the tokens of a prompt; those of an image are one box.
 * @param {import("./data.js").Prompt} prompt @param {import("./images.js").Picture} picture */
export function contextSpans({ ids, texts }, picture) {
  return ids.flatMap((id, index) => {
    if (id === "") return [];
    if (typeof id === "string") {
      const next = ids.findIndex((other, at) => at > index && other !== "");
      return [el("span", { class: "context pixels" }, picture(id), plural((next < 0 ? ids.length : next) - index, "token"))];
    }
    const span = el("span", { class: "context" }, texts[index]);
    numbers.set(span, { id, text: texts[index] });
    return [span];
  });
}

/** Returns the largest size of an advantage. @param {Sampled[]} all */
export function strongestOf(all) {
  return all.flatMap((sampled) => sampled.advantages ?? [])
    .reduce((/** @type {number} */ most, value) => Math.max(most, Math.abs(value ?? 0)), 1e-9);
}

/** Says in words what a colour would leave blank. @param {Sampled} sampled @param {Colour} colour */
export function blankWord(sampled, colour) {
  if (sampled.ids.length === 0) return "no token was sampled";
  const every = (/** @type {(number | null)[] | null} */ values, /** @type {(value: number) => boolean} */ test) =>
    Boolean(values?.every((value) => value === null || test(value)));
  /** @type {Record<Colour, () => string>} */
  const words = {
    mask: () => (sampled.mask?.some(Boolean) ? "" : "no token is trained"),
    logprob: () => (every(sampled.logprobs, (value) => value > -0.05) ? "every token was nearly certain (p > 0.95)" : ""),
    advantage: () => {
      if (!sampled.advantages) return "no advantage: nothing of it was trained";
      return every(sampled.advantages, (value) => value === 0) ? "advantage 0 on every token: no signal" : "";
    },
    ratio: () => {
      if (!sampled.ratios) return `no ratio: ${NOT_COMPUTED}`;
      return every(sampled.ratios, (value) => Math.abs(value - 1) < 0.01) ? "every ratio is within 0.01 of 1" : "";
    },
    clip: () => {
      if (!sampled.ratios) return `no clip: ${NOT_COMPUTED}`;
      return Object.keys(sampled.cuts).length ? "" : "no bound of the loss acted on a token";
    },
    entropy: () => {
      if (!sampled.entropies) return `no entropy: ${NOT_COMPUTED}`;
      return every(sampled.entropies, (value) => value < 0.1) ? "the policy was nearly certain at every token (entropy below 0.1)" : "";
    },
    kl: () => {
      if (!sampled.kl) return `no KL: the run kept no reference, or ${NOT_COMPUTED}`;
      return every(sampled.kl, (value) => Math.abs(value) < 0.01) ? "within 0.01 of the reference at every token" : "";
    },
  };
  return words[colour]();
}

/** @param {string} hue @param {number} share between 0 and 1 */
function tint(hue, share) {
  return `rgba(var(${hue}), ${(0.55 * Math.max(0, Math.min(1, share))).toFixed(3)})`;
}

/** @param {Numbers} token @param {Colour} colour @param {number} strongest */
function ground(token, colour, strongest) {
  const { logprob, advantage, ratio, entropy, kl } = token;
  switch (colour) {
    case "mask": return tint(token.mask ? GREEN : AMBER, 0.55);
    case "logprob": return tint(RED, (logprob ?? 0) / UNLIKELY);
    case "advantage": return tint((advantage ?? 0) > 0 ? GREEN : RED, Math.abs(advantage ?? 0) / strongest);
    case "ratio": return tint((ratio ?? 1) > 1 ? GREEN : RED, Math.abs(Math.log(ratio ?? 1)) / FAR);
    case "clip": return token.cuts?.length ? tint(token.cuts.includes("low") ? RED : AMBER, 0.9) : "";
    case "entropy": return tint(AMBER, (entropy ?? 0) / UNSURE);
    case "kl": return tint((kl ?? 0) > 0 ? GREEN : RED, Math.abs(kl ?? 0) / APART);
  }
}

/** @param {Colour} colour */
export function legend(colour) {
  /** @type {Record<Colour, [string, string][]>} */
  const kinds = {
    mask: [["sampled and trained", tint(GREEN, 0.55)], ["sampled, not trained", tint(AMBER, 0.55)]],
    logprob: [["likely", "transparent"], ["p = 0.1", tint(RED, 0.46)], ["p < 0.01", tint(RED, 1)]],
    advantage: [["worse than its group", tint(RED, 1)], ["better", tint(GREEN, 1)]],
    ratio: [["below 0.67", tint(RED, 1)], ["1", "transparent"], ["above 1.5", tint(GREEN, 1)]],
    clip: [["cut at the lower bound", tint(RED, 0.9)], ["at another", tint(AMBER, 0.9)]],
    entropy: [["sure", "transparent"], ["2.5 nats and more", tint(AMBER, 1)]],
    kl: [["less likely than to the reference", tint(RED, 1)], ["more likely", tint(GREEN, 1)]],
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

/** Returns the exact numbers of a sampled token, each with its name. @param {Numbers} token @returns {[string, string][]} */
export function facts(token) {
  const exact = (/** @type {number | null | undefined} */ value) => {
    if (value === null || value === undefined) return "–";
    return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : value.toFixed(4);
  };
  const p = (/** @type {number | null | undefined} */ logprob) => (logprob === null || logprob === undefined ? "" : `  (p ${Math.exp(logprob).toFixed(3)})`);
  return [
    ["id", String(token.id)], ["logprob", `${exact(token.logprob)}${p(token.logprob)}`], ["at update", `${exact(token.policy)}${p(token.policy)}`],
    ["advantage", exact(token.advantage)], ["ratio", exact(token.ratio)], ["clip", token.ratio === null ? "–" : token.cuts?.join(", ") || "none"],
    ["entropy", exact(token.entropy)], ["KL to ref.", exact(token.kl)], ["loss mask", token.mask ? "trained" : "not trained"],
  ];
}

/** Shows the exact numbers of a token under the pointer; `onChoose` gets a sampled one that is
 * clicked. @param {HTMLElement} place @param {(place: [number, number]) => void} [onChoose] */
export function showNumbers(place, onChoose) {
  place.addEventListener("mouseover", (event) => {
    const span = /** @type {Element} */ (event.target);
    const token = numbers.get(span);
    const box = byId("tip");
    box.hidden = !token;
    if (!token) return;
    const lines = token.place ? facts(token) : [["id", String(token.id)]];
    box.textContent = lines.map(([name, text]) => `${name.padEnd(11)}${text}`).join("\n");
    const { left, bottom, top } = span.getClientRects()[0];
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${bottom + 6 + box.offsetHeight > innerHeight ? Math.max(4, top - box.offsetHeight - 6) : bottom + 6}px`;
  });
  place.addEventListener("mouseleave", () => (byId("tip").hidden = true));
  if (onChoose) {
    place.classList.add("choosable");
    place.addEventListener("click", (event) => {
      const chosen = numbers.get(/** @type {Element} */ (event.target))?.place;
      if (chosen) onChoose(chosen);
    });
  }
}
