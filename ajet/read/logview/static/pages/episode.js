// One episode: what was expected and answered, how it was judged, then call by call what was said.
import { earned, el, fold, link, number, plural, said, short, taskHeading } from "../dom.js";
import { get } from "../data.js";
import { blankWord, colourChoice, colourOf, contextSpans, markChosen, sampledSpans, showNumbers, strongestOf } from "../tokens.js";
import { framesOf, player } from "../frames.js";
import { partsOf, picturesOf } from "../images.js";
import { tree } from "../timelines.js";
import { chosenToken, neighbour, tokenPanel } from "../token_panel.js";

/** @typedef {import("../data.js").Turn} Turn */
/** @typedef {import("../images.js").Picture} Picture */

const MAX_SHOWN = 1500; // characters of a message before the rest is folded

/** @param {import("../app.js").Place} place @returns {Promise<import("../app.js").Page>} */
export async function show({ run, path, query, set }) {
  const id = path[1] ?? "";
  const data = await get(`episode/${encodeURIComponent(id)}`, { run });
  const colour = colourOf(query.colour ?? (data.turns.some((/** @type {Turn} */ turn) => turn.sampled.advantages) ? "advantage" : "mask"));
  const picture = picturesOf(run, data.images);
  const isTokens = query.view === "tokens";
  const isFrames = query.view === "frames" && (data.turns.length > 0 || data.picture);
  const at = data.members.findIndex((/** @type {any} */ member) => member.episode_id === id);
  const to = (/** @type {number} */ index) => (data.members[index] ? link(run, ["episode", data.members[index].episode_id], query) : null);
  const strongest = strongestOf(data.turns.map((/** @type {Turn} */ turn) => turn.sampled));
  let chosen = chosenToken(query.token, data.turns);
  const panel = el("div", { id: "token" });
  // The episode may be large, so its page stays while one token after another is looked at.
  const choose = (/** @type {Chosen} */ at) => {
    chosen = at;
    set({ token: at === null ? null : at.join(".") }, true);
    markChosen(turns, at);
    const name = document.activeElement?.getAttribute("name");
    panel.replaceChildren(...(at ? [tokenPanel(run, data, at, choose)] : []));
    const again = name && panel.querySelector(`[name="${name}"]`);
    if (again instanceof HTMLElement) again.focus({ preventScroll: true });
  };
  if (chosen) {
    panel.append(tokenPanel(run, data, chosen, choose));
    setTimeout(() => markChosen(turns, chosen)); // once the page is there
  }
  const turns = el("div", { id: "turns" }, data.turns.map((/** @type {Turn} */ turn) => card(turn, data.turns, isTokens, picture, colour, strongest, chosen)));
  showNumbers(turns, choose);
  const frames = isFrames && data.turns.length ? player(framesOf(data.turns, picture), Number(query.frame ?? 1) - 1, (frame) => set({ frame: frame + 1 }, true)) : null;
  const commands = el("div", {});
  get("origin", { run }).then((origin) => commands.replaceChildren(...copyable(origin, id, chosen ? chosen[0] : data.turns.length - 1)))
    .catch((error) => commands.replaceChildren(el("p", { class: "dim" }, error.message)));
  const group = link(run, ["group", data.step, data.mode, data.group_id]);
  const content = [
    taskHeading(data),
    el("p", { class: "pager" }, "members ", data.members.map((/** @type {any} */ member, /** @type {number} */ index) => el("a", {
      href: to(index), class: member.is_success ? "good" : null, "aria-current": index === at ? "page" : null,
      title: `${earned(member)}, ${member.status}`,
    }, String(member.rollout_index + 1))),
    el("a", { href: group }, "side by side"), el("a", { href: link(run, ["task", data.task_id]) }, "this task through the steps")),
    verdict(data),
    facts(data),
    forksOf(run, data),
    waterfall(data),
    tree(data.turns),
    el("div", { class: "choices", role: "group", "aria-label": "How the episode is shown" },
      el("button", { name: "view-conversation", "aria-pressed": String(!isTokens && !isFrames), click: () => set({ view: null, frame: null }) }, "conversation"),
      el("button", { name: "view-tokens", "aria-pressed": String(isTokens), click: () => set({ view: "tokens", frame: null }) }, "every token"),
      data.turns.length > 1 || data.picture ? el("button", { name: "view-frames", "aria-pressed": String(isFrames), click: () => set({ view: "frames", token: null }) }, "frames") : null),
    isFrames && data.picture ? el("img", { class: "picture", src: data.picture, alt: "the environment, drawn after each step" }) : null,
    frames ? frames.element : colourChoice(colour, (chosen) => set({ colour: chosen })),
    data.turns.length === 0 ? el("p", { class: "box" }, "The model was not called in this episode.") : frames ? null : turns,
    frames ? null : panel,
    fold("Commands for this episode", [commands]),
    fold("Everything else that was recorded", [el("pre", {}, rest(data))]),
  ].filter((each) => each !== null);
  return {
    title: data.query || id, content, previous: to(at - 1), following: to(at + 1),
    step: (by) => (frames ? frames.step(by) : choose(by === 0 ? null : neighbour(data.turns, chosen, by))), play: frames?.toggle,
    crumbs: [[run, link(run)], [`step ${data.step}`, link(run, ["step", data.step], data.mode === "train" ? {} : { mode: data.mode })],
      [`group ${data.group_id}`, group], [`episode ${id}`, null]],
  };
}

