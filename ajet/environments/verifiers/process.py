"""Starts the program that plays environments of verifiers (worker.py), one for each process.

The section `verifiers:` of a config names interpreter and environment (docs/environments.md). ajet
does not install the package: it pins other versions of openai and mcp.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from pydantic import Field

from ajet.core.config.section import Section
from ajet.core.environment.isolated import PendingCalls
from ajet.core.errors import EnvironmentFault, NoSuchEnvironment, SettingError
from ajet.core.process.process_guard import guarded

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

MAX_LINE_BYTES = 64 << 20
WORKER = Path(__file__).with_name("worker.py")
HIDDEN = ("PYTHONHOME", "VIRTUAL_ENV")
"""Variables that would make the other interpreter use this one's packages."""
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[VerifiersProcess]]]
_shared = WeakKeyDictionary()


class VerifiersSection(Section):
    python: str = Field(
        default="python", description="The interpreter that has verifiers and the environment."
    )
    env: dict[str, Any] = Field(
        default={},
        description="The environment: taskset (with an id), roles and limits, as vf-eval's [env] "
        "has them; or id, args and split (train or eval) of a package with load_environment.",
    )
    num_tasks: int | None = Field(
        default=None, ge=1, description="How many tasks, from the first; null takes all."
    )
    num_validation_tasks: int = Field(
        default=0, ge=0, description="How many of these tasks, from the last, are held out."
    )
    validation_env: dict[str, Any] | None = Field(
        default=None, description="Changes to env for held-out tasks: {taskset: {…}}."
    )
    start_timeout_s: float = Field(
        default=300.0, gt=0, description="How long loading the environment may take."
    )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the section of the config; raises ConfigError if it is missing or wrong."""
        section = cls.from_sections(config.user_sections(), "verifiers")
        if "taskset" not in section.env:
            _check_classic("verifiers.env", section.env)
            _check_classic("verifiers.validation_env", section.env | (section.validation_env or {}))
        elif not isinstance(taskset := section.env["taskset"], dict) or not taskset.get("id"):
            raise NoSuchEnvironment(
                "verifiers.env.taskset.id names no environment: write the id of an installed one"
            )
        return section


def _check_classic(key: str, env: Mapping[str, Any]) -> None:
    """Checks a section for `load_environment`: an id, arguments and a split."""
    if not isinstance(env.get("id"), str):
        raise NoSuchEnvironment(
            f"{key} names no environment: write taskset: {{id: …}}, or id for a package with "
            "load_environment"
        )
    unknown = env.keys() - {"id", "args", "split"}
    if unknown or not isinstance(env.get("args", {}), dict):
        raise SettingError(
            f"{key}.{min(unknown, default='args')}: an environment without a taskset has id, "
            "args (a mapping) and split"
        )
    if env.get("split", "train") not in ("train", "eval"):
        raise SettingError(f"{key}.split is train or eval, not {env['split']!r}")


class VerifiersProcess:
    """A started program, under a process guard; it ends with the run. `ask` sends a call and waits
    for its answer; any failure is an EnvironmentFault of one line. A program that ended is not
    restarted: each later episode is an env_error."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._calls = PendingCalls("verifiers: ")
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, section: VerifiersSection, env: Mapping[str, Any]) -> Self:
        interpreter = Path(section.python)
        # Its folder comes first, so that programs next to it (uv) are found.
        path = os.pathsep.join([str(interpreter.absolute().parent), os.environ.get("PATH", "")])
        variables = {k: v for k, v in os.environ.items() if k not in HIDDEN}
        # PYTHONPATH rather than sys.path, so that the tool servers that it starts inherit it.
        variables |= {"PATH": path, "PYTHONPATH": str(Path.cwd())}
        process = await asyncio.create_subprocess_exec(
            # -P: files next to the program must not hide packages.
            *guarded([section.python, "-P", str(WORKER)]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=variables,
            limit=MAX_LINE_BYTES,
        )
        self = cls(process)
        try:
            async with asyncio.timeout(section.start_timeout_s):
                await self.ask("open", env=dict(env))
        except TimeoutError:
            await self.close()
            raise EnvironmentFault(
                f"verifiers: {section.python} did not load the environment within "
                f"{section.start_timeout_s:g} s (verifiers.start_timeout_s)"
            ) from None
        except BaseException:
            await self.close()
            raise
        return self

    async def ask(self, call: str, **arguments: Any) -> Any:
        """Returns the program's answer to a call. A caller that is cancelled cancels the call."""
        number, answer = self._calls.begin()
        try:
            self._send({"number": number, "call": call, **arguments})
            return await answer
        except asyncio.CancelledError:
            if not self._reading.done():
                self._send({"number": number, "call": "cancel"})
            raise
        finally:
            self._calls.forget(number)

    async def close(self) -> None:
        self._reading.cancel()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._reading.done():
            raise EnvironmentFault(self._ended())
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        """Gives each answer to its caller, until the program ends."""
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                self._calls.deliver(json.loads(line))
            await self._process.wait()
        except (ValueError, KeyError, TypeError, AttributeError):  # not a message of worker.py
            self._process.terminate()
        self._calls.fail(self._ended())

    def _ended(self) -> str:
        code = self._process.returncode
        return f"verifiers: its program ended{'' if code is None else f' (exit code {code})'}"


async def shared_process(section: VerifiersSection, env: Mapping[str, Any]) -> VerifiersProcess:
    """Returns the program of this event loop that has loaded `env`; the first caller starts it."""
    started = _shared.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([section.python, env], sort_keys=True, default=str)
    if key not in started:
        started[key] = asyncio.ensure_future(VerifiersProcess.start(section, env))
    return await asyncio.shield(started[key])
