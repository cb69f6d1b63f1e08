// One episode's tokens: the prompt in grey, what was sampled on a coloured ground.
import { make } from "/static/app.js";

const UNLIKELY = -5; // this log-probability and below gets the full colour
const $ = (id) => document.getElementById(id);
const numbers = new WeakMap(); // span -> { id, logprob, advantage, mask } for colour and tip
let colour = "mask";

export function showTurns(place, turns) {
  place.replaceChildren(...turns.map((turn) => card(turn, turns)));
  colourBy(colour);
}

export function colourBy(name) {
  colour = name;
  document.querySelector(`#colours [value=${name}]`).checked = true;
  const spans = [...document.querySelectorAll(".sampled")];
  const strongest = Math.max(1e-9, ...spans.map((span) => Math.abs(numbers.get(span).advantage ?? 0)));
  for (const span of spans) span.style.backgroundColor = ground(numbers.get(span), strongest);
  $("legend").replaceChildren(...legend());
}

function ground(token, strongest) {
  if (colour === "mask") return token.mask ? "rgba(var(--green), .3)" : "rgba(var(--amber), .3)";
  if (colour === "logprob") return `rgba(var(--red), ${0.75 * Math.min(1, token.logprob / UNLIKELY)})`;
  const hue = token.advantage > 0 ? "--green" : "--red";
  return `rgba(var(${hue}), ${0.6 * Math.abs(token.advantage ?? 0) / strongest})`;
}

function legend() {
  const kinds = {
    mask: [["sampled and trained", "rgba(var(--green), .3)"], ["sampled, not trained", "rgba(var(--amber), .3)"]],
    logprob: [["likely", "transparent"], ["p = 0.1", "rgba(var(--red), .35)"], ["p < 0.01", "rgba(var(--red), .75)"]],
    advantage: [["worse than its group", "rgba(var(--red), .6)"], ["better", "rgba(var(--green), .6)"]],
  };
  return ["context is grey", ...kinds[colour].map(([text, background]) => {
    const mark = make("i", text);
    mark.style.backgroundColor = background;
    return mark;
  })];
}

function card(turn, turns) {
  const section = make("section", "", "turn");
  const title = make("h2", `call ${turn.turn_index + 1}`);
  const sampled = turn.sampled.ids.length;
  const prompt = turn.prompt_kept + turn.prompt.ids.length;
  const notes = [
    turn.agent_name === "default" ? "" : turn.agent_name, turn.trainable ? "" : "not trained",
    `${prompt} prompt tokens`, `${sampled} sampled`, turn.finish_reason,
    `policy ${turn.policy_version}`, turn.reward === null ? "" : `reward ${Number(turn.reward.toFixed(4))}`, `${turn.seconds.toFixed(2)} s`,
    ...Object.entries(turn.notes.malformed ?? {}).map(([name, why]) => `malformed, ${name}: ${why}`),
  ];
  title.append(...notes.filter(Boolean).map((note) => make("span", note)));
  section.append(title, tokens(turn, turns));
  return section;
}

function tokens(turn, turns) {
  const text = make("p", "", "tokens");
  if (turn.base_turn !== null) text.append(earlier(turn, turns));
  text.append(...contextSpans(turn.prompt), ...sampledSpans(turn.sampled));
  return text;
}

// The part of the prompt that an earlier call has already shown: one button, unfolded in place.
function earlier(turn, turns) {
  const base = turns[turn.base_turn];
  const whole = wholePrompt(base, turns).ids.length + base.sampled.ids.length;
  const how = turn.prompt_kept === whole ? "goes on from" : "begins like";
  const button = make("button", `… ${how} call ${turn.base_turn + 1}: show its ${turn.prompt_kept} tokens`);
  button.addEventListener("click", () => {
    const all = wholePrompt(turn, turns);
    const kept = { ids: all.ids.slice(0, turn.prompt_kept), texts: all.texts.slice(0, turn.prompt_kept) };
    button.replaceWith(...contextSpans(kept));
  });
  return button;
}

function wholePrompt(turn, turns) {
  if (turn.base_turn === null) return turn.prompt;
  const base = turns[turn.base_turn];
  const before = wholePrompt(base, turns);
  const join = (name) => [
    ...[...before[name], ...base.sampled[name]].slice(0, turn.prompt_kept), ...turn.prompt[name],
  ];
  return { ids: join("ids"), texts: join("texts") };
}

function contextSpans({ ids, texts }) {
  return ids.map((id, index) => {
    const span = make("span", texts[index], "context");
    numbers.set(span, { id });
    return span;
  });
}

function sampledSpans({ ids, texts, logprobs, advantages, mask }) {
  return ids.map((id, index) => {
    const span = make("span", texts[index].replaceAll("\n", "↵\n"), "sampled");
    numbers.set(span, {
      id, logprob: logprobs[index], advantage: advantages?.[index] ?? null, mask: mask?.[index] ?? 0,
    });
    return span;
  });
}

$("turns").addEventListener("mouseover", (event) => {
  const token = numbers.get(event.target);
  $("tip").hidden = !token;
  if (!token) return;
  const lines = [`id         ${token.id}`];
  if (token.logprob !== undefined) {
    lines.push(`logprob    ${token.logprob?.toFixed(4) ?? "–"}  (p ${Math.exp(token.logprob).toFixed(3)})`);
    lines.push(`advantage  ${token.advantage?.toFixed(4) ?? "–"}`, token.mask ? "trained" : "not trained");
  }
  $("tip").textContent = lines.join("\n");
  const { left, bottom } = event.target.getClientRects()[0];
  $("tip").style.left = `${Math.max(8, Math.min(left, innerWidth - 260))}px`;
  $("tip").style.top = `${Math.min(bottom + 6, innerHeight - 100)}px`;
});
$("turns").addEventListener("mouseleave", () => ($("tip").hidden = true));