/** Returns a recorded value: text as it is, anything else as JSON. @param {any} recorded */
export function value(recorded) {
  const compact = typeof recorded === "string" ? recorded : JSON.stringify(recorded);
  const text = compact.length > 300 && typeof recorded !== "string" ? JSON.stringify(recorded, null, 1) : compact;
  return el(text.includes("\n") || text.length > 90 ? "pre" : "code", {}, text);
}

/** @param {any} data */
function verdict(data) {
  const failed = !/^(ok|truncated)$/.test(data.status);
  const ofAgents = Object.entries(data.agent_rewards).map(([name, reward]) => [`agent ${name}`, reward]);
  const judged = [...Object.entries(data.reward_breakdown), ...ofAgents];
  const reason = data.metadata.judge_reason;
  const success = data.is_success === null ? "not judged" : data.is_success ? "success" : "no success";
  return el("section", { class: "verdict", "aria-label": "Result" },
    el("p", { class: "headline" }, el("b", { class: data.is_success ? "good" : data.is_success === null && !failed ? null : "bad" }, earned(data)), `  ${success}`,
      data.status === "ok" && data.ended_as === "ok" ? null
        : el("span", { class: failed ? "bad" : "dim" }, `  ${data.status}${data.ended_as === data.status ? "" : ` (ended as ${data.ended_as})`}`)),
    data.error ? el("pre", { class: "bad" }, data.error) : null,
    el("dl", {},
      answer("expected", data.expected, "the task names no answer"), answer("answered", data.final_answer, "nothing"),
      judged.length ? [el("dt", {}, "judged"), el("dd", {}, judged.map(([name, part]) => el("span", { class: "part" }, `${name} ${short(/** @type {number} */ (part))}`)))] : null,
      reason ? [el("dt", {}, "because"), el("dd", {}, value(reason))] : null));
}

/** @param {string} word @param {import("../data.js").Named | null} named @param {string} otherwise */
function answer(word, named, otherwise) {
  return [el("dt", {}, named ? `${word} (${named.name})` : word), el("dd", {}, named ? value(named.value) : el("span", { class: "dim" }, otherwise))];
}

/** @param {any} data */
function facts(data) {
  const versions = [...new Set([data.min_policy_version, data.max_policy_version])].filter((each) => each !== null);
  /** @type {Record<string, string>} */
  const shown = {
    advantage: data.advantage === null ? "not trained" : number(data.advantage, 3), calls: String(data.turns.length),
    "sampled tokens": String(data.num_sampled_tokens), "policy version": versions.join(" to ") || "–", seconds: number(data.seconds),
    ...Object.fromEntries(Object.entries(data.log_metrics).map(([name, each]) => [name, short(/** @type {number} */ (each))])),
  };
  return el("p", { class: "facts" }, Object.entries(shown).map(([name, text]) => el("span", {}, el("b", {}, name), ` ${text}`)));
}

/** Lists what `ajet inspect fork` has tried from turns of this episode: the value of each, and the forks.
 * @param {string} run @param {any} data */
