"""Explorer and trainer as two commands on one run folder, which exchange notes through the buffer.
Either may be killed and started again; the other waits. On two machines they share the run folder
(at the same path) and a PostgreSQL database: SQLite is for one machine.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loguru import logger

from ajet import assembly
from ajet.backbones.disaggregated.async_run import (
    left_out_reason,
    open_buffer,
    prune_buffer,
    reopen_buffer,
)
from ajet.backbones.disaggregated.explorer import PLAN, Explorer, ExplorerSettings, VersionState
from ajet.backbones.disaggregated.trainer import Trainer
from ajet.core.buffer.buffer import ATTEMPT, ATTEMPTS, TRAINED, AttemptOver, GroupBuffer
from ajet.core.buffer.journal import Journal
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.bounded_loop import first_of
from ajet.core.process.interrupt import Interrupt, nothing
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.core.record.run_recorder import UpdateRecord
from ajet.core.rollout.batch import BatchRollout
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.stops import StopRequests
from ajet.core.run.run_state import ResumePoint
from ajet.core.run.training_run import TrainingRun
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.manifest import WeightsError
from ajet.serve.exchange.exchange import left_out_of
from ajet.serve.exchange.gateway import ExchangeGateway

POLL_S = 0.2
UNSEEN_NOTICE_S, UNSEEN_TIMEOUT_S = 10.0, 600.0
"""How long published weights may be missing before a warning, and before the explorer gives up.
They may be missing briefly: newer ones replace them, and network file systems show files late."""
STOPPING = (
    "stopping: waits until the episodes that run have ended or are cancelled; finished ones are "
    "kept; Ctrl-C again stops at once"
)
"""Printed by an explorer at the first Ctrl-C."""
# The notes:
#
# note        from        content
# sitting     trainer     the id of its attempt: a new attempt begins from its checkpoint, and the
#                         explorer with it
# sittings    trainer     {attempt: the version of its checkpoint} of all attempts, in their order
# trained     buffer      the trainer's version
# published   trainer     {"sitting": …, "version": 3, "path": "…/weights/v00000003"}
# over        trainer     the attempt that has ended
# complete    trainer     the attempt that has written the checkpoint of the last step
# plan        explorer    its state, for checkpoints
# asks        explorer    the attempt, and the version after which it asks for newer weights
# restarted   explorer    how many groups began again with newer weights
# failed      explorer    {"sitting": …, "reason": …}
# settled     trainer     {step: {episode: why it was left out, or null}} of its last steps: the
#                         explorer tells the clients that ran the episodes
PUBLISHED, OVER, COMPLETE = "published", "over", "complete"
RESTARTED, FAILED = "restarted", "failed"
SETTLED = "settled"
MAX_SETTLED = 4
"""For how many recent steps the trainer notes which episodes were left out. An explorer reads the
notes several times a step, so a few suffice."""
WANTS_WEIGHTS = "asks"
Train = Callable[[int, Sequence[Group]], Awaitable[tuple[UpdateRecord, dict[str, float]]]]
"""Computes the update of a step; see `TrainerClient.train`."""
WriteWeights = Callable[[int], Awaitable[FolderSource]]
"""Writes the present weights under a version."""
LoadWeights = Callable[[FolderSource], Awaitable[object]]
"""Loads weights into the engines."""
MakeRunner = Callable[[], Awaitable[GroupRunner]]
"""Makes the runner, once the trainer has written the tokenizer into the run folder."""


# The trainer's command.


class FolderTrainerClient:
    """The `TrainerClient` of a trainer without engines, which publishes weights as files."""

    def __init__(self, train: Train, write: WriteWeights) -> None:
        self._train, self._write = train, write
        self.published: FolderSource

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[UpdateRecord, dict[str, float]]:
        return await self._train(step, groups)

    async def publish(self, version: int) -> Mapping[str, float]:
        self.published = await self._write(version)
        return {}


class TrainerCommand:
    """The trainer without an explorer: groups come from another process."""

    def __init__(
        self,
        run: TrainingRun,
        train: Train,
        write: WriteWeights,
        resume_point: ResumePoint | None,
    ) -> None:
        config = run.config
        self.run, self.client = run, FolderTrainerClient(train, write)
        self.buffer = open_buffer(config, run.folder)
        attempt = secrets.token_hex(8)
        plan = run.state.explorer if resume_point is not None else None
        resume = config.ajet.trainer_common.resume
        note = None if resume == "disable" else self.buffer.read_note(ATTEMPTS)
        attempts = json.dumps(json.loads(note or "{}") | {attempt: run.state.step})
        notes = {ATTEMPT: attempt, ATTEMPTS: attempts, PLAN: json.dumps(plan), SETTLED: "{}"}
        reopen_buffer(self.buffer, resume_point, resume, notes)
        self._attempt = attempt
        self._failure: str | None = None
        self.versions = PublishedVersionState(run.state.step, self.buffer, self.client, attempt)
        settings = ExplorerSettings.from_config(config, run.tasks.total_steps)
        explorer = RemoteExplorer(self.buffer, self.versions, settings, attempt)
        self.trainer = Trainer(
            self.client, self.buffer, self.versions, run, _no_validation, explorer
        )
        settled: dict[str, dict[str, str | None]] = {}

        def note_settled(step: int, groups: Sequence[Group]) -> None:
            settled[str(step)] = left_out_of(groups)
            for old in list(settled)[:-MAX_SETTLED]:
                del settled[old]
            self.buffer.write_notes(**{SETTLED: json.dumps(settled)})

        if config.clients_run_episodes:
            run.on_step = note_settled
        run.on_saved = partial(prune_buffer, self.buffer, run.folder)

    async def train(self) -> None:
        """Trains the remaining steps, as groups come."""
        logger.warning(
            "another command runs the episodes: start this one again with trinity.mode=explore"
        )
        trainer = self.run.config.ajet.trainer_common
        if trainer.test_freq > 0 or trainer.val_before_train:
            logger.warning("this mode does not validate: use the same command, trinity.mode=bench")
        try:
            await self.client.publish(self.versions.trained)
            await first_of(self.trainer.run(), self._poll())
            await self._save_last()
        except RunFailed:  # raised after a whole step
            await self._save_last()
            raise
        finally:
            self.versions.end()
            self.buffer.close()
        if self._failure is not None:
            raise RunFailed(f"the explorer gave up: {self._failure}", code=Code.PROCESS_LOST)

    def with_explorer_state(self, run: dict[str, Any]) -> dict[str, Any]:
        """Returns the run's state for a checkpoint, with the explorer's state in it."""
        # The note is read first, so that a group which begins meanwhile is in `in_flight`.
        plan = json.loads(self.buffer.read_note(PLAN) or "null")
        in_flight = [(group.index, group.task_index) for group in self.buffer.in_flight()]
        if plan is not None:
            plan["in_flight"] = sorted({*map(tuple, plan["in_flight"]), *in_flight})
        return run | {"explorer": plan}

    async def _save_last(self) -> None:
        await self.run.save_if_new()
        # Only now does a finished run need no more groups: had it been killed before, it would
        # have resumed from an earlier checkpoint and needed the explorer.
        if self.run.state.step >= self.run.tasks.total_steps:
            self.buffer.write_notes(**{COMPLETE: self._attempt})

    async def _poll(self) -> None:
        """Reads the explorer's notes and wakes the trainer periodically; never returns."""
        while True:
            await asyncio.sleep(POLL_S)
            failed = json.loads(self.buffer.read_note(FAILED) or "{}")
            if failed.get("sitting") == self._attempt:
                self._failure = failed["reason"]
            if self._failure is not None or self.run.interrupt.requested:
                self.trainer.stop()
            self.versions.notify()


