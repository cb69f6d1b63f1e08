"""Simulated users of `ajet serve --learn`: does the model learn, and what does learning cost them?

    python -m benchmarks.serve_learning [--only honest still …] [--sessions 1000] [--out FILE.json]
    python -m benchmarks.serve_learning --only still steady                 latency, 3 minutes
    python -m benchmarks.serve_learning --only poisoned --seeds 1 2 3       who lies, on three seeds

Runs that are not asked for stay in the file as they were. `load` is that of the machine in the
minute before a run began and before it ended.

    still     160 sessions at a server that never trains: the control of latency
    steady    the same while rounds are trained one after another, and none is promoted
    honest    1,000 sessions of 50 clients in five rounds
    liars     10 % of the clients give the opposite of the truth
    loud      10 % of the clients give the opposite, a hundred times as large
    popular   20 clients ask the same 12 questions, 2 of them lie as in `loud`; nobody is left out
    reliable  the same, and who contradicts the others is left out (max_false_exclusion: 0.01)
    poisoned  for each of the seeds `popular` and `reliable`, and as their control the same 20
              clients where nobody lies; not in a run of all

The server is a process of its own; users are asyncio clients of httpx in this one. A session is a
word problem: one or two calls, then feedback whether the answer was right. Faults are clients that
hang up within a call, bodies that are no JSON, feedback that is sent twice or long after, and for
sessions that nobody had; 1 % of the sessions have one. In all but the first two runs sessions come
more slowly while a round is open, and the learner has the server's priority, so that on a busy
machine too the sessions of a round are of the version before it. Held-out success is measured by
the server itself on 256 tasks at the users' temperature; differences are paired, with 95 %
intervals. At the end `ajet inspect rebuild` makes the versions of `honest` again.

Latency is that of a whole call; `while_learning` are the calls during a round. The first two runs
name their sessions, and the name is what a reply's seed follows from: as long as the version is the
same, so are the replies, and they come at the same times. `added_ms` compares each call while a
round is open with the same call of `still` that got the same reply: the median of the differences,
which longer replies of a better version have no part in.

Goals: 20 points of held-out success, no failed request beside the faults, 5 ms at the median.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import httpx

from ajet.core.record.evaluation import paired_difference
from ajet.serve.online.log import SessionLog
from ajet.serve.online.sessions import SESSION_HEADER
from ajet.tools import PYTHON_TOOL
from benchmarks.report import ROOT, measured_on, options, read, write
from benchmarks.serve_learning_agent import Message, answer

ROWS = ROOT / "ajet/embedded/arithmetic/train.jsonl"
KEY, PER_ROUND = "sk-benchmark", 200
SESSIONS_PER_S, SLOWLY_PER_S, FAULTS = 3.0, 0.2, 0.01
UNLIKE_Z = 4.0
YAML = """
ajet:
  project_name: serve_learning
  seed: {seed}
  experiment_name: {name}
  model: {{path: "embedded:math"}}
  task_reader:
    type: huggingface_dat_repo
    huggingface_dat_repo:
      {{dataset_path: "embedded:arithmetic", training_split: train, validation_split: test}}
  data: {{max_prompt_length: 512, max_response_length: 512, val_max_tasks: 256}}
  rollout:
    user_workflow: benchmarks.serve_learning_agent->Assistant
    temperature: 1.0
    val_kwargs: {{temperature: 1.0, do_sample: true}}
    max_env_worker: 256
    max_response_length_in_one_turn: 96
    max_model_len: 1024
  task_judge: {{judge_protocol: math}}
  serve:
    port: auto
    learn:
      sessions_per_round: {per_round}
      min_difference: {min_difference}
      max_false_exclusion: {max_false_exclusion}
      niceness: {niceness}
  trainer_common:
    val_pass_n: 1
    mini_batch_num: 4
    ppo_epochs: 2
    torch_threads: 1
    algorithm: {{adv_estimator: reinforce_plus_plus}}
    optim: {{lr: 5.0e-4, betas: [0.9, 0.95]}}