function forksOf(run, data) {
  /** @type {{folder: string, turn: number, model: string, num_forks: number, success: import("../data.js").Interval,
   *   reward: import("../data.js").Interval}[]} */
  const forks = data.forks;
  if (forks.length === 0) return null;
  const address = (/** @type {string} */ folder) => link(`${run}/forks/${folder}`, ["group", data.step, data.mode, data.group_id]);
  return el("section", { class: "box", "aria-label": "Forks" }, el("h2", {}, "what if it had acted otherwise"),
    el("ul", {}, forks.map((fork) => el("li", {}, el("a", { href: address(fork.folder) }, `${plural(fork.num_forks, "fork")} from call ${fork.turn + 1}`),
      ` succeed ${interval(fork.success)}, reward ${interval(fork.reward)}`, el("span", { class: "dim", title: fork.model }, ` by ${fork.model.split("/").at(-1)}`)))));
}

/** @param {import("../data.js").Interval} found */
function interval({ value, low, high }) {
  return `${number(value)} [${number(low)}, ${number(high)}]`;
}

/** Shows when the model worked and when the rest did: the calls as bars over the episode's time.
 * @param {any} data */
function waterfall(data) {
  /** @type {Turn[]} */
  const turns = data.turns;
  if (turns.every((turn) => turn.ended_s === 0)) return null; // no time was recorded
  /** @type {{ name: string, started_s: number, ended_s: number }[]} */
  const calls = data.calls;
  const begin = Math.min(...[...turns, ...calls].map((call) => call.started_s));
  const end = Math.max(...[...turns, ...calls].map((call) => call.ended_s), begin + 1e-6);
  const place = (/** @type {number} */ from, /** @type {number} */ to, /** @type {string} */ kind) => {
    const bar = el("span", { class: `bar ${kind}` });
    bar.style.marginLeft = `${(100 * (from - begin)) / (end - begin)}%`;
    bar.style.width = `${Math.max(0.3, (100 * (to - from)) / (end - begin))}%`;
    return bar;
  };
  const row = (/** @type {string} */ name, /** @type {number} */ from, /** @type {number} */ to, /** @type {string} */ kind) =>
    ({ from, shown: el("li", {}, el("span", {}, `${name}: ${number(to - from)} s`), place(from, to, kind)) });
  const models = turns.map((turn) => row(`call ${turn.turn_index + 1}${agent(turn)}`, turn.started_s, turn.ended_s, "model"));
  const others = calls.map((call) => row(call.name, call.started_s, call.ended_s, /^(the )?judge/.test(call.name) ? "judge" : "other"));
  const gaps = calls.length ? [] : turns.slice(1).map((turn, index) => row("tools, environment, waiting", turns[index].ended_s, turn.started_s, "other"))
    .filter((_, index) => turns[index + 1].started_s - turns[index].ended_s > 0.001);
  const rows = [...models, ...others, ...gaps].sort((one, other) => one.from - other.from).map((each) => each.shown);
  const judge = data.timings.judge_s === undefined ? "" : `, the judge ${short(data.timings.judge_s)} s`;
  const model = turns.reduce((sum, turn) => sum + turn.seconds, 0);
  return fold(`Time: ${number(end - begin)} s, of which the model ${number(model)} s${judge}`, [el("ol", { class: "waterfall" }, rows)]);
}

/** @param {Turn} turn */
function agent(turn) {
  return turn.agent_name === "default" ? "" : ` of ${turn.agent_name}`;
}

/** @typedef {[number, number] | null} Chosen */

/** Names the weights that sampled a call, and how many tokens each did if they changed in between. @param {Turn} turn */
function policyOf(turn) {
  const pieces = turn.notes.versions ?? [];
  if (!pieces.length) return `policy ${turn.policy_version}`;
  return `policy ${pieces.map((/** @type {number[]} */ [number, version]) => `${version} (${number} tokens)`).join(", ")}`;
}

/** @param {Turn} turn @param {Turn[]} turns @param {boolean} isTokens @param {Picture} picture @param {import("../tokens.js").Colour} colour
 * @param {number} strongest @param {Chosen} chosen */
