// The list of episodes and the frame of one episode. What was recorded is put in as text only
// (textContent), never as HTML: a model may write <script> as well as anything else.
import { showTurns, colourBy } from "/static/tokens.js";

const POLL_MS = 4000;
const $ = (id) => document.getElementById(id);
const filters = $("filters");
let next = null; // the id after which the next page of the list begins
let atTop = true; // no older page was asked for: the list may be refreshed

export function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

async function get(path) {
  const response = await fetch(path);
  const data = await response.json();
  if (!response.ok) throw new Error(data.error);
  return data;
}

function number(value, digits = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

async function showRun() {
  const run = await get("/api/run");
  document.title = `${run.name} · ajet`;
  $("run-name").textContent = run.name;
  const facts = [`${run.count.toLocaleString()} episodes`];
  if (run.summary?.success_after != null) {
    facts.push(`held-out success ${percent(run.summary.success_before)} → ${percent(run.summary.success_after)}`);
  }
  if (!run.has_tokenizer) facts.push("no tokenizer found: tokens show as ids");
  $("run-facts").textContent = facts.join("  ·  ");
  showAttempts(run.attempts);
  showWarnings(run.warnings);
  offer("mode", run.modes);
  offer("status", run.statuses);
}

function showAttempts(attempts) {
  const details = $("attempts");
  details.hidden = attempts.length < 2;
  details.querySelector("summary").textContent = `started ${attempts.length} times`;
  details.querySelector("ol").replaceChildren(
    ...attempts.map((text) => Object.assign(document.createElement("li"), { textContent: text })),
  );
}

function showWarnings(warnings) {
  const list = $("warnings");
  list.hidden = warnings.length === 0;
  list.replaceChildren(...warnings.map((warning) => {
    const item = make("li");
    item.append(
      make("span", `step ${warning.step}`, "dim"), make("b", warning.name), make("span", warning.text),
    );
    return item;
  }));
}

function percent(share) {
  return share == null ? "–" : `${(100 * share).toFixed(1)} %`;
}

function offer(name, values) {
  const select = filters.elements[name];
  const known = [...select.options].map((option) => option.value);
  for (const value of values.filter((v) => !known.includes(v))) {
    select.add(new Option(value, value));
  }
}

async function showList(after = null) {
  const query = new URLSearchParams(new FormData(filters));
  if (after !== null) query.set("after", after);
  const page = await get(`/api/episodes?${query}`);
  const rows = page.episodes.map(row);
  if (after === null) $("rows").replaceChildren(...rows);
  else $("rows").append(...rows);
  atTop = after === null;
  next = page.next;
  $("more").hidden = next === null;
  const count = page.count.toLocaleString();
  $("count").textContent = page.count ? `${count} episodes, newest first` : "No episode here yet.";
}

function row(episode) {
  const line = make("tr");
  const link = make("a", episode.query.replace(/\s+/g, " ") || episode.task_id);
  link.href = `#/episode/${encodeURIComponent(episode.episode_id)}`;
  const question = make("td", "", "wide");
  question.append(link);
  question.title = episode.episode_id;
  const good = episode.is_success ? "good" : "";
  line.append(
    make("td", episode.step, "num"),
    make("td", episode.mode, "dim"),
    question,
    make("td", episode.status, /ok|truncated/.test(episode.status) ? "dim" : "bad"),
    make("td", number(episode.reward), `num ${good}`),
    make("td", number(episode.advantage), "num"),
    make("td", episode.num_turns, "num"),
    make("td", episode.num_sampled_tokens, "num"),
    make("td", number(episode.seconds), "num"),
  );
  line.addEventListener("click", () => (location.hash = link.hash));
  return line;
}

async function showEpisode(id) {
  const episode = await get(`/api/episode/${encodeURIComponent(id)}`);
  $("question").textContent = episode.query || episode.task_id;
  $("facts").replaceChildren(...facts(episode));
  $("members").replaceChildren("group", ...episode.members.map((member, index) => {
    const link = make("a", index + 1, member.reward > 0 ? "good" : "");
    link.href = `#/episode/${encodeURIComponent(member.episode_id)}`;
    link.title = `reward ${number(member.reward)}, ${member.status}`;
    if (member.episode_id === id) link.setAttribute("aria-current", "page");
    return link;
  }));
  showTurns($("turns"), episode.turns);
  const { turns, members, ...rest } = episode;
  const spoken = turns.map(({ turn_index, messages, reply, tools, notes }) =>
    ({ turn_index, tools, messages, reply, notes }));
  $("details").querySelector("pre").textContent = JSON.stringify({ ...rest, turns: spoken }, null, 2);
}

function facts(episode) {
  const versions = [...new Set([episode.min_policy_version, episode.max_policy_version])];
  const shown = {
    episode: episode.episode_id, step: episode.step, status: episode.status,
    reward: number(episode.reward), success: episode.is_success === null ? "–" : episode.is_success ? "yes" : "no",
    advantage: number(episode.advantage), turns: episode.num_turns,
    "sampled tokens": episode.num_sampled_tokens, "policy version": versions.join(" to ") || "–",
    seconds: number(episode.seconds),
  };
  const cells = Object.entries(shown).map(([name, value]) => {
    const cell = make("span");
    cell.append(make("b", name), String(value));
    return cell;
  });
  if (episode.error) cells.push(make("span", episode.error, "error"));
  return cells;
}

async function route() {
  const [, id, colour] = location.hash.match(/^#\/episode\/([^?]+)(?:\?(mask|logprob|advantage))?$/) ?? [];
  $("error").hidden = true;
  $("tip").hidden = true;
  try {
    if (id) await showEpisode(decodeURIComponent(id));
    if (colour) colourBy(colour);
    if (!id) await showList();
    $("list").hidden = Boolean(id);
    $("episode").hidden = !id;
    if (id) scrollTo(0, 0);
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
  }
}

async function poll() {
  if (document.hidden || $("list").hidden || !atTop || scrollY > 0) return;
  await showRun();
  await showList();
}

let typing;
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(route, 150); });
filters.addEventListener("reset", () => setTimeout(route));
$("more").addEventListener("click", () => showList(next));
$("colours").addEventListener("change", (event) => {
  colourBy(event.target.value);
  history.replaceState(null, "", `${location.hash.split("?")[0]}?${event.target.value}`);
});
addEventListener("hashchange", route);
setInterval(() => poll().catch(() => {}), POLL_MS); // a run that ended takes the server with it
showRun().catch(() => {});
route();
