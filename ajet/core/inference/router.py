"""Many replicas as one endpoint: which of them takes a request, which are well, which weights they
hold. Prompts and replies do not pass through here (routed_endpoint.py).

    RoutedEndpoint ──assign──> gate ─> routing ─> "r1"
                   ──done───>    ^        ^
                                 │        └── a watcher for each: health, out, back in or replaced
                        pause holds here

A replica that failed a request is taken out at once and asked for its health: well again, it comes
back in with the present weights; after `max_failed_checks` failed checks in a row it is dead: it is
closed, which ends its requests, and `spawn` makes another in its place, once the engines are awake:
while they sleep their memory belongs to the trainer, and `sleep` waits for one that is being made.
A check that fails once and passes again changes nothing, nor does one while the replica loads
weights. While none is left but one is coming, requests wait; else they fail with one line.

`pause(abort=True)` ends what runs; the endpoint goes on with it after `resume`.

Not covered: placing replicas on machines, starting processes (`spawn` does); several event loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.errors import ModelError
from ajet.core.inference.gate import Gate
from ajet.core.inference.replica import Replica, ReplicaDown
from ajet.core.inference.routing import NoReplica, Routing
from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightsError, WeightSource

Spawn = Callable[[str], Awaitable[Replica]]
"""Makes a replica in the place of the dead one of this name; ReplicaDown or ModelError if that
fails. It is given today's weights, unless its `version` says that it has them."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How long the router waits, and how often it tries."""

    skew: int = 32
    health_interval_s: float = 5.0
    """Between checks, and between tries to replace a replica."""
    health_timeout_s: float = 10.0
    max_failed_checks: int = 3
    max_spawns: int = 3
    wait_for_replica_s: float = 900.0
    """For requests, while no replica is left and one is coming."""

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """How the config has a router over its engines behave."""
        router = config.ajet.rollout.router
        return cls(
            skew=router.skew,
            health_interval_s=router.health_interval_s,
            max_failed_checks=router.max_failed_checks,
        )


