"""Holds judged groups in a database on their way from the explorer to the trainer.

begin(groups) ─> put(items) ─> take(version, n) ─> mark_trained(step) ─> prune(step)
                                  │                                       after a checkpoint
                                  └─ too old: expired, and returned for the record
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, case, delete, func, insert, select, true, update
from sqlalchemy.exc import SQLAlchemyError

from ajet.core.buffer.codec import decode, encode
from ajet.core.buffer.priority import Priority, oldest
from ajet.core.buffer.staleness import StalenessBound, version_range
from ajet.core.buffer.tables import groups as table
from ajet.core.buffer.tables import notes as note_table
from ajet.core.buffer.tables import open_engine, redacted, uses
from ajet.core.errors import CheckpointError, DataError, KeysConflict
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import first_line
from ajet.core.trajectory.trajectory import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

MEMORY = "sqlite://"
ATTEMPT, ATTEMPTS, TRAINED = "sitting", "sittings", "trained"
"""Names of notes: the trainer's present attempt, all attempts of the run, the trainer's version."""
LOST = "lost"
"""The note with {plan index: the version after which updates that sampled the group are lost}."""
_MAX_GROUPS_PER_STEP = 1_000_000


def batch_note(step: int) -> str:
    """Returns the name of the note that holds the data cursor after the batch of this step."""
    return f"batch {step:09d}"


def plan_index(step: int, number: int) -> int:
    """Returns the index of a planned group, from its step and its number there. The order of the
    indices is that of the plan."""
    assert 0 <= number < _MAX_GROUPS_PER_STEP
    return step * _MAX_GROUPS_PER_STEP + number


def step_and_number(index: int) -> tuple[int, int]:
    """Returns the step and the number of a plan index."""
    return divmod(index, _MAX_GROUPS_PER_STEP)


class AttemptOver(Exception):
    """The trainer began another attempt from a checkpoint; that of this explorer is over."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A running group: its plan index, the index of its task in the data, and the version of the
    weights that it began with."""

    index: int
    task_index: int
    version: int


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A finished group with its plan index and the greedy episodes of its task (`baselines`).

    It does not count (`is_counted`) among the groups of a batch if a selection left it out. Updates
    after `lost_after` that sampled its tokens are lost with an earlier attempt.
    """

    index: int
    group: Group
    baselines: tuple[Group, ...] = ()
    is_counted: bool = True
    lost_after: int | None = None


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """The groups of one step, each list in the order of the plan. `items` are trained. Those that a
    selection left out, that got too old (`expired`), or that the last step does not need
    (`surplus`) are only recorded."""

    items: list[FinishedGroup]
    left_out: list[FinishedGroup] = field(default_factory=list)
    expired: list[FinishedGroup] = field(default_factory=list)
    surplus: list[FinishedGroup] = field(default_factory=list)

    @property
    def all(self) -> list[FinishedGroup]:
        """All groups, in the order of the plan."""
        groups = [*self.items, *self.left_out, *self.expired, *self.surplus]
        return sorted(groups, key=lambda item: item.index)