class PublishedVersionState(VersionState):
    """A VersionState that also writes notes for the explorer."""

    def __init__(
        self, version: int, buffer: GroupBuffer, client: FolderTrainerClient, attempt: str
    ) -> None:
        super().__init__(version)
        self._buffer, self._client, self._attempt = buffer, client, attempt

    def publish(self, version: int) -> None:
        path = str(self._client.published.path)
        published = {"sitting": self._attempt, "version": version, "path": path}
        self._buffer.write_notes(**{PUBLISHED: json.dumps(published)})
        super().publish(version)

    def end(self) -> None:
        self._buffer.write_notes(**{OVER: self._attempt})
        super().end()


class RemoteExplorer:
    """Reads the notes of an explorer in another process, as an `ExplorerControl`."""

    def __init__(
        self, buffer: GroupBuffer, versions: VersionState, settings: ExplorerSettings, attempt: str
    ) -> None:
        self._buffer, self._versions, self.settings = buffer, versions, settings
        self._attempt = attempt

    @property
    def counts(self) -> Counter[str]:
        return Counter(restarted=int(self._buffer.read_note(RESTARTED) or 0))

    async def pause(self) -> None:
        """Does nothing: the explorer pauses by itself when it sees new weights."""

    def resume(self) -> None:
        """Does nothing, see `pause`."""

    def wants_weights(self) -> bool:
        request = _weights_request(self._attempt, self._versions.published)
        return self._buffer.read_note(WANTS_WEIGHTS) == request


async def _no_validation() -> None:
    """Does nothing: this process cannot run episodes."""


# The explorer's command.