"""


@dataclass(frozen=True)
class Crowd:
    """Who asks, how many of them lie, and how many different questions they have; None: a question
    for each session."""

    num_clients: int = 50
    num_liars: int = 5
    num_questions: int | None = None


LOUD = 100.0
LATENCY_SESSIONS, POPULAR_SESSIONS = 160, 480
POPULAR = Crowd(num_clients=20, num_liars=2, num_questions=12)


@dataclass(frozen=True)
class Call:
    """A call of a user's: when it began, how long it took, and what the reply was. `place` is its
    session and its number in that."""

    place: tuple[int, int]
    begun_s: float
    took_ms: float
    num_tokens: int
    said: str


@dataclass
class Traffic:
    """What the users have seen."""

    calls: list[Call] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rewards: list[tuple[int, bool]] = field(default_factory=list)  # version, right
    num_mixed: int = 0  # sessions that were answered by more than one version


class Server:
    """The process of `ajet serve --learn`."""

    def __init__(self, folder: Path, name: str, given: dict[str, Any]) -> None:
        self.run_folder = folder / "launcher_record" / name
        conf, self._log = folder / f"{name}.yaml", folder / f"{name}.log"
        conf.write_text(YAML.format(name=name, **given))
        environment = {
            **os.environ,
            "AJET_SERVE_API_KEY": KEY,
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "ajet.cli.launcher", "serve", "--learn", "--conf"]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(conf)], cwd=folder, env=environment, stdout=output, stderr=output
            )

    async def url(self) -> str:
        while (found := re.search(r" at (\S+)/v1,", self._log.read_text())) is None:
            assert self._process.poll() is None, self._log.read_text()
            await asyncio.sleep(0.2)
        return found[1]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Users:
    """The clients of one server."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        seed: int,
        lie: float | None,
        crowd: Crowd,
        names_sessions: bool,
    ) -> None:
        self.http, self.lie, self.crowd = http, lie, crowd
        self.names_sessions = names_sessions
        self.random = random.Random(seed)
        self.rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
        self.random.shuffle(self.rows)
        self.rows = self.rows[: crowd.num_questions]
        self.traffic = Traffic()

    async def arrive(self, num_sessions: int, is_slow: Callable[[], bool]) -> None:
        """Lets the sessions begin at random times, and more slowly where that is asked for."""
        sessions: list[asyncio.Task[None]] = []
        for index in range(num_sessions):
            fault = self.random.choice(FAULT_KINDS) if self.random.random() < FAULTS else None
            sessions.append(asyncio.create_task(self.session(index, fault)))
            await asyncio.sleep(self.random.expovariate(SESSIONS_PER_S))
            while is_slow() and self.random.random() > SLOWLY_PER_S:
                await asyncio.sleep(1.0)
        await asyncio.gather(*sessions)

    async def session(self, index: int, fault: str | None) -> None:
        client = f"u{index % self.crowd.num_clients}"
        row = self.rows[index % len(self.rows)]
        if self.crowd.num_questions is not None:
            row = self.random.choice(self.rows)
        seen: dict[str, Any] = {"versions": set(), "calls": 0}
        headers = {SESSION_HEADER: f"session {index}"} if self.names_sessions else {}
        if fault is not None:
            self.traffic.faults[fault] += 1
        if fault == "hangs_up":
            await self._hang_up(row["question"])
        if fault == "garbage":
            reply = await self.http.post("/v1/chat/completions", content=b'{"messages": [')
            self._expect(reply, 400)

        async def chat(messages: list[Message]) -> Message:
            begun_s = time.monotonic()
            body = {"model": "m", "messages": messages, "tools": [PYTHON_TOOL], "user": client}
            reply = await self.http.post("/v1/chat/completions", json=body, headers=headers)
            took_ms = 1000 * (time.monotonic() - begun_s)
            self._expect(reply, 200)
            told = reply.json()
            message = told["choices"][0]["message"]
            calls = [each["function"] for each in message.get("tool_calls") or ()]
            said = json.dumps([message.get("content"), calls])
            place = (index, seen["calls"])
            num_tokens = told["usage"]["completion_tokens"]
            self.traffic.calls.append(Call(place, begun_s, took_ms, num_tokens, said))
            seen["id"] = told["id"]
            seen["calls"] += 1
            seen["versions"].add(int(reply.headers["x-ajet-version"]))
            return message

        try:
            said = await answer(chat, row["question"])
        except (httpx.HTTPError, KeyError) as error:
            self.traffic.failed[type(error).__name__] += 1
            return
        is_right = f"\\boxed{{{row['answer'].rpartition('#### ')[2]}}}" in said
        self.traffic.rewards.append((min(seen["versions"]), is_right))
        self.traffic.num_mixed += len(seen["versions"]) > 1
        await self._rate(seen["id"], client, self._reward(client, is_right), fault)

    def _reward(self, client: str, is_right: bool) -> float:
        if self.lie is not None and int(client[1:]) < self.crowd.num_liars:
            return -self.lie if is_right else self.lie
        return float(is_right)

    async def _rate(self, reply_id: str, client: str, reward: float, fault: str | None) -> None:
        if fault == "late":
            await asyncio.sleep(20)
        elif fault == "nobodys":
            reply = await self._feedback(response="s-0000000000000000", reward=reward)
            self._expect(reply, 404)
        given = {"response": reply_id, "reward": reward, "client": client, "feedback_id": reply_id}
        for _ in range(2 if fault == "twice" else 1):
            self._expect(await self._feedback(**given), 200)

    async def _feedback(self, **body: Any) -> httpx.Response:
        return await self.http.post("/ajet/v1/feedback", json=body)

    async def _hang_up(self, question: str) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.http.post("/v1/chat/completions", json=body), 0.03)

    def _expect(self, reply: httpx.Response, status: int) -> None:
        if reply.status_code != status:
            self.traffic.failed[f"{reply.status_code} for {status}"] += 1


