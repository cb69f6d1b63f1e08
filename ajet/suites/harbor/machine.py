"""Opens the container of a Harbor task, and runs its tests or its solution there.

podman and docker run the task's image, which is built once. bwrap has no images: the Dockerfile's
steps run in each episode's sandbox, on this machine's own system, without a network.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ajet.core.errors import EnvironmentFault
from ajet.core.process.process_guard import guarded
from ajet.sandbox.command import TIMED_OUT, CommandOutcome, LimitExceeded, Session, open_session
from ajet.sandbox.files import copy_folder, remove_folder
from ajet.sandbox.runtime import SYSTEM_PATH, WORKSPACE, Folders, Runtime, last_line
from ajet.suites.harbor.dockerfile import build_script
from ajet.suites.harbor.task_folder import HarborTask, with_variables

LOGS = ("/logs/agent", "/logs/verifier", "/logs/artifacts")
REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
FOLDERS = ("app", "home", "logs", "opt", "root", "solution", "srv", "tests", "tmp", "var")
"""The folders below / that are a program's to write in bwrap, with those of the Dockerfile."""
SYSTEM = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
SYSTEM += (WORKSPACE[1:],)
SOLUTION_S = 3600.0
"""How long a solution may take where task.toml has no timeout_sec of the agent."""
COPY_S = 60.0
"""How long copying the tests into the container may take."""


@dataclass(frozen=True)
class Verdict:
    """What the tests wrote, by name; `problem` is one line if they gave no reward."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None

    @property
    def reward(self) -> float:
        """The one named `reward`, or the only one; 0 where the tests gave none."""
        if "reward" in self.rewards or len(self.rewards) != 1:
            return float(self.rewards.get("reward", 0.0))
        return float(next(iter(self.rewards.values())))


class Machine:
    """The open container of one episode."""

    def __init__(self, task: HarborTask, session: Session, folders: Folders, before: str) -> None:
        self._task, self._session, self._folders = task, session, folders
        self._before = before

    async def run(
        self, command: str, *, timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> CommandOutcome:
        """Runs a command of bash in the task's folder, with the task's variables."""
        return await self._session.run(
            f"{self._before}\n{command}", timeout_s=timeout_s, environment=environment
        )

    async def put(self, source: Path, target: str) -> None:
        """Copies the content of a folder of this machine into the container."""
        passed = self._folders.workspace / "put"
        await asyncio.to_thread(copy_folder, source, passed)
        outcome = await self._session.run(
            f"mkdir -p {target} && cp -a {WORKSPACE}/put/. {target}/", timeout_s=COPY_S
        )
        await asyncio.to_thread(remove_folder, passed)
        if outcome.exit_code:
            raise EnvironmentFault(f"{source}: not copied to {target}: {_last(outcome.output)}")

    async def solve(self) -> CommandOutcome:
        """Runs the reference solution, as Harbor's agent `oracle`."""
        await self.put(self._task.solution, "/solution")
        variables = with_variables(self._task.config.solution.env, f"{self._task.folder}: solution")
        variables |= {"DEBIAN_FRONTEND": "noninteractive"}
        return await self.run(
            "chmod +x /solution/solve.sh && /solution/solve.sh",
            timeout_s=self._task.config.agent.timeout_sec or SOLUTION_S,
            environment=variables,
        )

    async def verify(self) -> Verdict:
        """Runs the tests and reads the reward that they write. As in Harbor, the tests are copied
        into the container after the agent has ended; processes that it started may still run."""
        await self._session.run(f"rm -f {' '.join(REWARDS)}", timeout_s=COPY_S)
        await self.put(self._task.tests, "/tests")
        verifier = self._task.config.verifier
        outcome = await self.run(
            "chmod +x /tests/test.sh; /tests/test.sh > /logs/verifier/test-stdout.txt 2>&1",
            timeout_s=verifier.timeout_sec,
            environment=with_variables(verifier.env, f"{self._task.folder}: verifier"),
        )
        if outcome.exit_code == TIMED_OUT:
            return Verdict(problem=f"the tests ran longer than {verifier.timeout_sec:g} s")
        for file in REWARDS:
            content = await self._session.run(f"cat {file}", timeout_s=COPY_S)
            if content.exit_code == 0:
                return read_reward(content.output, file)
        return Verdict(problem="the tests wrote neither reward.json nor reward.txt")


def read_reward(text: str, file: str) -> Verdict:
    """Reads a reward file: a number, or in JSON an object of numbers."""
    name = Path(file).name
    try:
        content = json.loads(text) if name.endswith(".json") else float(text)
    except ValueError:
        return Verdict(problem=f"{name} has no number: {text.strip()[:80]!r}")
    if name.endswith(".json") and not isinstance(content, dict):
        return Verdict(problem=f"{name} has {text.strip()[:80]}, not an object of numbers")
    rewards = content if isinstance(content, dict) else {"reward": content}
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            return Verdict(problem=f"{name}: {key} is {value!r}, not a finite number")
    if "reward" not in rewards and len(rewards) != 1:
        names = ", ".join(rewards) or "nothing"
        return Verdict(rewards, problem=f"{name} has {names}, and no `reward`")
    return Verdict(rewards)


