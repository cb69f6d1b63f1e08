"""Episodes with which clients measure the model: not planned, not trained, not recorded. A client
that brings tasks begins them while a step is rolled out, and at other times waits for the next one.
An episode whose client aborts it, or is gone, is over: nobody else gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ajet.core import seeding
from ajet.core.rollout.request import episode_id_of, group_id_of
from ajet.core.task.workflow_task import WorkflowTask
from ajet.serve.exchange.exchange import BeginRequest, EpisodeExchange

if TYPE_CHECKING:
    from ajet.core.rollout.group import GroupRunner

POLL_S = 0.2


class Measurements:
    """Runs the episodes with which clients measure the model, each by `runner`."""

    def __init__(self, exchange: EpisodeExchange, runner: GroupRunner) -> None:
        self._exchange, self._runner = exchange, runner
        self._number = 0

    @asynccontextmanager
    async def during(self, step: int) -> AsyncIterator[None]:
        """Begins them within the block, and waits at its end for those that clients run."""
        loop, running = asyncio.get_running_loop(), dict[str, asyncio.Task[None]]()

        def begin(request: BeginRequest) -> None:
            group_id = group_id_of(step, "measure", self._number)
            seed = seeding.derive(self._runner.run_seed, "environment", "measure", self._number)
            running[group_id] = loop.create_task(self._run(step, group_id, seed, request))
            self._number += 1

        # Requests come from the server's threads.
        with self._exchange.measuring(lambda request: loop.call_soon_threadsafe(begin, request)):
            try:
                yield
            except BaseException:
                for task in running.values():
                    task.cancel()
                raise
        await asyncio.sleep(0)  # for `begin` of requests that came just before the block's end
        while running := {name: task for name, task in running.items() if not task.done()}:
            for group_id, task in running.items():
                if not self._exchange.retract(group_id):
                    task.cancel()
            await asyncio.wait(running.values(), timeout=POLL_S)

    async def _run(self, step: int, group_id: str, seed: int, request: BeginRequest) -> None:
        assert request.task is not None
        self._exchange.reserve(group_id, request)
        episode_id = episode_id_of(group_id, 0)
        plan = WorkflowTask(request.task, episode_id, group_id, 0, step, "eval", seed)
        self._exchange.stored(await self._runner.rerun(plan))
