"""Judged groups on their way from the explorer to the trainer, in a database.

    begin(place) ─> put(place, group) ─> take(version, n) ─> trained(step) ─> forget(step)
                                            │                                    after a checkpoint
                                            └─ too old: left out, and told

SQLite in the run folder by default, PostgreSQL by an address; several explorers may put and several
trainers take (`SKIP LOCKED` where there is such a thing). What is taken comes in an order that no
timing changes: first what was never trained, then by priority, then as planned.

Killed at any moment, nothing that was finished is lost. A run that goes on from the checkpoint of
step s calls `reopen(s)`: what later steps took or left out waits again, and `in_flight()` are the
groups that had begun. Tokens of the updates that were lost with the attempt count as older than
they were: by as many updates as they are away from the checkpoint.

Explorer and trainer may be two processes, which tell each other in notes what they must know
(backbones/disaggregated/split_run.py). A trainer that begins anew begins an attempt: what an
explorer of the one before has to say is refused with `AttemptOver`.

`max_reuse`: a group waits again after its step, and is taken where nothing fresh is left. Not
covered: who waits for whom (backbones/disaggregated), and which groups may begin (staleness.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, case, delete, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from ajet.core.buffer.codec import decode, encode
from ajet.core.buffer.priority import Priority, oldest
from ajet.core.buffer.staleness import StalenessBound, versions
from ajet.core.buffer.tables import groups as table
from ajet.core.buffer.tables import notes, open_engine, shown, uses
from ajet.core.errors import CheckpointError, ConfigError
from ajet.core.trajectory.trajectory import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

MEMORY = "sqlite://"
ATTEMPT, ATTEMPTS, TRAINED = "sitting", "sittings", "trained"
"""Notes: which attempt of the trainer it is, those of one run so far, and the trainer's version."""
_PLACES = 1_000_000


def batch_note(step: int) -> str:
    """Of a whole batch that is here: the explorer's place in the data behind it."""
    return f"batch {step:09d}"


def place_of(step: int, number: int) -> int:
    """Of a group among all that are planned: by the step it is planned for, and its number."""
    assert 0 <= number < _PLACES
    return step * _PLACES + number


def planned_at(place: int) -> tuple[int, int]:
    """The step and the number."""
    return divmod(place, _PLACES)


class AttemptOver(Exception):
    """The trainer has begun another attempt, from a checkpoint: this explorer's is over."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A group that runs, and the version of the weights it began with. `task` is its task's place
    in the data."""

    place: int
    task: int
    version: int


