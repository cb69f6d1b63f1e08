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

from ajet.cluster.actor_errors import result_of
from ajet.cluster.engine_process import MAX_CALLS


class ActorPool:
    def __init__(
        self, actor_class: type, arguments: tuple[Any, ...], num: int, *, num_gpus: int, name: str
    ) -> None:
        """Each process has `num_gpus` GPUs. The class's methods are coroutines."""
        remote = ray.remote(actor_class).options(
            num_cpus=1,
            num_gpus=num_gpus,
            max_concurrency=MAX_CALLS,
            max_restarts=-1,
            max_task_retries=-1,
        )
        self._name = name
        self._actors: list[Any] = [remote.remote(*arguments) for _ in range(num)]
        self._num_calls = [0] * num

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
