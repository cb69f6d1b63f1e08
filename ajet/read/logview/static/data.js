// Asks the server, or the file that the page is, for data. The types say what comes back (ajet/read/logview/run_page.py makes it).

import { storedAnswer, storedAnswers } from "./stored.js";

/**
 * @typedef {{state: "running" | "finished" | "stopped" | "failed" | "killed" | "unknown", begun: string | null,
 *   seconds: number | null, step: number, total_steps: number | null, seconds_left: number | null,
 *   model: string | null}} Status
 * @typedef {{key: string, value: string, is_default: boolean}} ConfigKey
 * @typedef {{episode_id: string, rollout_index: number, reward: number | null, advantage: number | null,
 *   is_success: boolean | null, status: string}} Member
 * @typedef {Member & {id: number, step: number, mode: string, group_id: string, task_id: string,
 *   ended_as: string, num_turns: number, num_sampled_tokens: number, staleness: number | null,
 *   min_policy_version: number | null, max_policy_version: number | null, seconds: number,
 *   query: string, error: string | null}} Row
 * @typedef {{step: number, name: string, text: string}} Warning
 * @typedef {{headline: string, advice: string, causes: {name: string, found: string, change: string, episode_id: string | null}[]}} Why
 * @typedef {{steps: number[], series: Record<string, (number | null)[]>, names: string[],
 *   warnings: Warning[]}} Metrics
 * @typedef {{value: number, low: number, high: number}} Interval
 * @typedef {{task_id: string, query: string, before: [number, number], after: [number, number]}} Change
 * @typedef {{steps: number[], before: (Interval & {step: number, num_tasks: number}) | null,
 *   after: (Interval & {step: number, num_tasks: number}) | null, difference: Interval | null,
 *   second: {decoding: string, before: number, after: number | null} | null,
 *   num_rose: number, num_fell: number, num_same: number, rose: Change[], fell: Change[]}} Changes
 * @typedef {{group_id: string, task_id: string, query: string, reward: number | null,
 *   variance: number | null, tokens: number, seconds: number, has_signal: boolean | null,
 *   strip: Member[]}} GroupRow
 * @typedef {{ids: number[], texts: string[], logprobs: (number | null)[],
 *   advantages: (number | null)[] | null, mask: number[] | null, policy_logprobs: (number | null)[] | null,
 *   ratios: (number | null)[] | null, entropies: (number | null)[] | null, kl: (number | null)[] | null,
 *   cuts: Record<string, number[]>}} Sampled
 * The id of an image's first token is the image's key, those of its others are "".
 * @typedef {{ids: (number | string)[], texts: string[]}} Prompt
 * @typedef {{turn_index: number, agent_name: string, trainable: boolean, finish_reason: string,
 *   policy_version: number, reward: number | null, seconds: number, started_s: number,
 *   ended_s: number, base_turn: number | null, prompt_kept: number, tools: any[] | null,
 *   messages: any[], new_messages: any[], reply: any, notes: Record<string, any>,
 *   prompt: Prompt, sampled: Sampled}} Turn
 * @typedef {{name: string, value: any}} Named
 */

const stored = storedAnswers();

/**
 * Returns the answer to a question about a run. An empty value is not asked for.
 * @param {string} what @param {Record<string, any>} [query] @returns {Promise<any>}
 */
export async function get(what, query = {}) {
  const used = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const asked = used.map(([name, value]) => [name, String(value)]);
  if (stored) return storedAnswer(await stored, what, Object.fromEntries(asked));
  const response = await fetch(`/api/${what}?${new URLSearchParams(asked)}`);
  const data = await response.json();
  if (!response.ok) throw new Error(data.error);
  return data;
}

/** Returns the address of an image of a run's prompts. @param {string} run @param {string} key @returns {Promise<string>} */
export async function imageAddress(run, key) {
  return stored ? get(`image/${key}`) : `/api/image/${key}?${new URLSearchParams({ run })}`;
}

const AGAIN_MS = 10_000; // until the next try where the server has no stream left

/** Tells when a run has written more. The stream is open only while the page is seen, since a
 * browser has few connections to one server.
 * @param {(news: {run: string, step: number}) => void} onNews */
export function listen(onNews) {
  /** @type {EventSource | null} */
  let stream = null;
  const look = () => {
    if (document.hidden) {
      stream?.close();
      stream = null;
    } else if (stream === null) {
      stream = new EventSource("/api/events");
      stream.onmessage = (event) => onNews(JSON.parse(event.data));
      stream.onerror = () => {
        if (stream?.readyState !== EventSource.CLOSED) return; // else the browser tries again itself
        stream = null;
        setTimeout(look, AGAIN_MS);
      };
    }
  };
  if (stored) return; // a file is told nothing
  document.addEventListener("visibilitychange", look);
  look();
}