class GroupBuffer:
    """The finished and running groups of one run. Threads may share a buffer; each process opens
    its own on the same database. Methods block until the database answers.

    The database is SQLite in the run folder by default, or PostgreSQL at `url`. Several explorers
    may put and several trainers may take. What is taken does not depend on timing: groups that were
    never trained come first, then those of higher priority, then those planned earlier. With
    `max_reuse` above 1 a group is ready again after its step.

    A process may be killed at any moment without losing a finished group: a run that resumes from
    the checkpoint of step s calls `reopen(s)`. Explorer and trainer may be two processes, which
    exchange notes through the buffer (backbones/disaggregated/split_run.py).
    """

    def __init__(
        self,
        url: str,
        bound: StalenessBound,
        *,
        run: str = "",
        priority: Priority = oldest,
        max_reuse: int = 1,
        capacity: int | None = None,
    ) -> None:
        """`run` separates the runs of one database. `capacity` limits the groups that run or are
        ready, in addition to the staleness bound."""
        if capacity is not None and capacity < bound.groups_per_step:
            raise KeysConflict(
                f"trinity.buffer.capacity={capacity}: a step takes {bound.groups_per_step} groups "
                "(ajet.data.train_batch_size), so give at least that"
            )
        self.bound = bound
        self._run = run
        self._of_run = table.c.run == run
        self._priority = priority
        self._max_reuse = max_reuse
        self._capacity = capacity
        self._engine = open_engine(url)
        self.url = redacted(url)  # without a password
        self.num_expired = 0  # since it was opened
        self.attempt: str | None = None  # the only one whose groups are taken
        self._lock = threading.Lock()  # a database in memory has one connection for all threads

    def expired_reason(self, group: Group, version: int) -> str:
        """Returns the reason to record with a group that is too old for the step at `version`."""
        age = f"more than {self.bound.max_staleness} updates old (trinity.max_staleness)"
        versions = version_range(group)
        # Its versions are new enough, but `reopen` found that they belong to lost updates.
        if versions is not None and versions[0] >= self.bound.oldest_allowed(version):
            return f"updates that sampled it are lost with an earlier attempt: it counts as {age}"
        return f"its oldest token got {age}"

    def close(self) -> None:
        self._engine.dispose()

    # The explorer's side.

    def capacity_left(self, published: int, last: int | None = None) -> int:
        """Returns how many groups may begin now with the weights of version `published`, for steps
        up to `last`."""
        with self._transaction() as db:
            live = table.c.state.in_(("begun", "ready"))
            fresh = (live & (table.c.uses == 0)) | (
                (table.c.state == "taken") & (table.c.uses == 1)  # the step in progress has them
            )
            counted = select(func.count()).where(self._of_run & table.c.counts)
            outstanding = db.execute(counted.where(fresh)).scalar_one()
            num_live = db.execute(counted.where(live)).scalar_one()
            # Read last: a version that is older than the counts only lowers the result.
            version = int(self._read_note(db, TRAINED) or 0)
        capacity = self.bound.capacity_left(version, published, outstanding, last)
        if self._capacity is not None:
            capacity = max(0, min(capacity, self._capacity - num_live))
        return capacity

    def begin(self, groups: Sequence[InFlight], **notes: str) -> None:
        """Records in one transaction that these groups run now, or run again with newer weights,
        and the notes."""
        with self._transaction() as db:
            self._check_attempt(db)
            self._remove(db, [group.index for group in groups])
            rows = [
                {"state": "begun", "newest": g.version, "counts": True, "priority": 0.0, "uses": 0}
                | {"run": self._run, "place": g.index, "task": g.task_index, "version": g.version}
                for g in groups
            ]
            if rows:
                db.execute(insert(table), rows)
            self._write_notes(db, notes)

    def put(
        self,
        items: Sequence[FinishedGroup],
        version: int,
        *,
        last_step: int | None = None,
        **notes: str,
    ) -> bool:
        """Stores finished groups and the notes in one transaction, and returns True.

        A group without a trained token gets `version`, that of the weights it began with. Once
        `last_step`, the last of the run, is trained, nobody takes a group any more: nothing is
        stored, the groups stay in flight, and the result is False.
        """
        rows = [self._row(item, version) for item in items]
        with self._transaction() as db:
            if last_step is not None and self._locked_trained(db) >= last_step:
                return False
            self._check_attempt(db)
            indices = [item.index for item in items]
            tasks = self._tasks_of(db, table.c.place.in_(indices))
            self._remove(db, indices)
            rows = [row | {"task": tasks.get(row["place"])} for row in rows]
            if rows:
                db.execute(insert(table), rows)
            self._write_notes(db, notes)
        return True

    def in_flight(self) -> list[InFlight]:
        """Returns the groups that began and did not end, in the order of the plan."""
        chosen = select(table.c.place, table.c.task, table.c.version)
        with self._transaction() as db:
            rows = db.execute(
                chosen.where(self._of_run & (table.c.state == "begun")).order_by(table.c.place)
            )
            return [InFlight(row.place, row.task, row.version) for row in rows]

    def known_tasks(self) -> dict[int, int | None]:
        """Maps the plan indices of all groups of the run, in any state, to the indices of their
        tasks in the data; None for groups that were put without `begin`."""
        with self._transaction() as db:
            return self._tasks_of(db, true())

    def finished(self, indices: Sequence[int]) -> list[FinishedGroup]:
        """Returns the ended ones of these groups, in the order of the plan."""
        with self._transaction() as db:
            return self._items(db, table.c.place.in_(indices) & (table.c.state != "begun"))

    # The trainer's side.

    def take(
        self, version: int, number: int | None = None, *, is_last: bool = False
    ) -> TakenBatch | None:
        """Takes `number` groups for the step at `version`, or all that are ready; none is too old.

        Returns None if there are not enough, or if the step must wait for a group in flight that
        would get too old without it. `is_last` says that no step follows: what this one leaves is
        returned as surplus, for the record.
        """
        step = version + 1
        with self._transaction() as db:
            # A group that is too old expires; one that was trained before is only done.
            ready = self._of_run & (table.c.state == "ready")
            old = ready & table.c.counts & (table.c.version < self.bound.oldest_allowed(version))
            state = case((table.c.uses > 0, "trained"), else_="expired")
            expiry = update(table).where(old).values(state=state, at_step=step)
            self.num_expired += db.execute(expiry).rowcount
            chosen = list(db.execute(self._next_ready(number)).scalars())
            if not chosen or (number is not None and len(chosen) < number):
                return None
            if self.bound.must_wait(version, *self._other_versions(db, chosen)):
                return None
            left_out = list(db.execute(self._ready_indices(counts=False)).scalars())
            taken = [*chosen, *left_out]
            values = {"state": "taken", "at_step": step, "uses": table.c.uses + 1}
            of_step = self._of_run & table.c.place.in_(taken)
            db.execute(update(table).where(of_step).values(values))
            db.execute(insert(uses), [{"run": self._run, "place": i, "step": step} for i in taken])
            expired = self._items(db, (table.c.state == "expired") & (table.c.at_step == step))
            return TakenBatch(
                self._items(db, table.c.place.in_(chosen)),
                self._items(db, table.c.place.in_(left_out)),
                expired,
                self._take_surplus(db, step) if is_last else [],
            )

    def mark_trained(self, step: int, *, is_last: bool = False) -> list[FinishedGroup]:
        """Records that the step is done; its groups are ready again if they may be reused. With
        `is_last` no step follows: groups that ended during its update are returned for the record,
        and `put` stores no more."""
        of_step = self._of_run & (table.c.state == "taken") & (table.c.at_step == step)
        again = table.c.counts & (table.c.uses < self._max_reuse)
        with self._transaction() as db:
            # First, because it waits for the lock of every `put` that is under way.
            self._write_notes(db, {TRAINED: str(step)})
            db.execute(
                update(table).where(of_step).values(state=case((again, "ready"), else_="trained"))
            )
            return self._take_surplus(db, step) if is_last else []

    def reopen(self, step: int, **notes: str) -> int:
        """Undoes the steps after `step`, for a run that resumes from its checkpoint, and writes the
        notes. Groups that later steps took or expired are ready again.

        A token that was sampled k updates after the checkpoint counts as k updates older than it.
        Groups that are too old then expire at the next step. With a bound of 0 they are removed,
        because the whole batch is played again; returns their number.
        """
        later, is_taken = table.c.at_step > step, table.c.state == "taken"
        ready = self._of_run & (table.c.state == "ready")
        with self._transaction() as db:
            self._write_notes(db, {TRAINED: str(step)} | notes)
            db.execute(
                update(table).where(self._of_run & is_taken & ~later).values(state="trained")
            )
            db.execute(delete(uses).where((uses.c.run == self._run) & (uses.c.step > step)))
            used = select(func.count()).where(
                (uses.c.run == table.c.run) & (uses.c.place == table.c.place)
            )
            again = {"state": "ready", "at_step": None}
            counted = again | {"uses": used.scalar_subquery()}
            db.execute(update(table).where(self._of_run & later).values(counted))
            # Lost updates and new ones both start from the checkpoint, so the distance from a
            # token of a lost update to a new step is the sum of both distances to the checkpoint.
            away = 2 * step - table.c.newest
            older = case((table.c.version < away, table.c.version), else_=away)
            db.execute(
                update(table).where(ready & (table.c.newest > step)).values(version=older)
            )  # `newest` stays: the run may next resume from an earlier checkpoint
            allowed = self.bound.oldest_allowed(step)
            far = ready & (table.c.version < allowed) & (table.c.uses == 0)
            num_removed = 0
            if self.bound.max_staleness == 0:  # the groups of a step begin together, all again
                db.execute(delete(table).where(self._of_run & (table.c.state == "begun")))
                num_removed = db.execute(delete(table).where(far)).rowcount
            self._note_lost(db, step)
            return num_removed

    def prune(self, step: int) -> None:
        """Removes what was over by `step`, the step of the oldest stored checkpoint."""
        over = self._of_run & table.c.state.in_(("trained", "expired")) & (table.c.at_step <= step)
        indices = select(table.c.place).where(over)
        old = note_table.c.name.between(batch_note(0), batch_note(step))
        with self._transaction() as db:
            db.execute(delete(uses).where((uses.c.run == self._run) & uses.c.place.in_(indices)))
            db.execute(delete(table).where(over))
            db.execute(delete(note_table).where((note_table.c.run == self._run) & old))

    def clear(self) -> None:
        """Removes everything of this run."""
        with self._transaction() as db:
            for cleared in (table, uses, note_table):
                db.execute(delete(cleared).where(cleared.c.run == self._run))

    def counts(self) -> dict[str, int]:
        """Returns the number of groups in each state."""
        with self._transaction() as db:
            rows = db.execute(
                select(table.c.state, func.count()).where(self._of_run).group_by(table.c.state)
            )
            return {state: number for state, number in rows}

    # Notes between explorer and trainer, if they are two processes.

    def write_notes(self, **notes: str) -> None:
        """Writes notes by their names; an earlier note of the same name is replaced."""
        with self._transaction() as db:
            self._write_notes(db, notes)

    def read_note(self, name: str) -> str | None:
        """Returns the note of that name, or None."""
        with self._transaction() as db:
            return self._read_note(db, name)

    def read_notes(self) -> dict[str, str]:
        """Returns all notes, read in one transaction."""
        of_run = select(note_table.c.name, note_table.c.value).where(note_table.c.run == self._run)
        with self._transaction() as db:
            return {name: value for name, value in db.execute(of_run)}

    def _read_note(self, db: Connection, name: str) -> str | None:
        return db.execute(select(note_table.c.value).where(self._named(name))).scalar()

    def _locked_trained(self, db: Connection) -> int:
        """Returns the trainer's version, and locks it until the transaction ends."""
        note = select(note_table.c.value).where(self._named(TRAINED))
        db.execute(note.with_for_update(read=True))
        # Read again: the first query misses a row that was replaced during the wait for the lock.
        return int(self._read_note(db, TRAINED) or 0)

    def _write_notes(self, db: Connection, notes: Mapping[str, str]) -> None:
        for name, value in notes.items():
            db.execute(delete(note_table).where(self._named(name)))
            db.execute(insert(note_table), [{"run": self._run, "name": name, "value": value}])

    def _named(self, name: str) -> ColumnElement[bool]:
        return (note_table.c.run == self._run) & (note_table.c.name == name)

    def _check_attempt(self, db: Connection) -> None:
        """Raises `AttemptOver` unless this attempt is the present one. The note is locked until the
        transaction ends, so that no other attempt begins meanwhile."""
        if self.attempt is None:
            return
        note = select(note_table.c.value).where(self._named(ATTEMPT))
        if db.execute(note.with_for_update(read=True)).scalar() != self.attempt:
            raise AttemptOver

    def _tasks_of(self, db: Connection, condition: ColumnElement[bool]) -> dict[int, int | None]:
        rows = db.execute(select(table.c.place, table.c.task).where(self._of_run & condition))
        return {row.place: row.task for row in rows}

    def _row(self, item: FinishedGroup, version: int) -> dict[str, Any]:
        oldest_token, newest_token = version_range(item.group) or (version, version)
        return {
            "run": self._run,
            "place": item.index,
            "state": "ready",
            "version": oldest_token,
            "newest": newest_token,
            "counts": item.is_counted,
            "priority": self._priority(item.index, item.group),
            "uses": 0,
            "body": encode([item.group, *item.baselines]),
        }

    def _next_ready(self, number: int | None) -> Select[Any]:
        order = (table.c.uses, table.c.priority.desc(), table.c.place)
        chosen = self._ready_indices(counts=True).order_by(*order)
        return chosen.limit(number).with_for_update(skip_locked=True)

    def _other_versions(self, db: Connection, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the versions of the groups in flight, and of the ready ones that were not
        chosen; groups that were trained before do not matter."""
        fresh = self._of_run & table.c.counts & (table.c.uses == 0) & table.c.place.not_in(chosen)
        rows = db.execute(select(table.c.state, table.c.version).where(fresh)).all()
        in_flight = [row.version for row in rows if row.state == "begun"]
        return in_flight, [row.version for row in rows if row.state == "ready"]

    def _take_surplus(self, db: Connection, step: int) -> list[FinishedGroup]:
        """Takes the ready groups that `step`, the last of the run, does not need. Groups that
        expired in a lost attempt may be among them, next to those that replaced them."""
        rest = (table.c.state == "ready") & (table.c.uses == 0)
        surplus = self._items(db, rest)
        values = {"state": "expired", "at_step": step}
        db.execute(update(table).where(self._of_run & rest).values(values))
        return surplus

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Yields a connection. Damaged rows and errors of the database become CheckpointErrors."""
        try:
            with self._lock, self._engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, DataError, ValueError, TypeError) as error:
            cause = getattr(error, "orig", None) or error
            # The text of another database's error may hold a secret.
            is_safe = isinstance(cause, DataError | sqlite3.Error)
            reason = first_line(str(cause)) if is_safe else type(cause).__name__
            raise CheckpointError(
                f"the buffer {self.url} failed: {reason}; when that is fixed, the run resumes "
                "from its last checkpoint",
                code=Code.BUFFER_UNUSABLE,
            ) from error

    def _ready_indices(self, *, counts: bool) -> Select[Any]:
        ready = (table.c.state == "ready") & (table.c.counts == counts)
        return select(table.c.place).where(self._of_run & ready)

    def _items(self, db: Connection, condition: Any) -> list[FinishedGroup]:
        columns = select(table.c.place, table.c.counts, table.c.body)
        rows = db.execute(columns.where(self._of_run & condition).order_by(table.c.place)).all()
        lost = self._lost(db)
        items = []
        for row in rows:
            group, *baselines = decode(row.body)
            lost_after = lost.get(row.place)
            items.append(FinishedGroup(row.place, group, tuple(baselines), row.counts, lost_after))
        return items

    def _lost(self, db: Connection) -> dict[int, int]:
        note = json.loads(self._read_note(db, LOST) or "{}")
        return {int(index): version for index, version in note.items()}

    def _note_lost(self, db: Connection, step: int) -> None:
        """Notes which ready groups have tokens of updates after `step`. An earlier version that is
        noted already stays: no later checkpoint has those updates."""
        columns = select(table.c.place, table.c.newest, table.c.state)
        earlier, lost = self._lost(db), dict[int, int]()
        for row in db.execute(columns.where(self._of_run)).all():
            steps = [earlier[row.place]] if row.place in earlier else []
            steps += [step] if row.state == "ready" and row.newest > step else []
            if steps:
                lost[row.place] = min(steps)
        if lost != earlier:
            self._write_notes(db, {LOST: json.dumps(lost)})

    def _remove(self, db: Connection, indices: Sequence[int]) -> None:
        for indexed in (table, uses):
            db.execute(
                delete(indexed).where((indexed.c.run == self._run) & indexed.c.place.in_(indices))
            )