function card(turn, turns, isTokens, picture, colour, strongest, chosen) {
  const sampled = turn.sampled.ids.length;
  const notes = [
    turn.trainable ? "" : "not trained", `${turn.prompt_kept + turn.prompt.ids.length} prompt tokens`, `${sampled} sampled`, turn.finish_reason,
    policyOf(turn), turn.notes.old_keys ? `${turn.notes.old_keys} tokens' keys of earlier weights` : "", turn.reward === null ? "" : `reward ${Number(turn.reward.toFixed(4))}`, `${turn.seconds.toFixed(2)} s`,
    turn.notes.grammar ? "sampled under a grammar" : "", turn.notes.summary ? "the summary of a compacted conversation" : "", turn.notes.reason ? `new branch: ${turn.notes.reason}` : "",
    ...Object.entries(turn.notes.malformed ?? {}).map(([name, why]) => `malformed, ${name}: ${why}`),
  ];
  const word = blankWord(turn.sampled, colour);
  return el("section", { class: "turn", "aria-label": `call ${turn.turn_index + 1}`, "data-call": turn.turn_index, tabindex: -1 },
    el("h2", {}, `call ${turn.turn_index + 1}${agent(turn)}`, notes.filter(Boolean).map((note) => el("span", {}, note))),
    isTokens ? everyToken(turn, turns, picture, colour, strongest, chosen) : conversation(turn, picture, colour, strongest, chosen),
    word ? el("p", { class: "word" }, word) : null);
}

/** @param {Turn} turn @param {Picture} picture @param {import("../tokens.js").Colour} colour @param {number} strongest @param {Chosen} chosen */
function conversation(turn, picture, colour, strongest, chosen) {
  const tools = turn.base_turn === null ? turn.tools : null;
  return [
    tools?.length ? el("div", { class: "message" }, fold(`${plural(tools.length, "tool")}: ${tools.map(toolName).join(", ")}`, [el("pre", {}, JSON.stringify(tools, null, 2))])) : null,
    turn.base_turn !== null && turn.new_messages.length === 0
      ? el("div", { class: "message" }, el("p", { class: "dim" }, `The messages are those of call ${turn.base_turn + 1} once more.`)) : null,
    turn.new_messages.map((said) => message(said, picture)),
    el("div", { class: "message reply" }, el("h3", {}, "model"),
      turn.sampled.ids.length ? el("p", { class: "tokens" }, spans(turn, colour, strongest, chosen)) : el("p", { class: "dim" }, "given, not sampled: ", partsOf(turn.reply, picture)),
      calls(turn.reply)),
  ];
}

/** @param {any} tool */
function toolName(tool) {
  return tool?.function?.name ?? tool?.name ?? "unnamed";
}

/** @param {any} given @param {Picture} picture */
function message(given, picture) {
  const role = String(given.role ?? "message");
  const parts = partsOf(given, picture);
  const length = parts.reduce((sum, part) => sum + (typeof part === "string" ? part.length : 0), 0);
  if (role === "system") return el("div", { class: "message" }, fold(`system prompt, ${plural(length, "character")}`, [el("pre", {}, parts)]));
  const title = role === "tool" ? `result${given.name ? ` of ${given.name}` : ""}` : role;
  return el("div", { class: `message ${role}` }, el("h3", {}, title),
    parts.length ? parts.map((part) => (typeof part === "string" ? long(part) : part)) : el("p", { class: "dim" }, "no text"), calls(given));
}

/** Shows the beginning of a long text, and the rest when asked. @param {string} text */
function long(text) {
  if (text.length <= MAX_SHOWN) return said(text);
  return el("div", {}, said(text.slice(0, MAX_SHOWN)),
    fold(`… ${(text.length - MAX_SHOWN).toLocaleString("en")} more characters`, [said(text.slice(MAX_SHOWN))]));
}

/** @param {any} said */
function calls(said) {
  if (!Array.isArray(said.tool_calls)) return null;
  return said.tool_calls.map((/** @type {any} */ each) => {
    const text = String(each?.function?.arguments ?? "");
    return fold(el("code", {}, `${toolName(each)} ${text.length > 70 ? `${text.slice(0, 70)} …` : text}`), [el("pre", {}, pretty(text))]);
  });
}

