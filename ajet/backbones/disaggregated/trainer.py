"""The trainer of an asynchronous run: takes a batch as soon as there is one, updates, publishes.

buffer.take ─> rewards, values ─> advantages ─> update ─> mark_trained ─> publish ─> record
   │ waits for enough groups, and for those that would be too old for the next step
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ajet.backbones.disaggregated.explorer import ExplorerSettings, VersionState
from ajet.core.buffer.buffer import GroupBuffer, TakenBatch
from ajet.core.buffer.staleness import age_histogram, old_key_metrics, staleness_metrics
from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.record.run_recorder import UpdateRecord
from ajet.core.rollout.batch import StepGroups, top_by_variance
from ajet.core.run.training_run import TrainingRun
from ajet.core.trajectory.trajectory import Group, SelectionName

SURPLUS = "the last step of the run has enough groups without it"
"""The recorded reason for leaving out a group when the run ends."""


class TrainerClient(Protocol):
    """Computes the updates and publishes the weights."""

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[UpdateRecord, dict[str, float]]:
        """Computes one update; returns its record and its metrics."""
        ...

    async def publish(self, version: int) -> Mapping[str, float]:
        """Gives the engines the present weights; returns metrics of the sync."""
        ...


class ExplorerControl(Protocol):
    """The explorer as its trainer sees it."""

    @property
    def settings(self) -> ExplorerSettings: ...
    @property
    def counts(self) -> Counter[str]: ...

    async def pause(self) -> None:
        """Is called before the engines take new weights."""
        ...

    def resume(self) -> None:
        """Is called after that."""
        ...

    def wants_weights(self) -> bool:
        """Returns whether the explorer asks for newer weights."""
        ...


class Trainer:
    """Trains on the groups of a buffer; `run` returns after the last step, or after `stop`. The
    version is the number of updates. A step at version v trains on tokens of versions v - bound to
    v. The last step also records the groups that end during its update."""

    def __init__(
        self,
        client: TrainerClient,
        buffer: GroupBuffer,
        versions: VersionState,
        run: TrainingRun,
        validate: Callable[[], Awaitable[object]],
        explorer: ExplorerControl,
    ) -> None:
        """`validate` measures held-out success if a validation is due."""
        self._client, self._buffer, self._versions = client, buffer, versions
        self._run, self._validate, self._explorer = run, validate, explorer
        # Weights are published when the explorer asks for them, or the staleness bound requires it.
        sync_style = run.config.trinity.synchronizer.sync_style
        self._explorer_driven = sync_style == "explorer_driven"
        # Clients are told that a journaled episode counts, so its weights must survive a kill: a
        # checkpoint that is due is written before its weights are published.
        self._saves_first = run.config.clients_run_episodes
        self._sync_metrics: dict[str, float] = {}
        self._taken_s, self._waited_s = time.monotonic(), 0.0
        self._is_stopping = False

    async def run(self) -> None:
        is_synchronous = self._buffer.bound.max_staleness == 0
        if not is_synchronous:  # the explorer may begin: the engines have the first weights
            self._versions.publish(self._versions.trained)
        await self._validate()
        for step in self._run.steps_left():
            if is_synchronous:  # a batch begins only after the step before has been saved
                self._versions.publish(step - 1)
            batch = await self._next_batch(step)
            if batch is None:
                return
            await self._step(step, batch)
            if self._is_stopping:
                return
            await self._validate()
            await self._run.save_if_due()
        await self._run.save_if_new()

    def stop(self) -> None:
        """Makes `run` return after the step in progress, if any."""
        self._is_stopping = True
        self._versions.notify()

    async def _next_batch(self, step: int) -> TakenBatch | None:
        """Waits for the batch of the step and returns it, or None after `stop`."""
        bound, started_s = self._buffer.bound, time.monotonic()
        # A synchronous batch is whatever its step has put into the buffer.
        number = None if bound.max_staleness == 0 else bound.groups_per_step
        while not self._is_stopping:
            # Taken before the buffer is read: a change in between would be missed.
            changed, expired = self._versions.changed, self._buffer.num_expired
            is_last = self._is_last(step)
            batch = await asyncio.to_thread(self._buffer.take, step - 1, number, is_last=is_last)
            if batch is not None:
                self._waited_s = time.monotonic() - started_s
                return batch
            if self._buffer.num_expired > expired:
                self._versions.notify()  # expired groups leave capacity for the explorer
            await changed.wait()
        return None

    async def _step(self, step: int, batch: TakenBatch) -> None:
        started_s = time.monotonic()
        rollout = self._step_groups(step, batch, started_s - self._taken_s)
        self._taken_s = started_s
        self._run.rollout_done(step, rollout)
        ages = self._token_ages(batch, step - 1)
        update, metrics = await self._client.train(step, rollout.groups)
        late = self._buffer.mark_trained(step, is_last=self._is_last(step))
        self._versions.trained = step
        if late:  # ended during the update of the run's last step
            batch = replace(batch, surplus=[*batch.surplus, *late])
            rollout = self._step_groups(step, batch, rollout.seconds)
        metrics |= {
            "trainer/waited_s": self._waited_s,
            "trainer/update_s": time.monotonic() - started_s,
        }
        is_due = self._is_due(step)
        if is_due and not self._saves_first:
            self._sync_metrics = await self._publish(step)
        counts = self._buffer.counts()
        metrics |= {
            **self._sync_metrics,
            **staleness_metrics(ages),
            **old_key_metrics(item.group for item in batch.items),
            "buffer/ready": float(counts.get("ready", 0)),
            "buffer/in_flight": float(counts.get("begun", 0)),
            "buffer/expired": float(len(batch.expired)),
            "explorer/restarted": float(self._explorer.counts["restarted"]),
        }
        self._sync_metrics = {}
        if self._buffer.bound.max_staleness:
            total = self._run.state.staleness  # stored as JSON, so its keys are strings
            for age, number in ages.items():
                total[str(age)] = total.get(str(age), 0) + number
        self._run.record_step(step, rollout, update, metrics)
        if is_due and self._saves_first:
            await self._run.save_if_due()
            self._sync_metrics = await self._publish(step)  # recorded with the next step
        self._versions.notify()

    def _is_last(self, step: int) -> bool:
        return step == self._run.tasks.total_steps

    def _is_due(self, version: int) -> bool:
        published = self._versions.published
        assert published is not None
        is_requested = self._explorer_driven and self._explorer.wants_weights()
        return is_requested or self._buffer.bound.is_due(version, published)

    async def _publish(self, version: int) -> dict[str, float]:
        started_s = time.monotonic()
        try:
            await self._explorer.pause()
            metrics = await self._client.publish(version)
        finally:
            self._explorer.resume()
        if self._buffer.bound.max_staleness:
            self._versions.publish(version)
        return {"trainer/publish_s": time.monotonic() - started_s, **metrics}

    def _step_groups(self, step: int, batch: TakenBatch, seconds: float) -> StepGroups:
        """Returns the groups in the order of the plan; `seconds` is the time since the previous
        batch was taken."""
        reasons = {
            item.index: self._buffer.expired_reason(item.group, step - 1) for item in batch.expired
        } | {item.index: SURPLUS for item in batch.surplus}
        groups = [
            item.group.leave_out(SelectionName.STALE, reasons[item.index])
            if item.index in reasons
            else item.group
            for item in batch.all
        ]
        baselines = [group for item in batch.all for group in item.baselines]
        num_trained = self._explorer.settings.batch.train_batch_size
        return StepGroups(top_by_variance(groups, num_trained), baselines, seconds)

    def _token_ages(self, batch: TakenBatch, version: int) -> Counter[int]:
        """Returns how many trained tokens have which age, in updates. Raises CheckpointError for
        an age outside 0 to the bound: the buffer of an old version of ajet lacks the field that
        says which updates are lost."""
        ages: Counter[int] = Counter()
        bound = self._buffer.bound.max_staleness
        for item in batch.items:
            group_ages = age_histogram(item.group, version, item.lost_after)
            if group_ages and not 0 <= min(group_ages) <= max(group_ages) <= bound:
                low, high = min(group_ages), max(group_ages)
                age_range = f"{low} to {high}" if low < high else f"{low}"
                raise CheckpointError(
                    f"group {item.group.group_id} in the buffer {self._buffer.url} has tokens that "
                    f"are {age_range} updates old for step {version + 1}, and "
                    f"trinity.max_staleness is {bound}: another version of ajet stored it. "
                    "Move the buffer away; groups that were finished and not trained are lost",
                    code=Code.BUFFER_UNUSABLE,
                )
            ages += group_ages
        return ages
