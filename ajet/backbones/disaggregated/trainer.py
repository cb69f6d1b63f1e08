"""The half of a run that learns: takes a batch as soon as there is one, updates, publishes.

    buffer.take ─> credit ─> advantages ─> update ─> buffer.trained ─> publish ─> record
       │ waits for enough groups, and for those whose last step this is

The version is the number of updates. A step at version v trains on tokens of versions v - bound to
v; that is asserted of every group.

Not covered: what an update is (`Seat`), and which groups run (explorer.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from ajet.backbones.disaggregated.explorer import ExplorerSettings
from ajet.backbones.disaggregated.place import Place
from ajet.core.buffer.buffer import Buffer, Taken
from ajet.core.buffer.staleness import histogram, staleness_metrics, versions
from ajet.core.record.books import Books, Taught
from ajet.core.rollout.batch import StepGroups, most_telling
from ajet.core.trajectory.trajectory import Group


class Seat(Protocol):
    """Who does the trainer's work: a learner in this process, or a group of ranks."""

    async def learn(self, step: int, groups: Sequence[Group]) -> tuple[Taught, dict[str, float]]:
        """One update: what it read, and its metrics."""
        ...

    async def publish(self, version: int) -> Mapping[str, float]:
        """The engines take the weights as they are now; metrics of that."""
        ...


class ExplorerSide(Protocol):
    """The explorer, as far as a trainer must know it."""

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


class Validator(Protocol):
    async def if_due(self) -> None: ...


class Trainer:
    """`run` returns when the last step is done, or somebody asked to stop."""

    def __init__(
        self,
        seat: Seat,
        buffer: Buffer,
        place: Place,
        books: Books,
        validation: Validator,
        explorer: ExplorerSide,
        *,
        explorer_asks: bool = False,
    ) -> None:
        """`explorer_asks`: weights travel when the explorer wants them, or the bound does."""
        self._seat, self._buffer, self._place = seat, buffer, place
        self._books, self._validation, self._explorer = books, validation, explorer
        self._explorer_asks = explorer_asks
        self._taken_s, self._waited_s = time.monotonic(), 0.0
        self._is_stopping = False

    async def run(self) -> None:
        """All steps that are left."""
        in_turns = self._buffer.bound.max_staleness == 0
        if not in_turns:
            self._place.publish(self._place.trained)
        await self._validation.if_due()
        for step in self._books.steps_left():
            if in_turns:  # the batch of a step begins when all of the step before is over
                self._place.publish(step - 1)
            taken = await self._next(step)
            if taken is None:
                return
            await self._step(step, taken)
            if self._is_stopping:
                return
            await self._validation.if_due()
            await self._books.save_if_due()
        await self._books.save_if_new()

    def stop(self) -> None:
        """Nothing is taken any more; a step that goes on is finished."""
        self._is_stopping = True
        self._place.ring()

    async def _next(self, step: int) -> Taken | None:
        """The batch, when there is one; None once it is to stop. What has got too old makes room
        for the explorer."""
        bound, started_s = self._buffer.bound, time.monotonic()
        number = None if bound.max_staleness == 0 else bound.groups_per_step
        while not self._is_stopping:
            bell, expired = self._place.bell, self._buffer.num_expired
            taken = await asyncio.to_thread(self._buffer.take, step - 1, number)
            if taken is not None:
                self._waited_s = time.monotonic() - started_s
                return taken
            if self._buffer.num_expired > expired:
                self._place.ring()
            await bell.wait()
        return None

    async def _step(self, step: int, taken: Taken) -> None:
        """The algorithm."""
        rollout = self._step_groups(taken)
        self._books.rolled_out(step, rollout)
        started_s = time.monotonic()
        ages = self._ages(taken, step - 1)
        lesson, learnt = await self._seat.learn(step, rollout.groups)
        self._buffer.trained(step)
        self._place.trained = step
        metrics = {"trainer/waited_s": self._waited_s}
        metrics["trainer/update_s"] = time.monotonic() - started_s
        if self._is_due(step):
            metrics |= await self._publish(step)
        metrics |= {**staleness_metrics(ages), **self._counts(taken)}
        self._add_ages(ages)
        self._books.record(step, rollout, lesson, learnt | metrics)
        self._place.ring()

    def _is_due(self, version: int) -> bool:
        published = self._place.published
        assert published is not None
        asked = self._explorer_asks and self._explorer.asks()
        return asked or self._buffer.bound.is_due(version, published)

    async def _publish(self, version: int) -> dict[str, float]:
        started_s = time.monotonic()
        try:
            await self._explorer.hold()
            found = await self._seat.publish(version)
        finally:
            self._explorer.release()
        if self._buffer.bound.max_staleness:
            self._place.publish(version)
        return {"trainer/publish_s": time.monotonic() - started_s, **found}

    def _step_groups(self, taken: Taken) -> StepGroups:
        """In the order of the plan; `seconds` are those since the batch before was taken."""
        now_s = time.monotonic()
        seconds, self._taken_s = now_s - self._taken_s, now_s
        stale = {item.place for item in taken.expired}
        groups = [
            item.group.set_aside("stale", self._buffer.reason)
            if item.place in stale
            else item.group
            for item in taken.all
        ]
        baselines = [group for item in taken.all for group in item.baselines]
        kept = self._explorer.settings.batch.train_batch_size
        return StepGroups(most_telling(groups, kept), baselines, seconds)

    def _ages(self, taken: Taken, version: int) -> Counter[int]:
        oldest = self._buffer.bound.oldest_allowed(version)
        for item in taken.items:
            found = versions(item.group)
            assert found is None or self._is_lost(found[1], version) or found[0] >= oldest
        return histogram((item.group for item in taken.items), version)

    @staticmethod
    def _is_lost(newest: int, version: int) -> bool:
        """Sampled by an update that was lost with an earlier sitting; the buffer counts its age."""
        return newest > version

    def _add_ages(self, ages: Counter[int]) -> None:
        if self._buffer.bound.max_staleness:
            total = self._books.state.staleness
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