KINDS = ["still", "steady", "honest", "liars", "loud", "popular", "reliable", "poisoned"]
FAULT_KINDS = ("hangs_up", "garbage", "late", "twice", "nobodys")


async def run(
    folder: Path,
    name: str,
    *,
    num_sessions: int,
    per_round: int = PER_ROUND,
    lie: float | None = None,
    max_false_exclusion: float | None = None,
    crowd: Crowd = Crowd(),
    waits: bool = True,
    promotes: bool = True,
    seed: int = 1,
) -> tuple[dict[str, Any], Seen]:
    """Runs one server with its users until the last round is decided, and returns the figures and
    what the users have seen. With `waits` sessions come more slowly while a round is open."""
    load = os.getloadavg()[0]
    given = {
        "seed": seed,
        "per_round": per_round,
        "min_difference": -0.02 if promotes else 1.0,
        "max_false_exclusion": json.dumps(max_false_exclusion),
        "niceness": 0 if waits else 10,
    }
    server = Server(folder, name, given)
    learning_s: list[tuple[float, bool]] = [(time.monotonic(), False)]
    try:
        url = await server.url()
        limits = httpx.Limits(max_connections=200)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=120, limits=limits
        ) as http:
            users = Users(http, seed, lie, crowd, names_sessions=not waits)
            watching = asyncio.create_task(watch(http, per_round, learning_s))
            begun_s = time.monotonic()
            await users.arrive(num_sessions, lambda: waits and learning_s[-1][1])
            traffic_s = time.monotonic() - begun_s
            await asyncio.sleep(2.0)  # until the last round that is due is seen
            while waits and learning_s[-1][1]:
                await asyncio.sleep(0.5)
            watching.cancel()
            status = (await http.get("/ajet/v1/status")).json()
    finally:
        server.stop()
    seen = Seen(users.traffic, learning_s)
    found = {
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "sessions_per_round": per_round,
        **seen.figures(),
        "traffic_s": round(traffic_s, 1),
        **{name: number for name, number in status.items() if name.startswith("num_")},
        **learnt(server.run_folder, status),
    }
    return found, seen


