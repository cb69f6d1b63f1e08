"""The trainer of an asynchronous run: takes a batch as soon as there is one, updates, publishes.

    buffer.take ─> rewards, values ─> advantages ─> update ─> buffer.trained ─> publish ─> record
       │ waits for enough groups, and for those that would be too old for the next step

The version is the number of updates. A step at version v trains on tokens of versions v - bound to
v; that is asserted of every group.

Not covered: what an update is (`TrainerClient`), and which groups run (explorer.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from ajet.backbones.disaggregated.explorer import ExplorerSettings
from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.buffer.buffer import Buffer, Taken
from ajet.core.buffer.staleness import histogram, staleness_metrics
from ajet.core.buffer.staleness import versions as versions_of
from ajet.core.record.run_recorder import UpdateRecord
from ajet.core.rollout.batch import StepGroups, top_by_variance
from ajet.core.run.training_run import TrainingRun
from ajet.core.trajectory.trajectory import Group


class TrainerClient(Protocol):
    """What computes updates: a learner in this process, or a group of ranks in others."""

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[UpdateRecord, dict[str, float]]:
        """Computes one update; returns what is recorded of it, and its metrics."""
        ...

    async def publish(self, version: int) -> Mapping[str, float]:
        """Has the engines take the weights as they are now; returns metrics of that."""
        ...


class ExplorerControl(Protocol):
    """The explorer as its trainer sees it."""

    @property
    def settings(self) -> ExplorerSettings: ...
    @property
    def counts(self) -> Counter[str]: ...

    async def hold(self) -> None:
        """Before new weights."""
        ...

    def release(self) -> None:
        """After them."""
        ...

    def asks(self) -> bool:
        """Whether it wants others."""
        ...


class Trainer:
    """`run` returns when the last step is done, or somebody asked to stop."""

    def __init__(
        self,
        client: TrainerClient,
        buffer: Buffer,
        versions: VersionState,
        run: TrainingRun,
        validate: Callable[[], Awaitable[None]],
        explorer: ExplorerControl,
        *,
        explorer_asks: bool = False,
    ) -> None:
        """`validate` measures held-out success if it is time. With `explorer_asks` weights travel
        when the explorer wants them, or the staleness bound does."""
        self._client, self._buffer, self._versions = client, buffer, versions
        self._run, self._validate, self._explorer = run, validate, explorer
        self._explorer_asks = explorer_asks
        self._taken_s, self._waited_s = time.monotonic(), 0.0
        self._is_stopping = False

    async def run(self) -> None:
        """All steps that are left."""
        in_turns = self._buffer.bound.max_staleness == 0
        if not in_turns:
            self._versions.publish(self._versions.trained)
        await self._validate()
        for step in self._run.steps_left():
            if in_turns:  # the batch of a step begins when all of the step before is over
                self._versions.publish(step - 1)
            taken = await self._next(step)
            if taken is None:
                return
            await self._step(step, taken)
            if self._is_stopping:
                return
            await self._validate()
            await self._run.save_if_due()
        await self._run.save_if_new()

    def stop(self) -> None:
        """Nothing is taken any more; a step that goes on is finished."""
        self._is_stopping = True
        self._versions.notify()

    async def _next(self, step: int) -> Taken | None:
        """The batch, when there is one; None once it is to stop. What has got too old makes room
        for the explorer."""
        bound, started_s = self._buffer.bound, time.monotonic()
        number = None if bound.max_staleness == 0 else bound.groups_per_step
        while not self._is_stopping:
            changed, expired = self._versions.changed, self._buffer.num_expired
            taken = await asyncio.to_thread(self._buffer.take, step - 1, number)
            if taken is not None:
                self._waited_s = time.monotonic() - started_s
                return taken
            if self._buffer.num_expired > expired:
                self._versions.notify()
            await changed.wait()
        return None

    async def _step(self, step: int, taken: Taken) -> None:
        """The algorithm."""
        rollout = self._step_groups(taken)
        self._run.rollout_done(step, rollout)
        started_s = time.monotonic()
        ages = self._ages(taken, step - 1)
        update, metrics = await self._client.train(step, rollout.groups)
        self._buffer.trained(step)
        self._versions.trained = step
        metrics |= {
            "trainer/waited_s": self._waited_s,
            "trainer/update_s": time.monotonic() - started_s,
        }
        if self._is_due(step):
            metrics |= await self._publish(step)
        metrics |= {**staleness_metrics(ages), **self._counts(taken)}
        self._add_ages(ages)
        self._run.record_step(step, rollout, update, metrics)
        self._versions.notify()

    def _is_due(self, version: int) -> bool:
        published = self._versions.published
        assert published is not None
        asked = self._explorer_asks and self._explorer.asks()
        return asked or self._buffer.bound.is_due(version, published)

    async def _publish(self, version: int) -> dict[str, float]:
        started_s = time.monotonic()
        try:
            await self._explorer.hold()
            found = await self._client.publish(version)
        finally:
            self._explorer.release()
        if self._buffer.bound.max_staleness:
            self._versions.publish(version)
        return {"trainer/publish_s": time.monotonic() - started_s, **found}

    def _step_groups(self, taken: Taken) -> StepGroups:
        """In the order of the plan; `seconds` are those since the batch before was taken."""
        now_s = time.monotonic()
        seconds, self._taken_s = now_s - self._taken_s, now_s
        stale = {item.place for item in taken.expired}
        groups = [
            item.group.leave_out("stale", self._buffer.reason)
            if item.place in stale
            else item.group
            for item in taken.all
        ]
        baselines = [group for item in taken.all for group in item.baselines]
        kept = self._explorer.settings.batch.train_batch_size
        return StepGroups(top_by_variance(groups, kept), baselines, seconds)

    def _ages(self, taken: Taken, version: int) -> Counter[int]:
        oldest = self._buffer.bound.oldest_allowed(version)
        for item in taken.items:
            found = versions_of(item.group)
            assert found is None or self._is_lost(found[1], version) or found[0] >= oldest
        return histogram((item.group for item in taken.items), version)

    @staticmethod
    def _is_lost(newest: int, version: int) -> bool:
        """Sampled by an update that was lost with an earlier attempt; the buffer counts its age."""
        return newest > version

    def _add_ages(self, ages: Counter[int]) -> None:
        if self._buffer.bound.max_staleness:
            total = self._run.state.staleness
            for age, number in ages.items():
                total[str(age)] = total.get(str(age), 0) + number

    def _counts(self, taken: Taken) -> dict[str, float]:
        waiting = self._buffer.counts()
        return {
            "buffer/ready": float(waiting.get("ready", 0)),
            "buffer/in_flight": float(waiting.get("begun", 0)),
            "buffer/expired": float(len(taken.expired)),
            "explorer/restarted": float(self._explorer.counts["restarted"]),
        }
