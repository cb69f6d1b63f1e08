"""Explorer and trainer as two commands on one run folder: what each must know of the other, they
read in the buffer.

    ajet … trinity.mode=train      takes groups, updates, leaves weights in the run folder
    ajet … trinity.mode=explore    plays with the newest weights, fills the buffer

    note        from        says
    attempt     trainer     which one it is: a new one begins from its checkpoint, and the explorer
                            with it
    attempts    trainer     {attempt: the version of its checkpoint}, of all, in their order
    trained     buffer      the trainer's version
    published   trainer     {"sitting": …, "version": 3, "path": "…/weights/v00000003"}
    over        trainer     the attempt that has ended
    plan        explorer    its place in the plan, which a checkpoint keeps
    asks        explorer    the attempt, and the version after which it wants other weights
    restarted   explorer    how many groups began anew with newer weights
    failed      explorer    {"sitting": …, "reason": …}

Either may be killed and started again; the other waits. Two machines share the run folder (at the
same path) and a PostgreSQL: SQLite is for one machine. Not covered: several explorers of one run;
validation, which is mode bench's.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from ajet import assembly
from ajet.backbones.disaggregated.async_run import (
    explorer_settings,
    forget_saved,
    open_buffer,
    reopen,
)
from ajet.backbones.disaggregated.explorer import PLAN, Explorer, ExplorerSettings
from ajet.backbones.disaggregated.trainer import Trainer, TrainerClient
from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.bounded_loop import first_of
from ajet.core.buffer.buffer import ATTEMPT, ATTEMPTS, TRAINED, AttemptOver, Buffer
from ajet.core.buffer.journal import Journal
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import BatchRollout, BatchSettings
from ajet.core.rollout.group import GroupRunner
from ajet.core.run.resume_point import ResumePoint
from ajet.core.run.training_run import TrainingRun
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.manifest import WeightsError

POLL_S = 0.2
PUBLISHED, OVER, ASKS, RESTARTED, FAILED = "published", "over", "asks", "restarted", "failed"
Load = Callable[[FolderSource], Awaitable[object]]
"""The engines take these weights."""
MakeRunner = Callable[[], Awaitable[GroupRunner]]
"""Is called when the trainer has left the model's words in the run folder."""


# The trainer's command.


class FolderClient(TrainerClient, Protocol):
    """A client that leaves weights in a folder."""

    @property
    def source(self) -> FolderSource:
        """What was published last."""
        ...


class TrainerCommand:
    """The trainer alone: groups come from another process."""

    def __init__(
        self, run: TrainingRun, client: FolderClient, resume_point: ResumePoint | None
    ) -> None:
        config = run.config
        self.run, self.client = run, client
        self.buffer = open_buffer(config, run.folder)
        attempt = secrets.token_hex(8)
        plan = run.state.explorer if resume_point is not None else None
        resume = config.ajet.trainer_common.resume
        past = {} if resume == "disable" else json.loads(self.buffer.told(ATTEMPTS) or "{}")
        attempts = json.dumps(past | {attempt: run.state.step})
        told = {ATTEMPT: attempt, ATTEMPTS: attempts, PLAN: json.dumps(plan)}
        reopen(self.buffer, resume_point, resume, told)
        self._attempt = attempt
        self._failure: str | None = None
        self.versions = PublishedVersionState(run.state.step, self.buffer, client, attempt)
        settings = explorer_settings(config, run.tasks.total_steps)
        explorer = RemoteExplorer(self.buffer, self.versions, settings, attempt)
        asks = config.trinity.synchronizer.sync_style == "explorer_driven"
        self.trainer = Trainer(
            client, self.buffer, self.versions, run, _no_validation, explorer, explorer_asks=asks
        )

    async def train(self) -> None:
        """Trains all steps that are left, as groups come."""
        logger.warning(
            "episodes are played by another command: the same, with trinity.mode=explore"
        )
        trainer = self.run.config.ajet.trainer_common
        if trainer.test_freq > 0 or trainer.val_before_train:
            logger.warning("nobody validates here: the same command with trinity.mode=bench does")
        try:
            await self.client.publish(self.versions.trained)
            await first_of(self.trainer.run(), self._look())
            await self.run.save_if_new()
        finally:
            self.versions.end()
            self.buffer.close()
        if self._failure is not None:
            raise RunFailed(f"the explorer gave up: {self._failure}")

    def saved(self) -> None:
        """There is a checkpoint more."""
        forget_saved(self.buffer, self.run.folder)

    def with_own_state(self, run: dict[str, Any]) -> dict[str, Any]:
        """The run's state for a checkpoint, with the explorer's: its note first, so that a group
        that begins meanwhile is known as one that runs."""
        plan = json.loads(self.buffer.told(PLAN) or "null")
        flying = [(each.place, each.task) for each in self.buffer.in_flight()]
        if plan is not None:
            plan["in_flight"] = sorted({*map(tuple, plan["in_flight"]), *flying})
        return run | {"explorer": plan}

    async def _look(self) -> None:
        """Never ends. Whatever is new, the trainer looks again."""
        while True:
            await asyncio.sleep(POLL_S)
            failed = json.loads(self.buffer.told(FAILED) or "{}")
            if failed.get("sitting") == self._attempt:
                self._failure = failed["reason"]
            if self._failure is not None or self.run.interrupt.requested:
                self.trainer.stop()
            self.versions.notify()


