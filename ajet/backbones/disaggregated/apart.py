"""Explorer and trainer as two commands on one run folder: what each must know of the other, they
read in the buffer.

    ajet … trinity.mode=train      takes groups, updates, leaves weights in the run folder
    ajet … trinity.mode=explore    plays with the newest weights, fills the buffer

    note        from        says
    sitting     trainer     which one it is: a new one begins from its checkpoint, and the explorer
                            with it
    sittings    trainer     {sitting: the version of its checkpoint}, of all, in their order
    trained     buffer      the trainer's version
    published   trainer     {"sitting": …, "version": 3, "path": "…/weights/v00000003"}
    over        trainer     the sitting that has ended
    plan        explorer    its place in the plan, which a checkpoint keeps
    asks        explorer    the sitting, and the version after which it wants other weights
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

from ajet.backbones.disaggregated.explorer import PLAN, Explorer, ExplorerSettings
from ajet.backbones.disaggregated.halves import explorer_settings, forget_saved, open_buffer, reopen
from ajet.backbones.disaggregated.place import Place
from ajet.backbones.disaggregated.trainer import Seat, Trainer
from ajet.core import assembly
from ajet.core.bounded_loop import first_of
from ajet.core.buffer.buffer import SITTING, SITTINGS, TRAINED, Buffer, SittingOver
from ajet.core.buffer.journal import Journal, KeptEpisodes
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.interrupt import Interrupt
from ajet.core.record.books import Books, Start
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import BatchRollout, GroupRunner
from ajet.core.task.run_tasks import RunTasks
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.manifest import WeightsError

POLL_S = 0.2
PUBLISHED, OVER, ASKS, RESTARTED, FAILED = "published", "over", "asks", "restarted", "failed"
Load = Callable[[FolderSource], Awaitable[object]]
"""The engines take these weights."""
MakeRunner = Callable[[], Awaitable[GroupRunner]]
"""Is called when the trainer has left the model's words in the run folder."""


# The trainer's command.


class FileSeat(Seat, Protocol):
    """A seat that leaves weights in a folder."""

    @property
    def source(self) -> FolderSource:
        """What was published last."""
        ...


class TrainApart:
    """The trainer alone: groups come from another process."""

    def __init__(self, books: Books, seat: FileSeat, start: Start | None) -> None:
        config = books.config
        self.books, self.seat = books, seat
        self.buffer = open_buffer(config, books.folder)
        sitting = secrets.token_hex(8)
        plan = books.state.explorer if start is not None else None
        resume = config.ajet.trainer_common.resume
        past = {} if resume == "disable" else json.loads(self.buffer.told(SITTINGS) or "{}")
        sittings = json.dumps(past | {sitting: books.state.step})
        told = {SITTING: sitting, SITTINGS: sittings, PLAN: json.dumps(plan)}
        reopen(self.buffer, start, resume, told)
        self._sitting = sitting
        self._failure: str | None = None
        self.place = ToldPlace(books.state.step, self.buffer, seat, sitting)
        settings = explorer_settings(config, books.tasks.total_steps)
        explorer = ExplorerElsewhere(self.buffer, self.place, settings, sitting)
        asks = config.trinity.synchronizer.sync_style == "explorer_driven"
        self.trainer = Trainer(
            seat, self.buffer, self.place, books, NoValidation(), explorer, explorer_asks=asks
        )

    async def run(self) -> None:
        """All steps that are left, as groups come."""
        logger.warning(
            "episodes are played by another command: the same, with trinity.mode=explore"
        )
        trainer = self.books.config.ajet.trainer_common
        if trainer.test_freq > 0 or trainer.val_before_train:
            logger.warning("nobody validates here: the same command with trinity.mode=bench does")
        try:
            await self.seat.publish(self.place.trained)
            await first_of(self.trainer.run(), self._look())
            await self.books.save_if_new()
        finally:
            self.place.end()
            self.buffer.close()
        if self._failure is not None:
            raise RunFailed(f"the explorer gave up: {self._failure}")

    def saved(self) -> None:
        """There is a checkpoint more."""
        forget_saved(self.buffer, self.books.folder)

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
            if failed.get("sitting") == self._sitting:
                self._failure = failed["reason"]
            if self._failure is not None or self.books.interrupt.requested:
                self.trainer.stop()
            self.place.ring()


class ToldPlace(Place):
    """What the trainer publishes is told."""

    def __init__(self, version: int, buffer: Buffer, seat: FileSeat, sitting: str) -> None:
        super().__init__(version)
        self._buffer, self._seat, self._sitting = buffer, seat, sitting

    def publish(self, version: int) -> None:
        path = str(self._seat.source.path)
        told = {"sitting": self._sitting, "version": version, "path": path}
        self._buffer.tell(**{PUBLISHED: json.dumps(told)})
        super().publish(version)

    def end(self) -> None:
        self._buffer.tell(**{OVER: self._sitting})
        super().end()


class ExplorerElsewhere:
    """The explorer as the trainer sees it; it holds its own episodes."""

    def __init__(
        self, buffer: Buffer, place: Place, settings: ExplorerSettings, sitting: str
    ) -> None:
        self._buffer, self._place, self.settings = buffer, place, settings
        self._sitting = sitting

    @property
    def counts(self) -> Counter[str]:
        return Counter(restarted=int(self._buffer.told(RESTARTED) or 0))

    async def hold(self) -> None:
        """It does so when it finds the weights."""

    def release(self) -> None:
        """The same."""

    def asks(self) -> bool:
        return self._buffer.told(ASKS) == _wish(self._sitting, self._place.published)


