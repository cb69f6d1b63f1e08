"""Processes of one class on Ray: each call goes to the one with the fewest under way.

    pool = ActorPool(Samples, (config,), num=4, num_gpus=1, name="sampler")
    await pool.call("sample", prompt)       a method of Samples, in one of four processes

A process that is lost starts again, on a node that is left, and gets its calls again: a method must
give the same for the same arguments.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import RayActorError

from ajet.cluster.actor_errors import result_of
from ajet.cluster.engine_process import MAX_CALLS
from ajet.core.errors import RunFailed, TooFewGpus
from ajet.core.errors.codes import Code


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