class PublishedVersionState(VersionState):
    """What the trainer publishes is told."""

    def __init__(self, version: int, buffer: Buffer, client: FolderClient, attempt: str) -> None:
        super().__init__(version)
        self._buffer, self._client, self._attempt = buffer, client, attempt

    def publish(self, version: int) -> None:
        path = str(self._client.source.path)
        told = {"sitting": self._attempt, "version": version, "path": path}
        self._buffer.tell(**{PUBLISHED: json.dumps(told)})
        super().publish(version)

    def end(self) -> None:
        self._buffer.tell(**{OVER: self._attempt})
        super().end()


class RemoteExplorer:
    """The explorer as the trainer sees it; it holds its own episodes."""

    def __init__(
        self, buffer: Buffer, versions: VersionState, settings: ExplorerSettings, attempt: str
    ) -> None:
        self._buffer, self._versions, self.settings = buffer, versions, settings
        self._attempt = attempt

    @property
    def counts(self) -> Counter[str]:
        return Counter(restarted=int(self._buffer.told(RESTARTED) or 0))

    async def hold(self) -> None:
        """It does so when it finds the weights."""

    def release(self) -> None:
        """The same."""

    def asks(self) -> bool:
        return self._buffer.told(ASKS) == _wish(self._attempt, self._versions.published)


async def _no_validation() -> None:
    """Nobody here could run the episodes."""


# The explorer's command.