@asynccontextmanager
async def open_machine(task: HarborTask, runtime: Runtime) -> AsyncGenerator[Machine, None]:
    """Starts the task's container with its files, and removes it. Raises `EnvironmentFault` if it
    cannot be made."""
    limits = runtime.limits
    asked = task.config.environment.memory_mb
    if asked is not None:
        limits = limits.model_copy(update={"memory_mib": min(limits.memory_mib or asked, asked)})
    runtime = replace(runtime, limits=limits, owns_root=True)
    if runtime.has_image:
        runtime = await asyncio.to_thread(_with_image, runtime, task)
    folders = Folders(Path(tempfile.mkdtemp(prefix="ajet-harbor-")))
    folders.make()
    variables = with_variables(task.config.environment.env, f"{task.folder}: environment")
    try:
        workdir = task.config.environment.workdir
        setup, before = "", "" if workdir is None else f"cd {workdir}"
        if not runtime.has_image:
            script = build_script(task.dockerfile, f"{WORKSPACE}/context", workdir)
            setup, before = script.setup, script.before
            for name in {*FOLDERS, *script.folders} - {*SYSTEM}:
                (folders.root / name).mkdir()
            await asyncio.to_thread(copy_folder, task.context, folders.workspace / "context")
            variables = {"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8", **variables}
        async with open_session(runtime, folders, variables) as session:
            try:
                made = await session.run(
                    f"{setup}\nmkdir -p {' '.join(LOGS)}; rm -rf {WORKSPACE}/context",
                    timeout_s=task.config.environment.build_timeout_sec,
                )
            except LimitExceeded as limit:
                raise EnvironmentFault(f"{task.dockerfile}: {limit}") from limit
            if made.exit_code:
                raise EnvironmentFault(f"{task.dockerfile}: {_last(made.output)}")
            yield Machine(task, session, folders, before)
    finally:
        await asyncio.to_thread(remove_folder, folders.base)


def _with_image(runtime: Runtime, task: HarborTask) -> Runtime:
    """Returns the runtime with the task's image, which is built if there is none yet."""
    tool, environment = runtime.kind, task.config.environment
    name = environment.docker_image or f"localhost/ajet-harbor:{task.digest()[:32]}"
    runtime = replace(runtime, image=name)
    if runtime.image_problem() is None:
        return runtime
    if environment.docker_image is not None:
        raise EnvironmentFault(
            f"{task.folder}: {tool} has no image {name!r}, and ajet pulls none: {tool} pull {name}"
        )
    pull = "--pull=never" if tool == "podman" else "--pull=false"
    line = guarded([tool, "build", pull, "--quiet", f"--tag={name}", str(task.context)])
    seconds = environment.build_timeout_sec
    try:
        built = subprocess.run(line, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        limit = f"not done within {seconds:g} s (environment.build_timeout_sec)"
        raise EnvironmentFault(f"{task.dockerfile}: {tool} build: {limit}") from None
    if built.returncode != 0:
        raise EnvironmentFault(f"{task.dockerfile}: {tool} build: {last_line(built)}")
    return runtime


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it failed without a message"


@dataclass(frozen=True)
class TaskReport:
    """The verdicts on the solution and on an untouched container, and the seconds of both."""

    name: str
    solution: Verdict
    empty: Verdict
    seconds: float

    @property
    def fault(self) -> str | None:
        """Returns why the task is of no use, or None."""
        if self.solution.problem is not None:
            return f"with the solution, {self.solution.problem}"
        if self.solution.reward < 1.0:
            return f"the solution's reward is {self.solution.reward:g}"
        if self.empty.reward >= self.solution.reward:
            return "doing nothing has the solution's reward"
        return None


async def check_task(task: HarborTask, runtime: Runtime) -> TaskReport:
    """Runs a task without a model: its solution must be rewarded, and doing nothing must not."""
    started = time.monotonic()
    solution = await _verdict(task, runtime, solved=True)
    empty = await _verdict(task, runtime, solved=False)
    return TaskReport(task.name, solution, empty, time.monotonic() - started)


async def _verdict(task: HarborTask, runtime: Runtime, *, solved: bool) -> Verdict:
    try:
        async with open_machine(task, runtime) as machine:
            if solved:
                await machine.solve()
            return await machine.verify()
    except (EnvironmentFault, LimitExceeded) as error:
        return Verdict(problem=str(error))
