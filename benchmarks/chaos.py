"""Kills and faults over whole runs: each must end as the run that nobody harmed.

    python benchmarks/chaos.py                          # every arm, about two hours on two cores
    python benchmarks/chaos.py --arm ppo --kills 40 --seed 1

Every arm is a tiny run of the command, six steps of sixteen episodes. A round starts one, kills it
in parts of a step drawn from the seed, starts it again with the same command until it is done, and
compares it with one run of the arm that was left alone.

    frozen_lake   GiGPO, an environment, each step a prompt of its own
    math_tools    programs in the sandbox; one hangs, and one in eight raises, exits, floods, or
                  leaves a process or an open file behind
    ppo           a critic, an adaptive KL in the reward, dynamic sampling, groups that stop early
    lora          adapters of rank 4
    services      a tool in an MCP server that dies or hangs at some questions, and a judge over
                  HTTP that answers some requests with 503, late, or not at all at first
    env_service   an environment behind HTTP, in a process of its own
    slow_disk     each fsync and rename takes 0.3 s, each write into a database or checkpoint 20 ms
    background    the same disk; each checkpoint is written while the next step runs
    buffer        trinity in one process: the buffer is SQLite
    postgresql    the same, the buffer in a PostgreSQL that this benchmark starts (its programs must
                  be installed, and psycopg); not among the arms that run without --arm
    verl          on Ray: two workers, two engines, in float64
    trinity       on Ray: explorer and trainer apart, staleness 0, in float64

In one process the whole run is killed: in a rollout, an update, the record, a checkpoint, or at any
moment; `full disk` instead lets no file of it grow, until it gives up by itself. The service dies
and is started again, hangs for half a minute, answers 503 or rubbish for five seconds: a run that
allows no failed episode then ends in one line, or does not notice. The buffer is written to when
the run is killed; another process locks it for five seconds; its server is killed and started
again. Then weights and optimizers must be equal byte for byte. On Ray a worker, an engine, the
router, a trainer's rank or the driver is killed; engines then batch otherwise, so weights may
differ by roundings of float64 (at most 1e-6). In all arms the episodes (tokens, log-probabilities,
rewards, advantages) must be the same, each once, every step must be in the metrics once, and no
process and no unfinished checkpoint may be left.

Writes benchmarks/results/chaos.json after each round; arms that are not run keep what it has. Exit
code 1 when a round was not as promised: its folder is kept and named.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.chaos_agents import FAULTY, IN_TURNS, LAKE, SERVED, TOOL_SERVER  # noqa: E402
from benchmarks.chaos_services import LakeService, PostgresqlServer, locked  # noqa: E402
from benchmarks.report import measured_on, options, read, write  # noqa: E402
from tests.cli.chat_server import ChatServer, message  # noqa: E402
from tests.e2e.kills import MAX_DELAY_S, moments, phase_of  # noqa: E402
from tests.e2e.toy_run import (  # noqa: E402
    ALGORITHM,
    STEPS,
    UNEVEN_PPO,
    WORKFLOW,
    ToyRun,
    ended,
    environment,
    episodes,
    metrics,
    wait_until,
)
from tests.faulty_disk import faulty_disk  # noqa: E402
from tests.processes import below, command, in_group, until_gone  # noqa: E402

WITHIN_S, GONE_WITHIN_S = 1200, 180
OF_SERVICE = ("service dies", "service hangs", "service refuses", "service babbles")
NO_KILL = ("full disk", "buffer locked", "postgresql dies", *OF_SERVICE)
"""Harms that kill no process of the run."""
FAULT_S = 5.0
"""How long a service or a database is out of order."""
SERVICE_TIMEOUT_S = 15.0
"""How long a run waits for a service. One that hangs does so for twice as long."""
DELAY_S = MAX_DELAY_S | {"record": 0.02, "buffer": 0.02} | dict.fromkeys(NO_KILL, 0.1)
"""The longest wait in seconds before the harm, once its moment was seen from outside."""
SLOW_DISK = {
    "sync:launcher_record": "300ms",
    "rename:launcher_record": "300ms",
    "write:.sqlite": "20ms",
    "write:checkpoints": "20ms",
}
HARMS_A_ROUND = 5
TITLES = {
    "worker": "ray::RolloutWorker",
    "engine": "ray::EngineProcess",
    "router": "ray::RouterProcess",
    "trainer": "ray::TrainerRank",
}
ON_RAY = (
    "ajet.trainer_common.optim.lr=1e-6",
    "ajet.model.dtype=float64",
    "ajet.rollout.agent.num_workers=2",
    "ajet.rollout.n_vllm_engine=2",
)


@dataclass(frozen=True, slots=True)
class Arm:
    """Holds one kind of run: its backbone, its overrides, and how it may be harmed."""

    backbone: str = "debug"
    overrides: tuple[str, ...] = ()
    harms: tuple[str, ...] = (*MAX_DELAY_S, "record", "full disk")
    num_kills: int = 30
    agent: str = ""  # what is appended to the workflow
    is_lake: bool = False
    has_judge: bool = False
    has_service: bool = False
    has_postgresql: bool = False
    code: str = ""  # what makes the run, where that is not the command
    disk: Mapping[str, int | str] = field(default_factory=dict)
    slower: float = 1.0  # how many times as long a harm is waited with

    @property
    def in_one_process(self) -> bool:
        return self.backbone == "debug" or bool(self.code)


ARMS = {
    "frozen_lake": Arm(overrides=(f"{ALGORITHM}.adv_estimator=gigpo",), agent=LAKE, is_lake=True),
    "math_tools": Arm(
        overrides=(
            "ajet.rollout.user_workflow=workflow.py->Faulty",
            "ajet.rollout.episode_timeout_s=20",
            "ajet.rollout.max_failure_rate=1",
        ),
        agent=FAULTY,
    ),
    "ppo": Arm(overrides=UNEVEN_PPO),
    "lora": Arm(overrides=("ajet.trainer_common.lora.rank=4",)),
    "services": Arm(
        overrides=(
            "ajet.rollout.user_workflow=workflow.py->Served",
            "ajet.task_judge.judge_protocol=llm",
            "ajet.task_judge.model_name=m",
            "ajet.task_judge.client.timeout_s=2",
        ),
        num_kills=20,
        agent=SERVED,
        has_judge=True,
    ),
    "env_service": Arm(
        overrides=(
            f"{ALGORITHM}.adv_estimator=gigpo",
            "ajet.rollout.max_failure_rate=0",
            "ajet.environment.custom_envs.FrozenLake4.env_type=env_service",
        ),
        harms=("rollout", "checkpoint", *OF_SERVICE),
        num_kills=20,
        agent=LAKE,
        is_lake=True,
        has_service=True,
    ),
    "slow_disk": Arm(
        harms=("checkpoint", "record", "random"), num_kills=20, disk=SLOW_DISK, slower=50
    ),
    "background": Arm(
        overrides=("ajet.trainer_common.save_in_background=true",),
        harms=("checkpoint", "rollout", "update", "record", "full disk"),
        disk=SLOW_DISK,
        slower=50,
    ),
    "buffer": Arm(
        harms=("checkpoint", "buffer", "buffer", "buffer locked"),
        num_kills=20,
        overrides=("trinity.max_staleness=0",),
        code=IN_TURNS,
    ),
    "postgresql": Arm(
        harms=("checkpoint", "postgresql dies"),
        num_kills=10,
        overrides=("trinity.max_staleness=0",),
        code=IN_TURNS,
        has_postgresql=True,
    ),
    "verl": Arm("verl", ON_RAY, (*TITLES, "driver"), num_kills=35),
    "trinity": Arm(
        "trinity", (*ON_RAY, "trinity.max_staleness=0"), (*TITLES, "driver"), num_kills=25
    ),
}


class ChaosRun(ToyRun):
    """A run of one arm, with what runs beside it."""

    def __init__(self, folder: Path, arm: Arm, beside: Beside) -> None:
        super().__init__(folder, *arm.overrides, *beside.overrides)
        self.arm, self.beside = arm, beside
        text = WORKFLOW + arm.agent
        if arm.is_lake:
            self._play_a_lake()
        if arm.has_judge:
            text = text.replace(
                "WorkflowOutput(reward=float(digits % 5), is_success=digits > 3)",
                "WorkflowOutput(metadata={'final_answer': again})",
            )
        (folder / "workflow.py").write_text(text)
        (folder / "tool_server.py").write_text(TOOL_SERVER)

    @property
    def program(self) -> list[str]:
        return ["-c", self.arm.code] if self.arm.code else super().program

    @property
    def arguments(self) -> list[str]:
        if self.arm.code:
            return list(self.overrides)
        on_ray = [] if self.arm.backbone == "debug" else ["--with-ray"]
        return ["--conf", "toy.yaml", "--backbone", self.arm.backbone, *on_ray, *self.overrides]

    def start(self, *overrides: str, **options: Any) -> Any:
        disk = faulty_disk(self.arm.disk) if self.arm.disk else {}
        return super().start(*overrides, env=environment(**disk), **options)

    def _play_a_lake(self) -> None:
        config = yaml.safe_load((self.folder / "toy.yaml").read_text())
        lake = yaml.safe_load((ROOT / "tutorial/example_frozen_lake/demo.yaml").read_text())["ajet"]
        ajet = config["ajet"]
        ajet["model"] = {"path": "embedded:frozen_lake", "device": "cpu"}
        ajet["task_reader"] = {"type": "environment"}
        environment = lake["environment"]["custom_envs"]["FrozenLake4"]
        environment["env_manager_cls"] = "telling_lake"
        if self.arm.has_service:  # which has these settings itself
            environment["env_config"] = {}
        ajet["environment"] = {"custom_envs": {"FrozenLake4": environment}}
        ajet["environment"]["val_env_manager"] = {"num_env_groups": 4}
        del ajet["rollout"]["user_workflow"]
        ajet["rollout"]["agent_modules"] = ["workflow.py"]
        (self.folder / "toy.yaml").write_text(yaml.safe_dump(config))

    def last_checkpoint(self) -> Path:
        return self.path / "checkpoints" / f"step_{STEPS:06d}"


def main() -> int:
    parser = options(__doc__, "chaos", seed=0)
    parser.add_argument("--arm", action="append", choices=list(ARMS))
    parser.add_argument("--kills", type=int, help="for each arm; each has its own number")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos_"))
    is_good = True
    for name in arguments.arm or [name for name in ARMS if name != "postgresql"]:
        arm = ARMS[name]
        rng = random.Random(f"{name} {arguments.seed}")
        for found in rounds(folder / name, arm, arguments.kills or arm.num_kills, rng):
            result = found | {"seed": arguments.seed, **measured_on()}
            arms = read(arguments.out).get("arms", {}) | {name: result}
            write(arguments.out, {"kills": sum(a["kills"] for a in arms.values()), "arms": arms})
            print(name, json.dumps(result), flush=True)
            is_good = is_good and not found["not_as_promised"]
    if is_good:
        shutil.rmtree(folder)
        return 0
    print(f"not as promised: see {folder}", file=sys.stderr)
    return 1


@dataclass(frozen=True, slots=True)
class Beside:
    """Holds the overrides that lead to what runs beside a run, and what puts it out of order for a
    while, by the harm's name."""

    overrides: tuple[str, ...] = ()
    out_of_order: Callable[[str], AbstractContextManager[None]] | None = None