async def watch(
    http: httpx.AsyncClient, per_round: int, learning_s: list[tuple[float, bool]]
) -> None:
    """Notes, twice a second, whether a round is due or open, or its version not yet served."""
    while True:
        status = (await http.get("/ajet/v1/status")).json()
        promoted = [each["number"] for each in status["rounds"] if each["state"] == "promoted"]
        is_open = any(each["state"] == "open" for each in status["rounds"])
        is_due = status["num_waiting"] >= per_round
        learns = is_open or is_due or status["version"] != max(promoted, default=0)
        learning_s.append((time.monotonic(), learns))
        await asyncio.sleep(0.5)


@dataclass(frozen=True)
class Seen:
    """What users have seen of a server, and when a round was open: the times at which that was
    asked, with the answers."""

    traffic: Traffic
    learning_s: list[tuple[float, bool]]

    def is_learning(self, call: Call) -> bool:
        """Returns whether a round was open when this call began."""
        return next((state for at_s, state in self.learning_s if at_s >= call.begun_s), False)

    def figures(self) -> dict[str, Any]:
        calls = self.traffic.calls
        by_version: dict[int, list[bool]] = {}
        for version, is_right in self.traffic.rewards:
            by_version.setdefault(version, []).append(is_right)
        return {
            "calls": len(calls),
            "failed_requests": dict(self.traffic.failed),
            "faults": dict(self.traffic.faults),
            "sessions_of_several_versions": self.traffic.num_mixed,
            "tokens_of_a_reply": round(fmean(call.num_tokens for call in calls), 2),
            "call_ms": {
                "all": spread([call.took_ms for call in calls]),
                "while_learning": spread([c.took_ms for c in calls if self.is_learning(c)]),
                "otherwise": spread([c.took_ms for c in calls if not self.is_learning(c)]),
            },
            "users_success_by_version": {
                version: {"sessions": len(wins), "success": round(sum(wins) / len(wins), 3)}
                for version, wins in sorted(by_version.items())
            },
        }

    def added_ms(self, still: Traffic) -> dict[str, Any]:
        """Returns how much longer the calls while a round was open took than those of `still` with
        the same reply."""
        control = {call.place: call for call in still.calls}
        added = [
            call.took_ms - control[call.place].took_ms
            for call in self.traffic.calls
            if call.place in control and control[call.place].said == call.said
            if self.is_learning(call)
        ]
        low, middle, high = quantiles(added, n=4)
        return {
            "pairs": len(added),
            "median": round(middle, 1),
            "quartiles": [round(low, 1), round(high, 1)],
        }


def spread(values_ms: list[float]) -> dict[str, float] | None:
    if len(values_ms) < 2:
        return None
    ordered = quantiles(values_ms, n=100)
    return {
        "calls": len(values_ms),
        "median": round(median(values_ms), 1),
        "p95": round(ordered[94], 1),
        "p99": round(ordered[98], 1),
    }


def learnt(run_folder: Path, status: dict[str, Any]) -> dict[str, Any]:
    """Returns the rounds, and held-out success before the first and after the last of them."""
    rounds = []
    for each in (each for each in status["rounds"] if each["state"] != "open"):
        unlike = [c["client"] for c in each["clients"] if abs(c["z"]) >= UNLIKE_Z]
        names = ("number", "state", "reason", "reward", "shadow", "seconds")
        contradict = [c for c in each["agreement"] if c["contradicted"] > c["agreed"]]
        said = {name: each[name] for name in (*names, "unreliable_clients")}
        rounds.append(said | {"contradict": contradict, "unlike_clients": unlike})
    log = SessionLog(run_folder)
    first, last = log.held_out(0), log.held_out(log.version)
    log.close()
    if first is None or last is None:
        return {"rounds": rounds}
    return {
        "rounds": rounds,
        "version": status["version"],
        "held_out_before": round(sum(map(sum, first.values())) / len(first), 3),
        "held_out_after": round(sum(map(sum, last.values())) / len(last), 3),
        "held_out_difference": paired_difference(last, first).as_json(),
    }


