"""What the page and an audit cost on a long run: until something is seen, for a filter, a search.

    python benchmarks/logview.py [--episodes 100000] [--run FOLDER] [--out FILE.json]
    python benchmarks/logview.py --episodes 2000 --starts 20    # only what the HTTP server costs

The run is made here: steps of 256 episodes in groups of 8, two turns each, the same 256 tasks held
out every 50 steps, and a row of metrics for each step; FOLDER keeps it for the next time. Prompts
and replies are those of the demo's template and tokenizer, and no two questions are the same.
Limits: 1 s until the page of a server that has just started shows its heading and curves, 100 ms
for a filter, 2 s for the first search, 60 s for the audit of 250,000 episodes. The held-out tasks
that rose and fell follow, when the index of all episodes is made; words are indexed from the first
search on, the newest episodes first, and `whole_search_s` is the time until all are. Times of the
browser need a Chromium and Playwright: they count from the request of the address until the
heading, the curves and the tasks are in the document, and from the choice of a filter until its
rows are. --starts measures `ajet view` itself, from the start of its process to its first answer,
and writes it as `server` into FILE.json, next to what stands there.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from report import ROOT, measured_on, options, read, write
from runs import ajet

from ajet.core.config.load import load_config
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.model.tokenizer import load_tokenizer
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowOutput, WorkflowTask
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.server import LogviewServer
from ajet.read.reports.audit import PromptPieces

EPISODES_A_STEP, MEMBERS, TASKS, EVAL_EVERY = 256, 8, 2048, 50
LIMIT_FIRST_S, LIMIT_SEARCH_S, LIMIT_FILTER_MS = 1.0, 2.0, 100.0
LIMIT_AUDIT_S_OF_250_000 = 60.0
WORDS = ["apple", "pear", "train", "bus", "coin", "book", "pencil", "lake", "river", "bridge"]
FIRST = ("/", "/static/app.js", "/api/runs", "/api/metrics?names=reward/mean,reward/std")
QUERIES = {
    "none": "",
    "status": "status=timeout",
    "success": "is_success=true&mode=train",
    "reward": "min_reward=0.99",
    "steps": "first_step=30&last_step=40",
    "task": "task_id=task-77",
    "tokens": "min_tokens=58&sort=-tokens",
    "sorted by reward": "sort=-reward",
    "text in everything said": "text=pear+river",
    "text that is nowhere": "text=nosuchword",
    "tool": "tool=execute_python_code&is_success=false",
}
FILTER = """async (value) => {
    const select = document.querySelector("select[name=status]");
    const done = new Promise((resolve) => new MutationObserver(resolve)
        .observe(document.querySelector("#list"), {childList: true}));
    const begun = performance.now();
    select.value = value;
    select.dispatchEvent(new Event("input", {bubbles: true}));
    await done;
    return performance.now() - begun;
}"""
TOOLS = [{"type": "function", "function": {"name": "execute_python_code", "parameters": {}}}]


class Prompts:
    """Makes turns with the ids of a template."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template, self._pieces = template, PromptPieces(template)

    def turn(
        self, messages: list[dict], reply: dict, text: str, step: int, notes: TurnNotes
    ) -> Turn:
        pieces = self._pieces.encode(self.template.render_marked(messages, TOOLS))
        prompt = tuple(number for ids in pieces for number in ids)
        sampled = (*self.template.encode(text), self.template.stop_token_ids[0])
        completion = Completion(prompt, sampled, (-0.5,) * len(sampled), "stop", step)
        return Turn(completion, messages, TOOLS, reply, notes=notes)


def episode(
    prompts: Prompts, rng: np.random.Generator, step: int, task: int, member: int, mode: Mode
) -> Trajectory:
    """Two turns, a tool call and the answer, with ids and text of the demo's length."""
    things = " ".join(rng.choice(WORDS, 6))
    system = {"role": "system", "content": "You solve word problems with Python. " * 8}
    user = {"role": "user", "content": f"Problem {task}: {things}. How many are there?"}
    code = json.dumps({"code": f"print({task} + {member})"})
    function = {"name": "execute_python_code", "arguments": code}
    call = {"id": "call_0000_0", "type": "function", "function": function}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    tool = {"role": "tool", "content": f"<stdout>{task + member}</stdout>"}
    answer = {"role": "assistant", "content": f"The {rng.choice(WORDS)} gives {task + member}"}
    called = f'<tool_call>\n{{"name": "execute_python_code", "arguments": {code}}}\n</tool_call>'
    turns = (
        prompts.turn([system, user], reply, called, step, TurnNotes()),
        prompts.turn(
            [system, user, reply, tool], answer, answer["content"], step, TurnNotes(continues=True)
        ),
    )
    group_id = f"{step:06d}-{mode}-{task:04d}"
    who = WorkflowTask(
        Task(f"{'task' if mode == 'train' else 'held-out'}-{task}", user["content"]),
        f"{group_id}-{member:02d}", group_id, member, step, mode, 0,
    )  # fmt: skip
    status = EpisodeStatus.TIMEOUT if rng.random() < 0.01 else EpisodeStatus.OK
    reward = float(rng.random() < 0.3 + step / 1000)
    output = WorkflowOutput(metadata={"final_answer": str(task + member)})
    return Trajectory(who, turns, status, output, reward, reward > 0.5)


