"""What the actors of a run need: the driver's folders and keys (`ImportEnv`), errors of lost
processes (`ProcessLost`), and a pool of equal processes (`ActorPool`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from ajet.core.errors import ConfigError, RunFailed, TooFewGpus
from ajet.core.errors.codes import Code

SERVICE_PREFIXES = ("AJET_", "OPENAI_", "ANTHROPIC_", "DASHSCOPE_", "HF_TOKEN", "HF_ENDPOINT")
"""Variables with addresses and keys of services. Processes of a joined Ray have the environment of
its `ray start`, not the command's."""
GRACE_S = 5.0
"""How long to wait for other processes' errors: if one is lost, those that need it fail soon."""
MAX_CALLS = 10_000
"""How many calls one engine, router or process of an `ActorPool` serves at the same time."""


@dataclass(frozen=True, slots=True)
class ImportEnv:
    """The current folder, the search path and the services of a process. The services' keys do not
    go through Ray's `runtime_env`, which its logs show."""

    folder: str
    search_path: tuple[str, ...]
    services: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def current(cls) -> ImportEnv:
        search_path = tuple(str(Path(folder).absolute()) for folder in sys.path)
        names = [name for name in os.environ if name.startswith(SERVICE_PREFIXES)]
        return cls(str(Path.cwd()), search_path, {name: os.environ[name] for name in names})

    def enter(self) -> None:
        """Makes relative paths, imports and services work as in the driver."""
        os.environ |= self.services
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: {error.strerror} on {os.uname().nodename}: every machine of the "
                "cluster needs the project in the same folder",
                code=Code.PROJECT_NOT_ON_NODE,
            ) from error
        sys.path += [folder for folder in self.search_path if folder not in sys.path]


class ProcessLost(Exception):
    """A process that the run needs has ended; the message is one line."""


async def result_of(call: Awaitable[Any], name: str) -> Any:
    """Awaits a call of an actor's method and returns its result; `name` is the process's name."""
    try:
        return await call
    except (RayActorError, ObjectLostError) as error:
        raise ProcessLost(f"{name} is lost: its process ended") from error
    except RayTaskError as error:
        raise error.cause from None


async def results_of(calls: Sequence[Awaitable[Any]], names: Sequence[str]) -> list[Any]:
    """Awaits calls of processes that work together and returns their results. If a process is lost
    the others fail too; then `ProcessLost` is raised and not their errors."""
    tasks = [asyncio.ensure_future(result_of(*pair)) for pair in zip(calls, names, strict=True)]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if rest:
        more, rest = await asyncio.wait(rest, timeout=GRACE_S)
        done |= more
    for task in rest:
        task.cancel()
    errors = [error for task in done if not task.cancelled() and (error := task.exception())]
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, ProcessLost))
    return [task.result() for task in tasks]


class ActorPool:
    def __init__(
        self, actor_class: type, arguments: tuple[Any, ...], num: int, *, num_gpus: int, name: str
    ) -> None:
        """Waits until all processes have started. Each has `num_gpus` GPUs; the class's methods
        are coroutines."""
        there = int(ray.cluster_resources().get("GPU", 0))
        if num * num_gpus > there:
            raise TooFewGpus(
                f"{num} processes ({name}) need {num * num_gpus} GPUs, and this Ray has {there}: "
                "ask for fewer"
            )
        remote = ray.remote(actor_class).options(
            num_cpus=0,  # they share the processors, of which there may be fewer
            scheduling_strategy="SPREAD",
            num_gpus=num_gpus,
            max_concurrency=MAX_CALLS,
            max_restarts=-1,
            max_task_retries=-1,
        )
        self._name = name
        self._actors: list[Any] = [remote.remote(*arguments) for _ in range(num)]
        self._num_calls = [0] * num
        try:
            ray.get([actor.__ray_ready__.remote() for actor in self._actors])
        except RayActorError as error:
            reason = str(error).strip().splitlines()[-1]  # before it stands the traceback
            raise RunFailed(f"a {name} did not start: {reason}", code=Code.PROCESS_LOST) from error

    async def call(self, method: str, *arguments: Any) -> Any:
        """Returns what the method returns, or raises its error. A call that is cancelled is
        cancelled there too."""
        number = self._num_calls.index(min(self._num_calls))
        self._num_calls[number] += 1
        reference = getattr(self._actors[number], method).remote(*arguments)
        try:
            return await result_of(reference, f"{self._name} {number}")
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        finally:
            self._num_calls[number] -= 1

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
