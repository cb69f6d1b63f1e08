// The images that a model saw, in place of what stands for them in messages and prompts.
import { el } from "./dom.js";
import { imageAddress } from "./data.js";

const WIDEST = 256; // pixels of the page
const TALLEST = 512;

/** Makes the picture of the image with a key. @typedef {(key: string) => HTMLElement} Picture */

/** Returns what makes the pictures of an episode, whose images have these widths and heights. One that
 * the run does not hold is its name. @param {string} run @param {Record<string, [number, number]>} sizes @returns {Picture} */
export function picturesOf(run, sizes) {
  return (key) => {
    if (!Object.hasOwn(sizes, key)) return el("span", { class: "dim" }, `image ${key}, not in this run's images.sqlite`);
    const [width, height] = sizes[key];
    const fit = Math.min(WIDEST / width, TALLEST / height);
    const scale = fit > 1 ? Math.floor(fit) : fit; // whole pixels stay squares
    const words = `image ${key}, ${width} x ${height}`;
    const made = el("img", {
      class: scale > 1 ? "image small" : "image", alt: words, title: words, loading: "lazy",
      width: Math.max(1, Math.round(scale * width)), height: Math.max(1, Math.round(scale * height)),
    });
    imageAddress(run, key).then((address) => made.setAttribute("src", address)).catch(() => {}); // its words stay
    return made;
  };
}

/** Returns a message's content: texts, and the pictures between them.
 * @param {any} said @param {Picture} picture @returns {(string | HTMLElement)[]} */
export function partsOf({ content }, picture) {
  /** @type {(string | HTMLElement)[]} */
  const found = [];
  for (const part of Array.isArray(content) ? content : [content ?? ""]) {
    const shown = part?.type === "image" ? picture(String(part.image)) : part?.text ?? (typeof part === "string" ? part : JSON.stringify(part));
    if (typeof shown === "string" && typeof found.at(-1) === "string") found.push(found.pop() + shown);
    else if (shown !== "") found.push(shown);
  }
  return found;
}