def rebuilt(folder: Path, name: str) -> list[str]:
    """Returns what `ajet inspect rebuild` says of a run."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "inspect", "rebuild"]
    command.append(f"launcher_record/{name}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return (said.stdout + said.stderr).splitlines()


async def measure(only: list[str], num_sessions: int, seeds: list[int]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        results |= await latency(folder, only)
        if "honest" in only:
            results["honest"], _ = await run(folder, "honest", num_sessions=num_sessions)
            results["honest"]["rebuild"] = rebuilt(folder, "honest")
        if "liars" in only:
            results["liars"], _ = await run(folder, "liars", num_sessions=2 * PER_ROUND, lie=1.0)
        if "loud" in only:
            results["loud"], _ = await run(folder, "loud", num_sessions=2 * PER_ROUND, lie=LOUD)
        if "popular" in only:
            results["popular"] = await popular(folder, "popular", lie=LOUD)
        if "reliable" in only:
            results["reliable"] = await popular(folder, "reliable", lie=LOUD, bound=0.01)
            results["reliable"]["rebuild"] = rebuilt(folder, "reliable")
        if "poisoned" in only:
            results["poisoned"] = {str(seed): await poisoned(folder, seed) for seed in seeds}
    return results


async def latency(folder: Path, only: list[str]) -> dict[str, Any]:
    """Returns those of the runs without and with training that are asked for, and what training
    adds where that is both."""
    results: dict[str, Any] = {}
    still: Traffic | None = None
    for name, per_round in (("still", 10**6), ("steady", 32)):
        if name in only:
            results[name], seen = await run(
                folder,
                name,
                num_sessions=LATENCY_SESSIONS,
                per_round=per_round,
                promotes=False,
                waits=False,
            )
            if still is not None:
                results[name]["added_ms"] = seen.added_ms(still)
            still = seen.traffic
    return results


async def popular(
    folder: Path, name: str, lie: float | None, bound: float | None = None, seed: int = 1
) -> dict[str, Any]:
    """Runs a server whose clients have few questions, some of them liars."""
    found, _ = await run(
        folder,
        name,
        num_sessions=POPULAR_SESSIONS,
        per_round=POPULAR_SESSIONS // 6,
        lie=lie,
        max_false_exclusion=bound,
        crowd=POPULAR,
        seed=seed,
    )
    return found


async def poisoned(folder: Path, seed: int) -> dict[str, Any]:
    """Returns, of one seed, the runs in which nobody lies, liars are not known, and liars are left
    out, with what became of each in short."""
    arms: dict[str, tuple[float | None, float | None]] = {
        "nobody_lies": (None, None),
        "popular": (LOUD, None),
        "reliable": (LOUD, 0.01),
    }
    runs = {
        name: await popular(folder, f"{name}-{seed}", lie, bound, seed)
        for name, (lie, bound) in arms.items()
    }
    liars = {f"u{number}" for number in range(POPULAR.num_liars)}
    for found in runs.values():
        states = Counter(each["state"] for each in found["rounds"])
        left_out = {client for each in found["rounds"] for client in each["unreliable_clients"]}
        found["in_short"] = {
            "promoted": states["promoted"],
            "rolled_back": states["rolled_back"],
            "liars_left_out": len(left_out & liars),
            "honest_left_out": len(left_out - liars),
        }
    return runs


def main() -> None:
    parser = options(__doc__, "serve_learning", sessions=1000)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS[:-1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of poisoned")
    arguments = parser.parse_args()
    known = read(arguments.out)
    found = asyncio.run(measure(arguments.only, arguments.sessions, arguments.seeds))
    if "poisoned" in found:
        found["poisoned"] = known.get("poisoned", {}) | found["poisoned"]
    told = {"model": "embedded:math", "sessions_per_s": SESSIONS_PER_S}
    report = known | measured_on() | told | found
    write(arguments.out, report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