def write_run(path: Path, num_episodes: int) -> int:
    """Writes the run and returns how many episodes it has."""
    rng, written = np.random.default_rng(0), 0
    num_steps = num_episodes // (EPISODES_A_STEP + EPISODES_A_STEP // EVAL_EVERY)
    with RunFolder.open(path) as folder, EpisodeStore(folder.episodes_db) as store:
        prompts = Prompts(ChatTemplate(load_tokenizer(ROOT / "ajet/embedded/math")))
        begin_folder(folder, prompts.template)
        metrics = MetricsLogger([], folder)
        for step in range(num_steps + 1):
            if step % EVAL_EVERY == 0:
                held_out = [episode(prompts, rng, step, task, 0, "eval") for task in range(256)]
                store.write(step, [Group(t.group_id, (t,)) for t in held_out])
                solved = float(np.mean([bool(t.is_success) for t in held_out]))
                metrics.log(step, {"held_out/success": solved, "held_out/tasks": 256})
                written += 256
            if step == 0:
                continue
            tasks = rng.choice(TASKS, EPISODES_A_STEP // MEMBERS, replace=False).tolist()
            groups = [
                Group(
                    f"{step:06d}-train-{task:04d}",
                    tuple(
                        episode(prompts, rng, step, task, member, "train")
                        for member in range(MEMBERS)
                    ),
                )
                for task in tasks
            ]
            members = [t for g in groups for t in g.trajectories]
            advantages = {
                t.episode_id: [
                    np.ones(len(turn.completion.token_ids), np.float32) for turn in t.turns
                ]
                for t in members
            }
            store.write(step, groups, advantages, to_samples(groups, advantages))
            rewards = [t.reward or 0.0 for t in members]
            metrics.log(step, _metrics(rng, rewards))
            written += len(members)
        metrics.close()
    return written


def begin_folder(folder: RunFolder, template: ChatTemplate) -> None:
    """Writes what an audit reads beside the episodes."""
    config = load_config(ROOT / "tutorial/example_math_agent/demo.yaml")
    folder.save_config(config)
    origin = RunOrigin.from_config(config, template.stop_token_ids, "2026-01-01T00:00:00")
    origin.write(folder.origin_json)
    template.tokenizer.save_pretrained(folder.tokenizer)


def audit_times(run: Path) -> dict[str, Any]:
    """Returns the seconds of `ajet inspect audit`, and of processor time over all its processes."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "audit.json"
        ajet("inspect", "audit", run.absolute(), "--out", out, folder=Path(folder))
        found = json.loads(out.read_text())
    after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counts = {name: found[name] for name in ("episodes", "rendered", "same", "num_faults")}
    return {"s": round(wall_s, 1), "cpu_s": round(cpu_s, 1), **counts}


def _metrics(rng: np.random.Generator, rewards: list[float]) -> dict[str, float]:
    """Returns a row with as many numbers as a real run logs."""
    mean = float(np.mean(rewards))
    return {
        "reward/mean": mean,
        "reward/std": float(np.std(rewards)),
        "reward/success": mean,
        "update/entropy": float(rng.random()),
        "update/kl": float(rng.random()) / 100,
        "rollout/seconds": 5 + float(rng.random()),
        "update/seconds": 1 + float(rng.random()),
        "rollout/tokens_per_s": 1600 + float(rng.random()),
        "groups/total": 32.0,
        "groups/with_advantage": float(rng.integers(10, 32)),
        **{f"other/{index}": float(rng.random()) for index in range(60)},
    }


def server_times(run: Path) -> dict[str, Any]:
    """Returns the seconds until a new server has answered what the first page asks for, of the
    first text search, and the milliseconds of each filter, the best of three."""
    with LogviewServer([run], port=0) as server:
        started, cpu = time.perf_counter(), time.process_time()
        for path in FIRST:
            _get(server.url + path)
        first_s, first_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        started, cpu = time.perf_counter(), time.process_time()
        _get(f"{server.url}/api/changes")
        tasks_s, tasks_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        started, cpu = time.perf_counter(), time.process_time()
        _get(f"{server.url}/api/episodes?text=apple")
        search_s, search_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        while json.loads(_get(f"{server.url}/api/episodes?text=apple"))["not_searched"]:
            pass
        whole_s, whole_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        filters, filters_cpu = {}, {}
        for name, query in QUERIES.items():
            tries = [_timed(f"{server.url}/api/episodes?{query}") for _ in range(3)]
            walls, cpus = zip(*tries, strict=True)
            filters[name], filters_cpu[name] = round(min(walls), 1), round(min(cpus), 1)
    return {
        "first_answer_s": round(first_s, 3),
        "first_answer_cpu_s": round(first_cpu_s, 3),
        "held_out_tasks_s": round(tasks_s, 3),
        "held_out_tasks_cpu_s": round(tasks_cpu_s, 3),
        "first_search_s": round(search_s, 2),
        "first_search_cpu_s": round(search_cpu_s, 2),
        "whole_search_s": round(whole_s, 2),
        "whole_search_cpu_s": round(whole_cpu_s, 2),
        "filter_ms": filters,
        "filter_cpu_ms": filters_cpu,
    }


def start_times(run: Path, num_starts: int) -> dict[str, Any]:
    """Returns medians of new `ajet view` processes: processor seconds until the first answer, and
    milliseconds for one of the page's files, so that other work on the machine counts little; the
    seconds themselves; and memory."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "view", str(run), "--no-browser"]
    rows = []
    for _ in range(num_starts):
        started = time.perf_counter()
        with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as view:
            assert view.stdout is not None
            url = view.stdout.readline().split()[0]
            _get(f"{url}/api/runs")
            answer_s, cpu_s = time.perf_counter() - started, _cpu_s(view.pid)
            answers = [_timed(f"{url}/static/timelines.js")[0] for _ in range(200)]
            file_cpu_ms = (_cpu_s(view.pid) - cpu_s) / len(answers) * 1000
            status = Path(f"/proc/{view.pid}/status").read_text()
            mib = int(status.partition("VmRSS:")[2].split()[0]) / 1024
            view.terminate()
        rows.append((cpu_s, answer_s, file_cpu_ms, float(np.median(answers)), mib))
    names = ("first_answer_cpu_s", "first_answer_s", "file_cpu_ms", "file_ms", "rss_mib")
    columns = zip(*rows, strict=True)
    return {n: round(float(np.median(c)), 3) for n, c in zip(names, columns, strict=True)}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _timed(url: str) -> tuple[float, float]:
    """Returns the milliseconds of an answer, of wall time and of this process's CPU time."""
    started, cpu = time.perf_counter(), time.process_time()
    _get(url)
    return (time.perf_counter() - started) * 1000, (time.process_time() - cpu) * 1000


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return answer.read()


def browser_times(run: Path) -> dict[str, float] | None:
    """Returns the seconds until a browser shows the first page and until it shows a filtered list;
    None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    times: dict[str, float] = {}
    with sync_playwright() as playwright, LogviewServer([run], port=0) as server:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        started = time.perf_counter()
        page.goto(server.url, wait_until="commit")
        for name, what in (("heading", "h1"), ("curves", "figure canvas"), ("tasks", ".headline")):
            page.wait_for_selector(what)
            times[f"{name}_s"] = round(time.perf_counter() - started, 3)
        page.click("nav >> text=Episodes")
        page.wait_for_selector("#rows tr")
        times["filter_ms"] = round(
            min(page.evaluate(FILTER, value) for value in ("timeout", "ok")), 1
        )
        browser.close()
    return times


def main() -> None:
    parser = options(__doc__, "logview", episodes=100_000)
    parser.add_argument("--run", type=Path, help="A folder that keeps the made run.")
    parser.add_argument("--starts", type=int, help="Measure this many starts, and nothing else.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or Path(folder) / "made"
        if not (run / "episodes.sqlite").exists():
            write_run(run, args.episodes)
        load = {"load_average": round(os.getloadavg()[0], 1)}
        if args.starts:
            measured = {**measured_on(), **load, **start_times(run, args.starts)}
            return write(args.out, {**read(args.out), "server": measured})
        with EpisodeReader(run / "episodes.sqlite") as reader:
            num_episodes = reader.count()
        result = {
            "episodes": num_episodes,
            "bytes": (run / "episodes.sqlite").stat().st_size,
            **load,
            **server_times(run),
            "browser": browser_times(run),
            "audit": audit_times(run),
            "limits": {
                "first_s": LIMIT_FIRST_S,
                "first_search_s": LIMIT_SEARCH_S,
                "filter_ms": LIMIT_FILTER_MS,
                "audit_s_of_250_000": LIMIT_AUDIT_S_OF_250_000,
            },
        }
    write(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