@dataclass(frozen=True, slots=True)
class Item:
    """A finished group; `baselines` are the greedy episodes beside it. One that does not count
    fills no place in a batch: a selection left it out."""

    place: int
    group: Group
    baselines: tuple[Group, ...] = ()
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step gets: `items` to train on, and for the record those that a selection left out
    (`aside`) or that got too old (`expired`). All are in the order of their places."""

    items: list[Item]
    aside: list[Item] = field(default_factory=list)
    expired: list[Item] = field(default_factory=list)

    @property
    def all(self) -> list[Item]:
        """In the order of the plan."""
        return sorted([*self.items, *self.aside, *self.expired], key=lambda item: item.place)


class Buffer:
    """Open one in each process; its methods block for a moment, and threads may share it."""

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
        """`run` tells the runs of one database apart. `capacity` limits what has begun or waits;
        the staleness bound does so anyway."""
        if capacity is not None and capacity < bound.groups_per_step:
            raise ConfigError(
                f"trinity.buffer.capacity={capacity}: a step takes {bound.groups_per_step} groups "
                "(ajet.data.train_batch_size), so it must hold as many"
            )
        self.bound = bound
        self._run = run
        self._mine = table.c.run == run
        self._priority = priority
        self._max_reuse = max_reuse
        self._capacity = capacity
        self._engine = open_engine(url)
        self._shown = shown(url)
        self.num_expired = 0  # since it was opened
        self.attempt: str | None = None  # the only one whose groups are taken
        self._one_at_a_time = threading.Lock()  # one connection, where it is in memory

    @property
    def reason(self) -> str:
        """Why a group is left out that got too old."""
        most = self.bound.max_staleness
        return f"its oldest token got more than {most} updates old (trinity.max_staleness)"

    def close(self) -> None:
        self._engine.dispose()

    # The explorer's side.

    def room(self, published: int, last: int | None = None) -> int:
        """How many groups may begin now for an explorer that has the weights of `published`."""
        with self._transaction() as db:
            live = table.c.state.in_(("begun", "ready"))
            fresh = (live & (table.c.uses == 0)) | (
                (table.c.state == "taken") & (table.c.uses == 1)  # by the step that goes on
            )
            outstanding = _number(
                db, select(func.count()).where(self._mine & table.c.counts & fresh)
            )
            held = _number(db, select(func.count()).where(self._mine & table.c.counts & live))
            version = int(self._told(db, TRAINED) or 0)  # last: one that was older finds less room
        room = self.bound.room(version, published, outstanding, last)
        return room if self._capacity is None else max(0, min(room, self._capacity - held))

    def begin(self, begun: Sequence[Begun], **told: str) -> None:
        """These run now, or run anew with newer weights; with what is `told` of them."""
        with self._transaction() as db:
            self._check_attempt(db)
            self._remove(db, [each.place for each in begun])
            rows = [
                {"state": "begun", "newest": b.version, "counts": True, "priority": 0.0, "uses": 0}
                | {"run": self._run, "place": b.place, "task": b.task, "version": b.version}
                for b in begun
            ]
            if rows:
                db.execute(insert(table), rows)
            self._tell(db, told)

    def put(self, items: Sequence[Item], version: int, **told: str) -> None:
        """Finished groups, all or none, with what is `told` of them. One that trains no token is
        as old as `version`, that of the weights it began with."""
        rows = [self._row(item, version) for item in items]
        with self._transaction() as db:
            self._check_attempt(db)
            self._remove(db, [item.place for item in items])
            if rows:
                db.execute(insert(table), rows)
            self._tell(db, told)

    def in_flight(self) -> list[Begun]:
        """What has begun and not ended."""
        chosen = select(table.c.place, table.c.task, table.c.version)
        with self._transaction() as db:
            rows = db.execute(
                chosen.where(self._mine & (table.c.state == "begun")).order_by(table.c.place)
            )
            return [Begun(row.place, row.task, row.version) for row in rows]

    def places(self) -> set[int]:
        """All that is known here."""
        with self._transaction() as db:
            return set(db.execute(select(table.c.place).where(self._mine)).scalars())

    # The trainer's side.

    def take(self, version: int, number: int | None = None) -> Taken | None:
        """`number` groups for the step at `version`, none of them too old; None while there are
        not so many, or while one in flight would get too old. Without a number all that wait."""
        step = version + 1
        with self._transaction() as db:
            self._expire(db, version, step)
            rows = db.execute(self._ready(number)).all()
            if not rows or (number is not None and len(rows) < number):
                return None
            chosen = [row.place for row in rows]
            if self.bound.must_wait(version, *self._others(db, chosen)):
                return None
            aside = list(db.execute(self._waiting(counts=False)).scalars())
            self._mark(db, [*chosen, *aside], step)
            return Taken(
                self._items(db, table.c.place.in_(chosen)),
                self._items(db, table.c.place.in_(aside)),
                self._items(db, (table.c.state == "expired") & (table.c.at_step == step)),
            )

    def trained(self, step: int) -> None:
        """The step is done: its groups may be taken again, if they may be reused."""
        mine = self._mine & (table.c.state == "taken") & (table.c.at_step == step)
        again = table.c.counts & (table.c.uses < self._max_reuse)
        with self._transaction() as db:
            db.execute(
                update(table).where(mine).values(state=case((again, "ready"), else_="trained"))
            )
            self._tell(db, {TRAINED: str(step)})

    def reopen(self, step: int, **told: str) -> int:
        """The run goes on from the checkpoint of `step`: whatever later steps did is undone. Says
        how many groups are too far from the checkpoint to be trained at all; they are removed."""
        later, taken = table.c.at_step > step, table.c.state == "taken"
        mine, ready = self._mine, self._mine & (table.c.state == "ready")
        with self._transaction() as db:
            self._tell(db, {TRAINED: str(step)} | told)
            db.execute(update(table).where(mine & taken & ~later).values(state="trained"))
            db.execute(delete(uses).where((uses.c.run == self._run) & (uses.c.step > step)))
            used = select(func.count()).where(
                (uses.c.run == table.c.run) & (uses.c.place == table.c.place)
            )
            again = {"state": "ready", "at_step": None, "reason": None}
            counted = again | {"uses": used.scalar_subquery()}
            db.execute(update(table).where(mine & later).values(counted))
            # Beyond the checkpoint there are two lines of updates; the way from one to the other
            # leads through the checkpoint.
            away = 2 * step - table.c.newest
            older = case((table.c.version < away, table.c.version), else_=away)
            db.execute(
                update(table).where(ready & (table.c.newest > step)).values(version=older)
            )  # `newest` stays: an earlier checkpoint may be the next to go on from
            allowed = self.bound.oldest_allowed(step)
            far = ready & (table.c.version < allowed) & (table.c.uses == 0)
            if self.bound.max_staleness == 0:  # a step's groups begin together
                db.execute(delete(table).where(mine & (table.c.state == "begun")))
            return db.execute(delete(table).where(far)).rowcount

    def forget(self, step: int) -> None:
        """No checkpoint that is kept is older than `step`: what was over by then may go."""
        over = self._mine & table.c.state.in_(("trained", "expired")) & (table.c.at_step <= step)
        places = select(table.c.place).where(over)
        old = notes.c.name.between(batch_note(0), batch_note(step))
        with self._transaction() as db:
            db.execute(delete(uses).where((uses.c.run == self._run) & uses.c.place.in_(places)))
            db.execute(delete(table).where(over))
            db.execute(delete(notes).where((notes.c.run == self._run) & old))

    def clear(self) -> None:
        """Forget everything of this run."""
        with self._transaction() as db:
            for each in (table, uses, notes):
                db.execute(delete(each).where(each.c.run == self._run))

    def counts(self) -> dict[str, int]:
        """How many groups are in which state."""
        with self._transaction() as db:
            rows = db.execute(
                select(table.c.state, func.count()).where(self._mine).group_by(table.c.state)
            )
            return {state: number for state, number in rows}

    # What two processes tell each other.

    def tell(self, **told: str) -> None:
        """Notes by their names."""
        with self._transaction() as db:
            self._tell(db, told)

    def told(self, name: str) -> str | None:
        """The last value of that name."""
        with self._transaction() as db:
            return self._told(db, name)

    def all_told(self) -> dict[str, str]:
        """All notes, as they are at one moment."""
        mine = select(notes.c.name, notes.c.value).where(notes.c.run == self._run)
        with self._transaction() as db:
            return {name: value for name, value in db.execute(mine)}

    def _told(self, db: Connection, name: str) -> str | None:
        mine = (notes.c.run == self._run) & (notes.c.name == name)
        return db.execute(select(notes.c.value).where(mine)).scalar()

    def _tell(self, db: Connection, told: Mapping[str, str]) -> None:
        for name, value in told.items():
            db.execute(delete(notes).where((notes.c.run == self._run) & (notes.c.name == name)))
            db.execute(insert(notes), [{"run": self._run, "name": name, "value": value}])

    def _check_attempt(self, db: Connection) -> None:
        """The note is held until the transaction ends: no other attempt begins meanwhile."""
        if self.attempt is None:
            return
        mine = (notes.c.run == self._run) & (notes.c.name == ATTEMPT)
        query = select(notes.c.value).where(mine).with_for_update(read=True)
        if db.execute(query).scalar() != self.attempt:
            raise AttemptOver

    def _row(self, item: Item, version: int) -> dict[str, Any]:
        oldest_token, newest_token = versions(item.group) or (version, version)
        return {
            "run": self._run,
            "place": item.place,
            "state": "ready",
            "version": oldest_token,
            "newest": newest_token,
            "counts": item.counts,
            "priority": self._priority(item.place, item.group),
            "uses": 0,
            "body": encode([item.group, *item.baselines]),
        }

    def _expire(self, db: Connection, version: int, step: int) -> None:
        """What was trained before and is too old now has had its use."""
        allowed = self.bound.oldest_allowed(version)
        ready = self._mine & (table.c.state == "ready")
        old = ready & table.c.counts & (table.c.version < allowed)
        state = case((table.c.uses > 0, "trained"), else_="expired")
        values = {"state": state, "at_step": step, "reason": self.reason}
        self.num_expired += db.execute(update(table).where(old).values(values)).rowcount

    def _ready(self, number: int | None) -> Select[Any]:
        order = (table.c.uses, table.c.priority.desc(), table.c.place)
        chosen = self._waiting(counts=True).order_by(*order)
        return chosen.limit(number).with_for_update(skip_locked=True)

    def _others(self, db: Connection, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """Versions of the groups in flight, and of those that wait and were not chosen."""
        fresh = self._mine & table.c.counts & (table.c.uses == 0) & table.c.place.not_in(chosen)
        rows = db.execute(select(table.c.state, table.c.version).where(fresh)).all()
        flying = [row.version for row in rows if row.state == "begun"]
        return flying, [row.version for row in rows if row.state == "ready"]

    def _mark(self, db: Connection, places: Sequence[int], step: int) -> None:
        mine = self._mine & table.c.place.in_(places)
        values = {"state": "taken", "at_step": step, "uses": table.c.uses + 1}
        db.execute(update(table).where(mine).values(values))
        db.execute(insert(uses), [{"run": self._run, "place": p, "step": step} for p in places])

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._one_at_a_time, self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise CheckpointError(
                f"the buffer {self._shown} failed: {type(cause).__name__}; the run goes on from "
                "its last checkpoint when that is mended"
            ) from error

    def _waiting(self, *, counts: bool) -> Select[Any]:
        waits = (table.c.state == "ready") & (table.c.counts == counts)
        return select(table.c.place).where(self._mine & waits)

    def _items(self, db: Connection, where: Any) -> list[Item]:
        columns = select(table.c.place, table.c.counts, table.c.body)
        rows = db.execute(columns.where(self._mine & where).order_by(table.c.place)).all()
        return [_item(row.place, row.counts, row.body) for row in rows]

    def _remove(self, db: Connection, places: Sequence[int]) -> None:
        for each in (table, uses):
            db.execute(delete(each).where((each.c.run == self._run) & each.c.place.in_(places)))


def _item(place: int, counts: bool, body: bytes) -> Item:
    group, *baselines = decode(body)
    return Item(place, group, tuple(baselines), counts)


def _number(db: Connection, query: Select[Any]) -> int:
    return db.execute(query).scalar_one()
