// Answers from what a page that was exported as one file holds (ajet/read/logview/page_file.py), where
// there is no server: what it does for lists, on the rows of the file.

/** @typedef {import("./data.js").Row} Row */

const SORTS = { step: "id", task: "task_id", turns: "num_turns", tokens: "num_sampled_tokens" };
const TASK_SORTS = { episodes: "num", steps: "num_steps", task: "task_id" };

/** Returns what the file holds, or null where the page comes from a server. @returns {Promise<Record<string, any>> | null} */
export function storedAnswers() {
  const packed = document.getElementById("stored")?.textContent;
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** @param {Record<string, any>} answers @param {string} what @param {Record<string, string>} query */
export function storedAnswer(answers, what, query) {
  const { run, ...asked } = query;
  if (what === "episodes") return listed(answers, asked);
  if (what === "tasks") return tasks(answers.tasks, asked);
  const names = Object.keys(asked).sort();
  const key = what === "metrics" || names.length === 0 ? decodeURIComponent(what) : `${what}?${names.map((name) => `${name}=${asked[name]}`).join("&")}`;
  if (!(key in answers)) throw new Error("This file does not hold that: it is a part of a run, which `ajet view` shows whole.");
  return answers[key];
}

/** @param {Record<string, any>} answers @param {Record<string, string>} asked */
function listed(answers, asked) {
  /** @type {Row[]} */
  const rows = answers.episodes;
  const words = (asked.text ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const whole = (/** @type {Row} */ row) => answers[`episode/${row.episode_id}`];
  const turns = (/** @type {Row} */ row) => /** @type {import("./data.js").Turn[]} */ (whole(row).turns);
  const withoutImages = (/** @type {string} */ name, /** @type {any} */ value) => (name === "image" ? undefined : value);
  const said = (/** @type {Row} */ row) => `${row.query} ${JSON.stringify(turns(row).map((turn) => [turn.new_messages, turn.reply]), withoutImages)}`.toLowerCase();
  const calls = (/** @type {Row} */ row) => turns(row).flatMap((turn) => turn.reply.tool_calls ?? []);
  const within = (/** @type {number | null} */ value, /** @type {string} */ from, /** @type {string} */ to) =>
    (asked[from] === undefined || (value !== null && value >= Number(asked[from]))) && (asked[to] === undefined || (value !== null && value <= Number(asked[to])));
  const found = rows.filter((row) => ["mode", "status", "task_id"].every((name) => asked[name] === undefined || String(row[/** @type {"mode"} */ (name)]) === asked[name])
    && (asked.is_success === undefined || String(row.is_success) === asked.is_success)
    && within(row.step, "first_step", "last_step") && within(row.reward, "min_reward", "max_reward")
    && within(row.num_sampled_tokens, "min_tokens", "max_tokens") && within(row.staleness, "min_staleness", "")
    && (asked.tag === undefined || whole(row).task?.metadata?.tag === asked.tag)
    && (asked.agent === undefined || turns(row).some((turn) => turn.agent_name === asked.agent))
    && (asked.tool === undefined || calls(row).some((call) => call?.function?.name === asked.tool))
    && (words.length === 0 || words.every((word) => said(row).includes(word))));
  const ordered = sorted(found, asked.sort ?? "-step", SORTS);
  return { episodes: asked.limit ? ordered.slice(0, Number(asked.limit)) : ordered, next: null, count: found.length };
}

/** @param {Record<string, any>} by_mode @param {Record<string, string>} asked */
function tasks(by_mode, asked) {
  const mode = asked.mode ?? (by_mode.train ? "train" : Object.keys(by_mode)[0]);
  const sort = asked.sort ?? "change";
  const found = by_mode[mode]?.tasks.filter((/** @type {any} */ task) => asked.solved !== "never" || task.successes === 0) ?? [];
  return { ...by_mode[mode], sort, next: null, tasks: sorted(found, sort, TASK_SORTS) };
}

/** @template {Record<string, any>} T @param {T[]} rows @param {string} sort @param {Record<string, string>} names @returns {T[]} */
function sorted(rows, sort, names) {
  const name = sort.replace("-", "");
  const key = names[name] ?? name;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => {
    if (a[key] === b[key]) return 0;
    if (a[key] === null || b[key] === null) return a[key] === null ? 1 : -1;
    return a[key] < b[key] ? -sign : sign;
  });
}
