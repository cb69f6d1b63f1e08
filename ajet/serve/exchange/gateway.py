"""The gateway of a run whose episodes are run by clients: the model's API and the exchange's on one
port. Each call of the model is a sign of life of its episode's client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ajet.core import seeding
from ajet.core.rollout.request import episode_id_of, group_id_of
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.workflow.gateway.gateway import HOST, GatewayResponse
from ajet.core.workflow.registry import WorkflowFactory
from ajet.serve.exchange.exchange import BeginRequest, EpisodeExchange
from ajet.serve.exchange.keyed_gateway import KeyedGateway
from ajet.serve.exchange.workflow import ClientOwned

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ajet.core.rollout.answered import AnsweredCall
    from ajet.core.rollout.group import GroupRunner
    from ajet.core.rollout.request import EpisodeJournal
    from ajet.core.trajectory.trajectory import Trajectory
    from ajet.core.workflow.gateway.dialects import Dialect
    from ajet.core.workflow.gateway.keys import Grant
    from ajet.serve.exchange.runs import ServedRuns


class ExchangeGateway(KeyedGateway):
    """Serves the model to agents, and the exchange to clients with the server's key."""

    def __init__(
        self, exchange: EpisodeExchange, key: str, host: str = HOST, port: int | None = None
    ) -> None:
        super().__init__(key, host, port)
        self._exchange = exchange

    @property
    def exchange(self) -> EpisodeExchange:
        return self._exchange

    def status(self) -> dict[str, Any]:
        return self.exchange.status()

    def add_routes(self, app: FastAPI) -> None:
        from ajet.serve.exchange.routes import add_routes

        add_routes(app, self)

    @property
    def workflows(self) -> WorkflowFactory:
        """Returns the factory of episodes that are offered to clients; a task that names an agent
        gets that agent instead."""
        return WorkflowFactory(ClientOwned.of(self.exchange))

    def acknowledging(self, runner: GroupRunner, journal: EpisodeJournal | None) -> GroupRunner:
        """Returns the runner of a training, whose `journal` also tells clients about the episodes
        that it has stored, and during whose steps clients measure the model; without a journal the
        runner of a validation."""
        told = AcknowledgingJournal(self.exchange, journal)
        if journal is None:
            return runner.with_journal(told)
        return runner.with_journal(told, Measurements(self.exchange, runner).during)

    async def respond(self, dialect: Dialect, grant: Grant, body: bytes) -> GatewayResponse:
        """Answers a call of the model, which is a sign of life of the client."""
        with self.exchange.calling(grant.recorder.episode_id):
            return await super().respond(dialect, grant, body)

    async def check_loop_responds(self, loop: asyncio.AbstractEventLoop, grant: Grant) -> None:
        """Lets a client's call wait while the run's event loop is blocked. A client-owned workflow
        never blocks it, so this is an asynchronous judge or the run itself, and will end."""
        if loop.is_closed() or not self.exchange.is_claimed(grant.recorder.episode_id):
            await super().check_loop_responds(loop, grant)

    def close(self, finish_s: int = 1) -> None:
        self.exchange.close("the run has ended")
        super().close(finish_s)


class SwarmGateway(ExchangeGateway):
    """The gateway of a server whose clients also start and stop its runs."""

    def __init__(self, runs: ServedRuns, key: str, host: str, port: int | None) -> None:
        super().__init__(runs.exchange, key, host, port)
        self.runs = runs

    @property
    def exchange(self) -> EpisodeExchange:
        return self.runs.exchange

    def status(self) -> dict[str, Any]:
        return self.runs.status()

    def add_routes(self, app: FastAPI) -> None:
        from ajet.serve.exchange.routes import add_run_routes

        super().add_routes(app)
        add_run_routes(app, self)


class AcknowledgingJournal:
    """Stores each finished episode in the run's journal, and only then tells its client. Without a
    journal it only tells: validation episodes are stored together at the end, and run again if it
    was interrupted."""

    def __init__(self, exchange: EpisodeExchange, journal: EpisodeJournal | None = None) -> None:
        self._exchange, self._journal = exchange, journal

    @property
    def keeps_calls(self) -> bool:
        return self._journal is not None and self._journal.keeps_calls

    def take(self, group_id: str) -> Mapping[str, Trajectory]:
        """Returns the stored episodes of a group; clients that ask for these again get answers."""
        finished = {} if self._journal is None else self._journal.take(group_id)
        for trajectory in finished.values():
            self._exchange.restore(trajectory)
        return finished

    def answered(self, group_id: str) -> Mapping[str, Sequence[AnsweredCall]]:
        return {} if self._journal is None else self._journal.answered(group_id)

    def put(self, trajectory: Trajectory) -> None:
        if self._journal is not None:
            self._journal.put(trajectory)
        self._exchange.stored(trajectory)

    def put_call(self, plan: WorkflowTask, call: AnsweredCall) -> None:
        if self._journal is not None:
            self._journal.put_call(plan, call)


POLL_S = 0.2


class Measurements:
    """Runs the episodes with which clients measure the model, each by `runner`: not planned, not
    trained, not recorded. A client that brings tasks begins them while a step is rolled out, and at
    other times waits for the next one. An episode whose client aborts it, or is gone, is over:
    nobody else gets it."""

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