@dataclass(slots=True)
class RouterStats:
    """Counts since the router was made."""

    num_lost: int = 0
    num_replaced: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replica that takes a request. `incarnation` counts those that had this name before: one
    that is made in the place of a dead one is another replica."""

    name: str
    incarnation: int


class RequestGivenUp(Exception):
    """The request was given up while it waited for a replica."""


@dataclass(eq=False, slots=True)
class _Member:
    """A replica and what the router knows of it."""

    replica: Replica
    is_in: bool = False
    is_loading: bool = False
    is_new: bool = False  # made in the place of a dead one, and not yet in
    making: asyncio.Future[None] | None = None
    version: int | None = None
    report: SyncReport | None = None  # of its last load
    failed_checks: int = 0
    num_spawns: int = 0
    incarnation: int = 0
    reason: str = ""
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.replica.name


class Router:
    """See the module's docstring."""

    def __init__(
        self,
        replicas: Iterable[Replica],
        settings: RouterSettings | None = None,
        *,
        spawn: Spawn | None = None,
    ) -> None:
        self._settings = settings or RouterSettings()
        self._spawn = spawn
        self._routing = Routing(skew=self._settings.skew)
        self._gate = Gate()
        self._members: dict[str, _Member] = {}
        self._given_up: set[str] = set()
        self._weights: tuple[WeightSource | BroadcastSource, int] | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._changing = asyncio.Lock()
        self._news = asyncio.Event()
        self._watching = False
        self.stats = RouterStats()
        for one in replicas:
            self.replace(one.name, one)

    @property
    def names(self) -> list[str]:
        """The replicas that take requests now."""
        return [name for name, member in self._members.items() if member.is_in]

    @property
    def policy_version(self) -> int:
        """Of the weights that were loaded last."""
        return self._weights[1] if self._weights else 0

    async def assign(self, request_id: str) -> Assignment:
        """The replica for this request, which counts there until `done`. Waits while requests are
        held, and while no replica is left but one is coming; `RequestGivenUp` where the request is
        given up meanwhile, ModelError where there is nothing to wait for."""
        self._watch_all()
        if not await self._gate.enter(request_id):
            raise RequestGivenUp
        try:
            name = await self._routed(request_id)
        except BaseException:
            self._gate.leave(request_id)
            raise
        return Assignment(name, self._members[name].incarnation)

    def replica(self, assignment: Assignment) -> Replica:
        """The replica to ask; another one may have its name by now, which is as good."""
        return self._members[assignment.name].replica

    def done(self, request_id: str) -> None:
        """The request is answered, has failed or was given up: it counts at no replica."""
        self._routing.done(request_id)
        self._gate.leave(request_id)

    def report_down(self, assignment: Assignment, reason: str) -> None:
        """A replica gave no answer: it gets no requests until a check says that it is well."""
        member = self._members[assignment.name]
        if member.incarnation == assignment.incarnation:
            self._take_out(member, reason)

    def give_up(self, request_id: str) -> None:
        """A request that waits for a replica is not wanted any more."""
        if not self._gate.give_up(request_id):
            self._given_up.add(request_id)
            self._tell_news()

    def leave(self, episode_id: str) -> None:
        """The episode is over: its replica may forget its prefix."""
        name = self._routing.leave(episode_id)
        if name in self._members:
            self._members[name].replica.leave(episode_id)

    def forget(self, mark: str) -> None:
        """Requests whose ids end so are done: the process that made them is gone."""
        for request_id in [each for each in self._gate.inside if each.endswith(mark)]:
            self.done(request_id)

    async def pause(self, abort: bool = False) -> None:
        """Hold new requests; returns when no replica works. With `abort` those that run end now,
        and go on after `resume`."""
        async with self._changing:
            self._gate.shut()
            await self._all(lambda member: member.replica.pause(abort))

    async def resume(self) -> None:
        """Requests go on."""
        async with self._changing:
            await self._all(lambda member: member.replica.resume())
            self._gate.open()

    async def sleep(self) -> None:
        """Every replica gives its memory back; requests are held until `wake` and `resume`."""
        async with self._changing:
            self._gate.shut()
            self._awake.clear()
            await self._made()
            members = [m for m in self._members.values() if m.is_in or m.is_new]
            await self._all(lambda member: member.replica.sleep(), members)

    async def wake(self) -> None:
        """Every replica takes its memory again."""
        async with self._changing:
            self._awake.set()
            await self._all(lambda member: member.replica.wake())

    async def load_weights(
        self, source: WeightSource | BroadcastSource, version: int
    ) -> SyncReport:
        """New weights everywhere: the slowest replica's seconds, all replicas' bytes. All of them
        hold the same, or `WeightsError`. Where none is left and one is coming, that one has them
        first."""
        async with self._changing:
            reports = await self._delivered(source, version)
            self._weights = (source, version)
        if not reports:
            reports = [await self._first_report(version)]
        checksums = {report.checksum for report in reports}
        if len(checksums) != 1:
            raise WeightsError(f"weights of version {version}: replicas hold different ones")
        num_bytes = sum(report.num_bytes for report in reports)
        seconds = max(report.seconds for report in reports)
        return SyncReport(version, seconds, num_bytes, checksums.pop())

    def replace(self, name: str, replica: Replica) -> None:
        """Another replica under this name, or a further one; it takes requests at once."""
        assert replica.name == name
        member = self._members.setdefault(name, _Member(replica))
        member.replica, member.is_in = replica, True
        member.failed_checks, member.reason = 0, ""
        self._routing.joined(name)
        if self._watching:
            self._watch(member)

    async def close(self) -> None:
        """Close every replica and stop watching."""
        for member in self._members.values():
            if member.watcher is not None:
                member.watcher.cancel()
        for member in self._members.values():
            await member.replica.close()

    async def _routed(self, request_id: str) -> str:
        """The name of a replica with room, waiting for one that is on its way."""
        try:
            async with asyncio.timeout(self._settings.wait_for_replica_s):
                while True:
                    news = self._news  # taken first: none may be missed
                    if request_id in self._given_up:
                        raise RequestGivenUp
                    try:
                        return self._routing.assign(request_id)
                    except NoReplica:
                        if not any(member.watcher for member in self._members.values()):
                            raise ModelError(self._none_left()) from None
                        await news.wait()
        except TimeoutError:
            raise ModelError(self._none_left()) from None
        finally:
            self._given_up.discard(request_id)

    def _none_left(self) -> str:
        why = "; ".join(member.reason for member in self._members.values() if member.reason)
        return f"no inference replica is left ({why or 'none was there'})"

    # --- replicas come and go --------------------------------------------------------------------

    def _take_out(self, member: _Member, reason: str) -> None:
        """No further requests for it until a check says that it is well."""
        if member.is_in:
            member.is_in, member.reason = False, reason
            self._routing.lost(member.name)
            self.stats.num_lost += 1
            logger.warning(f"an inference replica gets no more requests: {reason}")
        member.suspected.set()

    def _watch_all(self) -> None:
        if not self._watching:
            self._watching = True
            for member in self._members.values():
                self._watch(member)

    def _watch(self, member: _Member) -> None:
        if member.watcher is None or member.watcher.done():
            member.watcher = asyncio.create_task(self._keep(member), name=f"watch {member.name}")

    async def _keep(self, member: _Member) -> None:
        """The watcher: for as long as the replica, or one in its place, can be had."""
        try:
            while await self._looked_after(member):
                pass
        finally:
            member.watcher = None
            self._tell_news()

    async def _looked_after(self, member: _Member) -> bool:
        """One round of its watcher; False where the replica is gone for good."""
        interval_s = self._settings.health_interval_s
        try:
            if member.failed_checks >= self._settings.max_failed_checks:
                await self._drop(member)
                return await self._respawn(member)
            if not member.suspected.is_set():
                await _wait(member.suspected, interval_s)
            elif member.failed_checks or member.is_loading:
                await asyncio.sleep(interval_s)
            if await self._check(member):
                await self._back_in(member)
        except Exception as error:  # noqa: BLE001, unwatched, nobody would hear of its end
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            logger.error(f"inference replica {member.name}: the watch over it met {told}")
            self._failed(member, told)
            await asyncio.sleep(interval_s)
        return True

    async def _check(self, member: _Member) -> bool:
        """Whether it is well. While it loads, it may have no time to say so."""
        if member.is_loading:
            return False
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                await member.replica.health()
        except TimeoutError:
            failure = f"no answer within {self._settings.health_timeout_s:g} s"
        except (ReplicaDown, ModelError) as failed:
            failure = str(failed)
        else:
            return True
        if not member.is_loading:
            self._failed(member, failure)
        return False

    def _failed(self, member: _Member, reason: str) -> None:
        named = reason.startswith(member.name)
        member.reason = reason if named else f"{member.name}: {reason}"
        member.failed_checks += 1
        member.suspected.set()

    async def _back_in(self, member: _Member) -> None:
        """It is well: with today's weights and the router's own state, it takes requests again."""
        if not member.is_in:
            async with self._changing:
                try:
                    await self._bring_up(member)
                except (ReplicaDown, ModelError) as failed:
                    return self._failed(member, str(failed))
                member.is_in, member.is_new = True, False
                self._routing.joined(member.name)
        member.failed_checks = member.num_spawns = 0
        member.suspected.clear()
        self._tell_news()

    async def _bring_up(self, member: _Member) -> None:
        """Its weights, and whether it is asleep or paused, as all the others' are. It may
        have missed a `wake`."""
        if self._awake.is_set():
            await member.replica.wake()
        if self._weights is not None and member.version != self._weights[1]:
            given, version = self._weights
            (source,) = await _dealt(given, 1)
            await self._load(member, source, version)
        if not self._awake.is_set():
            await member.replica.sleep()
        elif self._gate.is_open:
            await member.replica.resume()
        else:
            await member.replica.pause()

    async def _drop(self, member: _Member) -> None:
        """It is dead: it is closed, so that whoever waits for it asks another one."""
        self._take_out(member, member.reason)
        logger.warning(f"inference replica lost: {member.reason}")
        await member.replica.close()

    async def _respawn(self, member: _Member) -> bool:
        """Another in its place; False where there is nobody to make one, or it fails too often."""
        while self._spawn is not None and member.num_spawns < self._settings.max_spawns:
            await self._awake.wait()
            member.num_spawns += 1
            try:
                member.making = asyncio.ensure_future(self._make(self._spawn, member))
                await member.making
            except (ReplicaDown, ModelError) as failed:
                member.reason = str(failed)
                logger.warning(f"inference replica {member.name} not replaced: {failed}")
                await asyncio.sleep(self._settings.health_interval_s)
                continue
            self.stats.num_replaced += 1
            logger.info(f"inference replica {member.name} is there again")
            return True
        return False

    async def _make(self, spawn: Spawn, member: _Member) -> None:
        member.replica = await spawn(member.name)
        member.incarnation += 1
        member.is_new, member.failed_checks = True, 0
        member.version = member.replica.version

    async def _made(self) -> None:
        """Returns when no replacement is being made."""
        makings = [m.making for m in self._members.values() if m.making and not m.making.done()]
        if makings:
            await asyncio.wait(makings)

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- weights ---------------------------------------------------------------------------------

    async def _delivered(
        self, given: WeightSource | BroadcastSource, version: int
    ) -> list[SyncReport]:
        """Loaded by all that are in. A replica that dies in the middle of a delivery takes it from
        the others too: they are sent another."""
        while members := self._members_in():
            sources = dict(zip(members, await _dealt(given, len(members)), strict=True))
            try:
                await self._all(lambda m, own=sources: self._load(m, own[m], version), members)
            except WeightsError:
                if not isinstance(given, BroadcastSource) or members == self._members_in():
                    raise
                logger.warning(f"weights of version {version} are sent again: a replica was lost")
            else:
                return [m.report for m in members if m.is_in and m.report is not None]
        return []

    async def _load(self, member: _Member, source: WeightSource, version: int) -> None:
        member.is_loading = True
        try:
            member.report = await member.replica.load_weights(source, version)
        finally:
            member.is_loading = False
        member.version = version

    async def _first_report(self, version: int) -> SyncReport:
        """Of the first replica that comes back in, with this version."""
        try:
            async with asyncio.timeout(self._settings.wait_for_replica_s):
                while True:
                    news = self._news  # taken first: none may be missed
                    for member in self._members_in():
                        if member.report is not None and member.version == version:
                            return member.report
                    if not any(member.watcher for member in self._members.values()):
                        raise ModelError(self._none_left())
                    await news.wait()
        except TimeoutError:
            raise ModelError(self._none_left()) from None

    def _members_in(self) -> list[_Member]:
        return [member for member in self._members.values() if member.is_in]

    async def _all(
        self, act: Callable[[_Member], Awaitable[object]], members: list[_Member] | None = None
    ) -> None:
        """Do it on every replica that is in, at the same time. One that is down is taken out; any
        other error is raised when all are through."""
        members = self._members_in() if members is None else members
        ends = await asyncio.gather(*(act(m) for m in members), return_exceptions=True)
        errors: list[BaseException] = []
        for member, end in zip(members, ends, strict=True):
            if isinstance(end, ReplicaDown):
                self._take_out(member, str(end))
                self._watch(member)
            elif isinstance(end, BaseException):
                errors.append(end)
        if errors:
            raise errors[0]


async def _dealt(given: WeightSource | BroadcastSource, number: int) -> Sequence[WeightSource]:
    """A source for each of so many replicas."""
    return (
        await given.make_sources(number) if isinstance(given, BroadcastSource) else [given] * number
    )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