class NoValidation:
    """Nobody here could play."""

    async def if_due(self) -> None: ...


# The explorer's command.


class ExploreApart:
    """The explorer alone: one trainer's sitting after another, until the run is over. It stays as
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
        self._tasks = RunTasks.read(config)
        self._first_tasks = self._tasks.cursor.state_dict()
        self._runner: GroupRunner | None = None
        self._buffer: Buffer | None = None
        self._file: int | None = None

    async def run(self) -> None:
        """Until the trainer says that it needs no more."""
        try:
            while (sitting := await self._next_sitting()) is not None:
                try:
                    await self._explore(sitting)
                except SittingOver:
                    logger.warning("the trainer began again from its checkpoint, and so do groups")
        finally:
            if self._buffer is not None:
                self._buffer.close()

    async def _next_sitting(self) -> str | None:
        """The trainer's, when it has published weights; None when there is none to come."""
        is_told = False
        while not self._interrupt.requested:
            told = self._opened().all_told()
            sitting, is_over = told.get(SITTING), told.get(OVER) == told.get(SITTING)
            if sitting is not None and not is_over and _published(told, sitting):
                return sitting
            if sitting is not None and is_over and int(told[TRAINED]) >= self._tasks.total_steps:
                return None
            if not is_told:
                logger.warning("waits for a trainer: the same command with trinity.mode=train")
                is_told = True
            await asyncio.sleep(POLL_S)
        return None

    async def _explore(self, sitting: str) -> None:
        """As long as this sitting lasts."""
        if self._runner is None:
            self._runner = await self._make_runner()
        journal = assembly.open_journal(self._config, self._folder.finished_db)
        try:
            await self._explore_with(sitting, self._runner, journal)
        finally:
            journal.close()

    async def _explore_with(self, sitting: str, runner: GroupRunner, journal: Journal) -> None:
        buffer = self._opened()
        buffer.sitting = sitting
        told = buffer.all_told()
        if told.get(SITTING) != sitting:
            raise SittingOver
        place = Place(int(told[TRAINED]))
        self._tasks.cursor.load_state_dict(self._first_tasks)
        journal.reopen(_newest_of(json.loads(told[SITTINGS]), sitting), sitting)
        explorer = self._explorer(KeptEpisodes(runner, journal), buffer, place)
        explorer.load_state_dict(json.loads(told[PLAN]))
        try:
            following = self._follow(sitting, explorer, buffer, place, journal)
            await first_of(following, explorer.run())
        except RunFailed as failed:
            reason = json.dumps({"sitting": sitting, "reason": str(failed)})
            buffer.tell(**{FAILED: reason})
            raise

    def _explorer(self, runner: GroupRunner, buffer: Buffer, place: Place) -> Explorer:
        tasks, settings = self._tasks, assembly.batch_settings(self._config)
        batch = BatchRollout(runner, tasks.training, tasks.cursor, settings)
        asked = explorer_settings(self._config, tasks.total_steps)
        return Explorer(batch, tasks.cursor, buffer, place, asked)

    async def _follow(
        self, sitting: str, explorer: Explorer, buffer: Buffer, place: Place, journal: Journal
    ) -> None:
        """Takes the trainer's weights as they come, until the sitting is over."""
        while not self._interrupt.requested:
            if self._opened() is not buffer:
                raise SittingOver
            told = buffer.all_told()
            if told.get(SITTING) != sitting:
                raise SittingOver
            if told.get(OVER) == sitting:
                return
            place.trained = int(told[TRAINED])
            if await self._take(told, sitting, explorer, place):
                journal.keep_only(explorer.is_open)
            self._tell(told, explorer, buffer, place)
            place.ring()
            await asyncio.sleep(POLL_S)

    async def _take(
        self, told: Mapping[str, str], sitting: str, explorer: Explorer, place: Place
    ) -> bool:
        """Whether there were new weights."""
        found = _published(told, sitting)
        assert found is not None
        if found.version == place.published:
            return False
        try:
            await explorer.hold()
            await self._load(found)
        except WeightsError:
            if found.path.exists() and _published(self._opened().all_told(), sitting) == found:
                raise
            return False  # newer ones are there already, or another sitting's: next time
        finally:
            explorer.release()
        place.publish(found.version)
        return True

    @staticmethod
    def _tell(told: Mapping[str, str], explorer: Explorer, buffer: Buffer, place: Place) -> None:
        notes = {RESTARTED: str(explorer.counts["restarted"])}
        if explorer.asks():
            notes[ASKS] = _wish(told[SITTING], place.published)
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


def _newest_of(sittings: Mapping[str, int], sitting: str) -> dict[str, int]:
    """For each sitting so far, the newest of its versions that `sitting` goes on from: those of
    itself all, of an earlier one what every later one has begun with."""
    found, newest = {}, sys.maxsize
    for name in reversed(list(sittings)[: 1 + list(sittings).index(sitting)]):
        found[name] = newest
        newest = min(newest, sittings[name])
    return found


def _wish(sitting: str, version: int | None) -> str:
    return f"{sitting} {version}"


def _published(told: Mapping[str, str], sitting: str) -> FolderSource | None:
    found = json.loads(told.get(PUBLISHED) or "{}")
    if found.get("sitting") != sitting:
        return None
    return FolderSource(Path(found["path"]), found["version"])