class ExplorerCommand:
    """The explorer alone: one trainer's attempt after another, until the run is over. It stays as
    long as the trainer does, whose need of groups only the trainer knows."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        *,
        make_runner: MakeRunner,
        load: Load,
    ) -> None:
        self._config, self._folder, self._interrupt = config, folder, interrupt
        self._make_runner, self._load = make_runner, load
        self._tasks = assembly.read_tasks(config)
        self._first_tasks = self._tasks.cursor.state_dict()
        self._runner: GroupRunner | None = None
        self._buffer: Buffer | None = None
        self._file: int | None = None

    async def explore(self) -> None:
        """Explores until the trainer says that it needs no more."""
        try:
            while (attempt := await self._next_attempt()) is not None:
                try:
                    await self._explore(attempt)
                except AttemptOver:
                    logger.warning("the trainer began again from its checkpoint, and so do groups")
        finally:
            if self._buffer is not None:
                self._buffer.close()

    async def _next_attempt(self) -> str | None:
        """The trainer's, when it has published weights; None when there is none to come."""
        is_told = False
        while not self._interrupt.requested:
            told = self._opened().all_told()
            attempt, is_over = told.get(ATTEMPT), told.get(OVER) == told.get(ATTEMPT)
            if attempt is not None and not is_over and _published(told, attempt):
                return attempt
            if attempt is not None and is_over and int(told[TRAINED]) >= self._tasks.total_steps:
                return None
            if not is_told:
                logger.warning("waits for a trainer: the same command with trinity.mode=train")
                is_told = True
            await asyncio.sleep(POLL_S)
        return None

    async def _explore(self, attempt: str) -> None:
        """As long as this attempt lasts."""
        if self._runner is None:
            self._runner = await self._make_runner()
        files = assembly.user_files(self._config)
        journal = Journal.open(self._folder.finished_db, self._config, files)
        try:
            await self._explore_with(attempt, self._runner, journal)
        finally:
            journal.close()

    async def _explore_with(self, attempt: str, runner: GroupRunner, journal: Journal) -> None:
        buffer = self._opened()
        buffer.attempt = attempt
        told = buffer.all_told()
        if told.get(ATTEMPT) != attempt:
            raise AttemptOver
        versions = VersionState(int(told[TRAINED]))
        self._tasks.cursor.load_state_dict(self._first_tasks)
        journal.reopen(_newest_of(json.loads(told[ATTEMPTS]), attempt), attempt)
        explorer = self._explorer(runner.with_journal(journal), buffer, versions)
        explorer.load_state_dict(json.loads(told[PLAN]))
        try:
            following = self._follow(attempt, explorer, buffer, versions, journal)
            await first_of(following, explorer.run())
        except RunFailed as failed:
            reason = json.dumps({"sitting": attempt, "reason": str(failed)})
            buffer.tell(**{FAILED: reason})
            raise

    def _explorer(self, runner: GroupRunner, buffer: Buffer, versions: VersionState) -> Explorer:
        tasks, settings = self._tasks, BatchSettings.from_config(self._config)
        batch = BatchRollout(runner, tasks.training, tasks.cursor, settings)
        asked = explorer_settings(self._config, tasks.total_steps)
        return Explorer(batch, runner, tasks.cursor, buffer, versions, asked)

    async def _follow(
        self,
        attempt: str,
        explorer: Explorer,
        buffer: Buffer,
        versions: VersionState,
        journal: Journal,
    ) -> None:
        """Takes the trainer's weights as they come, until the attempt is over."""
        while not self._interrupt.requested:
            if self._opened() is not buffer:
                raise AttemptOver
            told = buffer.all_told()
            if told.get(ATTEMPT) != attempt:
                raise AttemptOver
            if told.get(OVER) == attempt:
                return
            versions.trained = int(told[TRAINED])
            if await self._take(told, attempt, explorer, versions):
                journal.keep_only(explorer.is_open)
            self._tell(told, explorer, buffer, versions)
            versions.notify()
            await asyncio.sleep(POLL_S)

    async def _take(
        self, told: Mapping[str, str], attempt: str, explorer: Explorer, versions: VersionState
    ) -> bool:
        """Whether there were new weights."""
        found = _published(told, attempt)
        assert found is not None
        if found.version == versions.published:
            return False
        try:
            await explorer.hold()
            await self._load(found)
        except WeightsError:
            if found.path.exists() and _published(self._opened().all_told(), attempt) == found:
                raise
            return False  # newer ones are there already, or another attempt's: next time
        finally:
            explorer.release()
        versions.publish(found.version)
        return True

    @staticmethod
    def _tell(
        told: Mapping[str, str], explorer: Explorer, buffer: Buffer, versions: VersionState
    ) -> None:
        notes = {RESTARTED: str(explorer.counts["restarted"])}
        if explorer.asks():
            notes[ASKS] = _wish(told[ATTEMPT], versions.published)
        if any(told.get(name) != value for name, value in notes.items()):
            buffer.tell(**notes)

    def _opened(self) -> Buffer:
        """The buffer, opened anew where a run that starts afresh has moved its file away."""
        file = self._folder.buffer_db
        is_file = self._config.trinity.buffer.url is None
        number = file.stat().st_ino if is_file and file.exists() else None
        if self._buffer is None or number != self._file:
            if self._buffer is not None:
                self._buffer.close()
            self._buffer = open_buffer(self._config, self._folder)
            self._file = file.stat().st_ino if is_file else None
        return self._buffer


def _newest_of(attempts: Mapping[str, int], attempt: str) -> dict[str, int]:
    """For each attempt so far, the newest of its versions that `attempt` goes on from: those of
    itself all, of an earlier one what every later one has begun with."""
    found, newest = {}, sys.maxsize
    for name in reversed(list(attempts)[: 1 + list(attempts).index(attempt)]):
        found[name] = newest
        newest = min(newest, attempts[name])
    return found


def _wish(attempt: str, version: int | None) -> str:
    return f"{attempt} {version}"


def _published(told: Mapping[str, str], attempt: str) -> FolderSource | None:
    found = json.loads(told.get(PUBLISHED) or "{}")
    if found.get("sitting") != attempt:
        return None
    return FolderSource(Path(found["path"]), found["version"])