class ExplorerCommand:
    """The explorer without a trainer: runs groups for one attempt of the trainer after another,
    until the run is over."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        *,
        make_runner: MakeRunner,
        load: LoadWeights,
        say: Callable[[str], None],
        gateway: ExchangeGateway | None = None,
    ) -> None:
        """`say` prints a line from the signal handler of Ctrl-C. With `gateway`, clients run the
        episodes; the runner must offer them there."""
        self._config, self._folder, self._interrupt = config, folder, interrupt
        self._make_runner, self._load, self._gateway = make_runner, load, gateway
        self._say = say
        self._tasks = assembly.read_tasks(config)
        self._first_tasks = self._tasks.cursor.state_dict()
        self._runner: GroupRunner | None = None
        self._buffer: GroupBuffer | None = None
        self._inode: int | None = None
        self._unseen = UnseenWeights()

    async def explore(self) -> None:
        """Runs groups until the trainer needs no more."""
        self._interrupt.on_first = lambda: self._say(STOPPING)
        try:
            while (attempt := await self._next_attempt()) is not None:
                try:
                    await self._explore(attempt)
                except AttemptOver:
                    logger.warning("the trainer began again from its checkpoint, and so do groups")
                # A thread may still be storing a group, which must not get into the next attempt.
                self._close_buffer()
        finally:
            self._interrupt.on_first = nothing
            self._close_buffer()

    async def _next_attempt(self) -> str | None:
        """Waits for an attempt of the trainer with visible published weights and returns its id;
        returns None when the run is over."""
        has_warned, unseen = False, UnseenWeights()
        while not self._interrupt.requested:
            notes = self._current_buffer().read_notes()
            attempt, weights = notes.get(ATTEMPT), None
            if attempt is not None and notes.get(OVER) != attempt:
                weights = _published_weights(notes, attempt)
            if weights is not None and weights.path.exists():
                return attempt
            is_complete = attempt is not None and notes.get(COMPLETE) == attempt
            if is_complete and int(notes[TRAINED]) >= self._tasks.total_steps:
                return None
            if weights is not None:
                unseen.check(weights)
            elif not has_warned:
                logger.warning(
                    "waiting for a trainer: the same command with trinity.mode=train and the run "
                    f"folder {self._folder.path} (on another machine: shared, at this path)"
                )
                has_warned = True
            await asyncio.sleep(POLL_S)
        self._interrupt.stopped_early = True
        return None

    async def _explore(self, attempt: str) -> None:
        """Runs groups for as long as this attempt lasts."""
        if self._runner is None:
            self._runner = await self._make_runner()
        files = assembly.user_files(self._config, self._tasks.workflows)
        journal = Journal.open(self._folder.finished_db, self._config, files)
        try:
            await self._explore_with(attempt, self._runner, journal)
        finally:
            journal.close()

    async def _explore_with(self, attempt: str, runner: GroupRunner, journal: Journal) -> None:
        buffer = self._current_buffer()
        buffer.attempt = attempt
        notes = buffer.read_notes()
        if notes.get(ATTEMPT) != attempt:
            raise AttemptOver  # a newer attempt started since `_next_attempt`
        stops = StopRequests(self._folder.stops, self._folder.stopped_jsonl)
        runner.watch.attach(stops, shown_path(self._folder.path), None)
        versions = VersionState(int(notes[TRAINED]))
        self._unseen = UnseenWeights()
        self._tasks.cursor.load_state_dict(self._first_tasks)
        journal.reopen(_newest_of(json.loads(notes[ATTEMPTS]), attempt), attempt)
        runner = runner.with_journal(journal)
        if self._gateway is not None:
            runner = self._gateway.acknowledging(runner, journal)
            exchange = self._gateway.exchange
            exchange.begin_attempt()
            exchange.rewind(versions.trained)
            exchange.left_out_reason = partial(left_out_reason, buffer, versions)
        tasks = self._tasks
        settings = ExplorerSettings.from_config(self._config, tasks.total_steps)
        batch = BatchRollout(runner, tasks.training, tasks.cursor, settings.batch)
        explorer = Explorer(batch, runner.admission, tasks.cursor, buffer, versions, settings)
        explorer.load_state_dict(json.loads(notes[PLAN]))
        try:
            polling = self._poll(attempt, explorer, buffer, versions, journal)
            await first_of(polling, explorer.run())
        except RunFailed as failed:
            reason = json.dumps({"sitting": attempt, "reason": str(failed)})
            buffer.write_notes(**{FAILED: reason})
            raise

    async def _poll(
        self,
        attempt: str,
        explorer: Explorer,
        buffer: GroupBuffer,
        versions: VersionState,
        journal: Journal,
    ) -> None:
        """Loads weights whenever the trainer publishes some, until the attempt is over."""
        while not self._interrupt.requested:
            if self._current_buffer() is not buffer:
                raise AttemptOver
            notes = buffer.read_notes()
            if notes.get(ATTEMPT) != attempt:
                raise AttemptOver
            if self._gateway is not None:
                for step, left_out in json.loads(notes.get(SETTLED) or "{}").items():
                    self._gateway.exchange.settle(int(step), left_out)
            if notes.get(OVER) == attempt:
                return
            versions.trained = int(notes[TRAINED])
            if await self._load_new_weights(notes, attempt, explorer, versions):
                journal.remove(journal.groups_except(explorer.is_open))
            self._write_notes(notes, explorer, buffer, versions)
            versions.notify()
            await asyncio.sleep(POLL_S)

    async def _load_new_weights(
        self, notes: Mapping[str, str], attempt: str, explorer: Explorer, versions: VersionState
    ) -> bool:
        """Loads the published weights if they are new; returns whether they were."""
        weights = _published_weights(notes, attempt)
        assert weights is not None
        if weights.version == versions.published:
            return False
        try:
            await explorer.pause()
            await self._load(weights)
        except WeightsError:
            latest = _published_weights(self._current_buffer().read_notes(), attempt)
            if weights.path.exists() and latest == weights:
                raise
            # Newer weights or another attempt have replaced these: the next poll loads them. The
            # explorer stays paused, since engines that failed to load may hold requests, and the
            # next pause would wait for a group that began now.
            self._unseen.check(weights)
            return False
        self._unseen = UnseenWeights()
        explorer.resume()
        versions.publish(weights.version)
        return True

    @staticmethod
    def _write_notes(
        notes: Mapping[str, str], explorer: Explorer, buffer: GroupBuffer, versions: VersionState
    ) -> None:
        """Writes the explorer's notes if they differ from `notes`, which were read before."""
        new_notes = {RESTARTED: str(explorer.counts["restarted"])}
        if explorer.wants_weights():
            new_notes[WANTS_WEIGHTS] = _weights_request(notes[ATTEMPT], versions.published)
        if any(notes.get(name) != value for name, value in new_notes.items()):
            buffer.write_notes(**new_notes)

    def _current_buffer(self) -> GroupBuffer:
        """Returns the buffer; reopens it if its file has been replaced, which a run that starts
        over does."""
        file = self._folder.buffer_db
        is_file = self._config.trinity.buffer.url is None
        # A new database at the same path has another inode.
        inode = file.stat().st_ino if is_file and file.exists() else None
        if self._buffer is None or inode != self._inode:
            self._close_buffer()
            self._buffer = open_buffer(self._config, self._folder)
            self._inode = file.stat().st_ino if is_file else None
        return self._buffer

    def _close_buffer(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


@dataclass
class UnseenWeights:
    """Since when published weights have been missing, and whether a warning said so."""

    since_s: float | None = None
    is_told: bool = False

    def check(self, weights: FolderSource) -> None:
        """Is called at each poll while `weights` are missing: warns once, and raises WeightsError
        after `UNSEEN_TIMEOUT_S`."""
        now_s = time.monotonic()
        if self.since_s is None:
            self.since_s = now_s
        problem = f"the trainer's weights of version {weights.version}: no folder {weights.path}"
        todo = "is the trainer running, and is its run folder mounted here, at the same path?"
        if now_s - self.since_s >= UNSEEN_TIMEOUT_S:
            raise WeightsError(
                f"{problem} after {UNSEEN_TIMEOUT_S:g} s; {todo} Then start this again"
            )
        if now_s - self.since_s >= UNSEEN_NOTICE_S and not self.is_told:
            logger.warning(f"waiting for {problem}; ends after {UNSEEN_TIMEOUT_S:g} s; {todo}")
            self.is_told = True


def _newest_of(attempts: Mapping[str, int], attempt: str) -> dict[str, int]:
    """Returns the newest version of each attempt that is part of `attempt`'s history: a version of
    an earlier attempt is lost if a later one began from an older checkpoint."""
    versions, newest = {}, sys.maxsize
    for name in reversed(list(attempts)[: 1 + list(attempts).index(attempt)]):
        versions[name] = newest
        newest = min(newest, attempts[name])
    return versions


def _weights_request(attempt: str, version: int | None) -> str:
    return f"{attempt} {version}"


def _published_weights(notes: Mapping[str, str], attempt: str) -> FolderSource | None:
    note = json.loads(notes.get(PUBLISHED) or "{}")
    if note.get("sitting") != attempt:
        return None
    return FolderSource(Path(note["path"]), note["version"])