/** Returns a call's arguments with one on each line, and line ends as such. @param {string} text */
function pretty(text) {
  try {
    const found = JSON.parse(text);
    return Object.entries(found).map(([name, each]) => `${name} = ${typeof each === "string" ? each : JSON.stringify(each)}`).join("\n");
  } catch {
    return text;
  }
}

/** @param {Turn} turn @param {import("../tokens.js").Colour} colour @param {number} strongest @param {Chosen} chosen */
function spans(turn, colour, strongest, chosen) {
  return sampledSpans(turn.sampled, turn.turn_index, colour, strongest, null, chosen?.[0] === turn.turn_index ? chosen[1] : null);
}

/** @param {Turn} turn @param {Turn[]} turns @param {Picture} picture @param {import("../tokens.js").Colour} colour @param {number} strongest @param {Chosen} chosen */
function everyToken(turn, turns, picture, colour, strongest, chosen) {
  return el("p", { class: "tokens" }, turn.base_turn === null ? null : earlier(turn, turns, picture),
    contextSpans(turn.prompt, picture), spans(turn, colour, strongest, chosen));
}

/** Returns a button for the part of the prompt that an earlier call has already shown; it unfolds in
 * place. @param {Turn} turn @param {Turn[]} turns @param {Picture} picture */
function earlier(turn, turns, picture) {
  const base = turns[/** @type {number} */ (turn.base_turn)];
  const whole = wholePrompt(base, turns).ids.length + base.sampled.ids.length;
  const how = turn.prompt_kept === whole ? "goes on from" : "begins like";
  const button = el("button", {
    click: () => {
      const all = wholePrompt(turn, turns);
      button.replaceWith(...contextSpans({ ids: all.ids.slice(0, turn.prompt_kept), texts: all.texts.slice(0, turn.prompt_kept) }, picture));
    },
  }, `… ${how} call ${base.turn_index + 1}: show its ${turn.prompt_kept} tokens`);
  return button;
}

/** @param {Turn} turn @param {Turn[]} turns @returns {import("../data.js").Prompt} */
function wholePrompt(turn, turns) {
  if (turn.base_turn === null) return turn.prompt;
  const base = turns[turn.base_turn];
  const before = wholePrompt(base, turns);
  return {
    ids: [...[...before.ids, ...base.sampled.ids].slice(0, turn.prompt_kept), ...turn.prompt.ids],
    texts: [...[...before.texts, ...base.sampled.texts].slice(0, turn.prompt_kept), ...turn.prompt.texts],
  };
}

/** @param {{folder: string, yaml: string | null, has_agent: boolean}} origin @param {string} id @param {number} turn */
function copyable({ folder, yaml, has_agent }, id, turn) {
  const quoted = (/** @type {string} */ text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
  const ofAgent = [
    `ajet inspect replay ${quoted(folder)} ${quoted(id)}`,
    `ajet inspect replay ${quoted(folder)} ${quoted(id)} --debugger pdb`,
    ...(turn < 0 ? [] : [`ajet inspect fork ${quoted(folder)} ${quoted(id)} --turn ${turn} -n 8`]),
  ];
  const commands = [
    ...(has_agent ? ofAgent : []),
    `ajet inspect score ${quoted(folder)} ${quoted(id)}`,
    ...(yaml && has_agent ? [`ajet debug --conf ${quoted(yaml)} --parallel 1`, `ajet eval --conf ${quoted(yaml)} --checkpoint ${quoted(folder)}`] : []),
  ];
  return commands.map((command) => el("p", { class: "command" }, el("code", {}, command), copyButton(command)));
}

/** @param {string} command */
function copyButton(command) {
  const button = el("button", {
    "aria-label": `copy ${command}`,
    click: () => navigator.clipboard.writeText(command).then(() => button.replaceChildren("copied"), () => button.replaceChildren("not allowed: select it")),
  }, "copy");
  return button;
}

/** @param {any} data */
function rest(data) {
  const { turns, members, ...others } = data;
  const spoken = turns.map((/** @type {Turn} */ turn) => ({ turn_index: turn.turn_index, tools: turn.tools, messages: turn.messages, reply: turn.reply, notes: turn.notes }));
  return JSON.stringify({ ...others, turns: spoken }, null, 2);
}