@contextmanager
def beside(arm: Arm, folder: Path) -> Iterator[Beside]:
    """Runs what the arm needs."""
    if arm.has_judge:
        with failing_judge() as url:
            yield Beside((f"ajet.task_judge.client.base_url={url}",))
    elif arm.has_service:
        with LakeService(folder) as service:
            given = f"env_url: '{service.url}', env_type: frozen_lake"
            given += f", timeout_s: {SERVICE_TIMEOUT_S}"
            config = "ajet.environment.custom_envs.FrozenLake4.env_config"
            yield Beside((f"{config}={{{given}}}",), service.out_of_order)
    elif arm.has_postgresql:
        with PostgresqlServer() as server:
            yield Beside((f"trinity.buffer.url={server.url}",), server.out_of_order)
    else:
        yield Beside()


def rounds(folder: Path, arm: Arm, num_kills: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Makes rounds until so many harms were done, and yields what was found so far."""
    with beside(arm, folder) as others:
        whole = ChaosRun(folder / "whole", replace(arm, disk={}), others)
        assert whole.finish(timeout=WITHIN_S) == 0, whole.stderr()
        hits: Counter[str] = Counter()
        number, wrong = 0, {}
        while sum(count for hit, count in hits.items() if hit != "full disk") < num_kills:
            number += 1
            if number > 3 and not hits:
                raise RuntimeError("nothing was harmed in three rounds: they end too early")
            run = ChaosRun(folder / f"round_{number}", arm, others)
            wanted = rng.choices(arm.harms, k=HARMS_A_ROUND)
            if arm.in_one_process:
                hits.update(harmed_in_one_process(run, wanted, rng))
            else:
                hits.update(harmed_on_ray(run, wanted, rng))
            found = differences(run, whole, is_exact=arm.in_one_process)
            if found:
                wrong[run.folder.name] = found
            else:
                shutil.rmtree(run.folder)
            yield {
                "kills": sum(count for hit, count in hits.items() if hit not in NO_KILL),
                "harmed": dict(sorted(hits.items())),
                "rounds": number,
                "episodes_a_round": len(episodes(whole)),
                "not_as_promised": wrong,
            }


def harmed_in_one_process(run: ChaosRun, wanted: Sequence[str], rng: random.Random) -> list[str]:
    """Harms the run once for each that is wanted, then lets it end; returns where it was hit."""
    hits = []
    for harm in wanted:
        step = 1 + max(run.steps_saved(), default=0) + rng.choice((0, 1))
        if step > STEPS:
            break
        hit = harmed_once(run, harm, step, rng)
        if hit is None:  # it ended before
            break
        hits.append(hit)
    run.forget_told()
    code = run.finish(timeout=WITHIN_S)
    assert code == 0, run.stderr()
    return hits


def harmed_once(run: ChaosRun, harm: str, step: int, rng: random.Random) -> str | None:
    """Starts the run, harms it in `step`, and returns in which part it was; None where it ended
    before that."""
    run.forget_told()
    run.hold(step if harm == "rollout" else None)
    with ended(run.start()) as process:

        def is_written(database: str) -> bool:
            log = run.path / f"{database}.sqlite-wal"
            time_before = log.stat().st_mtime_ns if log.exists() else 0
            time.sleep(0.001)
            after = log.stat().st_mtime_ns if log.exists() else 0
            return run.episodes("begin", step) > 0 and after > time_before

        when = moments(run, step)
        when |= {"record": lambda: is_written("episodes"), "buffer": lambda: is_written("buffer")}
        try:
            if not wait_until(when.get(harm, when["random"]), process, WITHIN_S):
                assert process.wait() == 0, run.stderr()
                return None
            time.sleep(rng.random() * DELAY_S[harm] * run.arm.slower)
            if harm in NO_KILL:
                put_out_of_order(run, harm, process.pid)
                code = process.wait(WITHIN_S)
                assert not code or run.errors()[-1].startswith("error: "), run.stderr()
                assert "Traceback" not in run.stderr(), run.stderr()
                return None if harm == "full disk" and code == 0 else harm
            hit = harm if harm in ("record", "buffer") else phase_of(run)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            left = until_gone(in_group(process.pid) | below(process.pid), GONE_WITHIN_S)
            assert not left, f"left after a SIGKILL: {left}"
            return hit
        finally:
            run.hold(None)


def put_out_of_order(run: ChaosRun, harm: str, pid: int) -> None:
    """Harms what the run needs, without killing it; all but a full disk is well again soon."""
    if harm == "full disk":
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
    elif harm == "buffer locked":
        with locked(run.path / "buffer.sqlite"):
            time.sleep(FAULT_S)
    else:
        assert run.beside.out_of_order is not None
        with run.beside.out_of_order(harm):
            time.sleep(2 * SERVICE_TIMEOUT_S if harm == "service hangs" else FAULT_S)


def harmed_on_ray(run: ChaosRun, wanted: Sequence[str], rng: random.Random) -> list[str]:
    """Kills one process of the run in each of its steps from the second on, as is wanted; after a
    driver the same command is started again."""
    hits: list[str] = []
    waiting = list(wanted)
    while True:
        run.forget_told()
        with ended(run.start()) as process:
            driver_is_killed = False
            for step in range(2, STEPS + 1):
                if not waiting or step <= max(run.steps_saved(), default=0):
                    continue
                begun = lambda step=step: run.episodes("begin", step) > 0  # noqa: E731
                if not wait_until(begun, process, WITHIN_S, 0.02):
                    break
                time.sleep(rng.random())
                victim = waiting.pop(0)
                driver_is_killed = victim == "driver"
                if kill_on_ray(process.pid, victim, rng):
                    hits.append(victim)
                if driver_is_killed:
                    break
            code = process.wait(WITHIN_S)
            if code == 0:
                return hits
            assert driver_is_killed, run.stderr()


def kill_on_ray(driver: int, victim: str, rng: random.Random) -> bool:
    """Kills the driver, with all that was below it gone soon after, or one of its processes.
    Returns False where there is none of that kind."""
    everyone = below(driver)
    if victim == "driver":
        os.kill(driver, signal.SIGKILL)
        left = {pid: command(pid)[:200] for pid in until_gone(everyone, GONE_WITHIN_S)}
        assert not left, f"left after the driver's SIGKILL: {left}"
        return True
    found = sorted(pid for pid in everyone if TITLES[victim] in command(pid))
    if found:
        os.kill(rng.choice(found), signal.SIGKILL)
    return bool(found)


def differences(run: ChaosRun, whole: ChaosRun, is_exact: bool) -> list[str]:
    """Returns what of the run is not as in the one that was left alone; nothing where all is."""
    found = []
    ours, theirs = episodes(run), episodes(whole)
    ids, wanted = Counter(row[2] for row in ours), {row[2] for row in theirs}
    found += [f"lost: {each}" for each in sorted(wanted - ids.keys())]
    found += [f"not of the run: {each}" for each in sorted(ids.keys() - wanted)]
    found += [f"twice: {each}" for each, count in ids.items() if count > 1]
    other = {row[2]: row for row in theirs}
    found += [f"other: {row[2]}" for row in ours if other.get(row[2], row) != row]
    steps = [line["step"] for line in metrics(run)]
    if steps != list(range(1, STEPS + 1)):
        found.append(f"steps in the metrics: {steps}")
    if is_exact and metrics(run) != metrics(whole):
        found.append("other metrics")
    names = sorted(path.name for path in whole.last_checkpoint().glob("*.safetensors"))
    for name in names:
        pair = [each.last_checkpoint() / name for each in (run, whole)]
        if is_exact and pair[0].read_bytes() != pair[1].read_bytes():
            found.append(f"other bits: {name}")
        elif not is_exact and name == "model.safetensors":
            mine, others = map(load_file, pair)
            gap = max(np.abs(mine[key] - others[key]).max() for key in others)
            if not gap < 1e-6:
                found.append(f"weights differ by {gap}")
    unfinished = [path.name for path in (run.path / "checkpoints").glob(".writing_*")]
    return found + [f"unfinished: {name}" for name in unfinished]


@contextmanager
def failing_judge() -> Iterator[str]:
    """Serves a model that judges: its score depends on the answer alone. A third of the answers is
    first refused, a few are late, and a few are first not given within the client's time."""
    asked: Counter[str] = Counter()

    def reply(body: dict[str, Any]) -> tuple[int, dict[str, Any] | str]:
        key = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()
        number, is_first = int(key, 16), not asked[key]
        asked[key] += 1
        if is_first and number % 3 == 0:
            return 503, {"error": {"message": "out of order"}}
        if is_first and number % 17 == 1:
            time.sleep(4)
        if number % 5 == 1:
            time.sleep(0.2)
        return 200, message(json.dumps({"score": number % 11 / 10}))

    with ChatServer(reply) as server:
        yield server.url


if __name__ == "__main__":
    sys.exit(main())
