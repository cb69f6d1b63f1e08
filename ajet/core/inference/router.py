"""Chooses the replica for each request, watches the replicas' health and loads their weights.

Prompts and replies do not pass through here (routed_endpoint.py).

    RoutedEndpoint ──assign──> gate ─> routing ─> "r1"
                   ──done───>    ^        ^
                                 │        └── a watcher for each replica: checks its health, takes
                                 │            it out, puts it back in or replaces it
                        pause holds requests here

A replica that failed a request gets no more requests at once, and its health is checked. If it is
well it comes back with the present weights. After `max_failed_checks` failed checks in a row it is
dead: it is closed, which outcomes its requests, and `spawn` makes a replacement; after `max_spawns`
that did not come to work it is given up until other weights are loaded. Replacements are made only
while the engines are awake, since their memory belongs to the trainer while they sleep; `sleep`
waits for one that is being made. A check that fails once and passes again changes nothing, nor does
one that fails while the replica loads weights. While no replica is active, requests wait if one is
on its way; otherwise they fail with an error of one line.

`pause(abort=True)` outcomes the requests that run; the endpoint continues them after `resume`.

Not covered: placing replicas on machines, starting processes (`spawn` does); several event loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.error_codes import Code
from ajet.core.errors import ModelError
from ajet.core.inference.gate import Gate
from ajet.core.inference.replica import Replica, ReplicaDown
from ajet.core.inference.routing import NoReplica, Routing
from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightsError, WeightSource

Spawn = Callable[[str], Awaitable[Replica]]
"""Makes a replica to replace the dead one of this name; raises ReplicaDown or ModelError if that
fails. The new replica then loads the present weights, unless its `version` says that it has
them."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Settings of a router: times in seconds, and numbers of tries."""

    skew: int = 32
    health_interval_s: float = 5.0
    """The time between health checks, and between attempts to replace a replica."""
    health_timeout_s: float = 10.0
    max_failed_checks: int = 3
    max_spawns: int = 3
    wait_for_replica_s: float = 900.0
    """How long requests wait while no replica is active and one is on its way."""

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the settings of a config's router over its engines."""
        return cls(**same_named(cls, config.ajet.rollout.router))


@dataclass(slots=True)
class RouterStats:
    """Counts since the router was made."""

    num_lost: int = 0
    num_replaced: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replica that takes a request. `incarnation` counts the earlier replicas of this name: a
    replacement has the name of the dead replica."""

    name: str
    incarnation: int


class RequestGivenUp(Exception):
    """The request was given up while it waited for a replica."""


@dataclass(eq=False, slots=True)
class _Member:
    """A replica and what the router knows about it."""

    replica: Replica
    is_active: bool = False
    is_loading: bool = False
    is_new: bool = False  # a replacement that is not active yet
    replacement: asyncio.Future[None] | None = None
    version: int | None = None
    report: SyncReport | None = None  # from the last time it loaded weights
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
    """Routes requests over replicas; see the module's docstring."""

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
        self._state_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_watching = False
        self.stats = RouterStats()
        for replica in replicas:
            self.replace(replica.name, replica)

    @property
    def names(self) -> list[str]:
        """The names of the replicas that take requests now."""
        return [name for name, member in self._members.items() if member.is_active]

    @property
    def policy_version(self) -> int:
        """The version of the weights that were loaded last."""
        return self._weights[1] if self._weights else 0

    async def assign(self, request_id: str) -> Assignment:
        """Returns the replica for this request, which counts as running there until `done`.

        Waits while requests are held, and while no replica is active but one is on its way. Raises
        `RequestGivenUp` if the request is given up meanwhile, and ModelError if no replica is left.
        """
        self._watch_all()
        if not await self._gate.enter(request_id):
            raise RequestGivenUp
        try:
            name = await self._route(request_id)
        except BaseException:
            self._gate.leave(request_id)
            raise
        return Assignment(name, self._members[name].incarnation)

    def replica(self, assignment: Assignment) -> Replica:
        """Returns the replica to send the request to. It may be a later replica of the same name,
        which serves the request as well."""
        return self._members[assignment.name].replica

    def done(self, request_id: str) -> None:
        """Records that a request is answered, has failed or was given up."""
        self._routing.done(request_id)
        self._gate.leave(request_id)
        self._given_up.discard(request_id)  # it was given up when it had a replica already

    def report_down(self, assignment: Assignment, reason: str) -> None:
        """Deactivates a replica that gave no answer until a check says that it is well."""
        member = self._members[assignment.name]
        if member.incarnation == assignment.incarnation:
            self._deactivate(member, reason)

    def give_up(self, request_id: str) -> None:
        """Ends a request that waits for a replica: `assign` raises `RequestGivenUp`."""
        if not self._gate.give_up(request_id):
            self._given_up.add(request_id)
            self._notify()

    def leave(self, episode_id: str) -> None:
        """Records that an episode is over: its replica may drop the episode's prefix."""
        name = self._routing.leave(episode_id)
        if name in self._members:
            self._members[name].replica.leave(episode_id)

    def drop_requests(self, id_suffix: str) -> None:
        """Records that the requests whose ids have this suffix are done: the process that made them
        has ended."""
        for request_id in [request_id for request_id in self._gate.inside if request_id.endswith(id_suffix)]:
            self.done(request_id)

    async def pause(self, abort: bool = False) -> None:
        """Holds new requests and returns when no replica works. With `abort` requests that run end
        now, and the endpoint continues them after `resume`."""
        async with self._state_lock:
            self._gate.shut()
            await self._on_all(lambda member: member.replica.pause(abort))

    async def resume(self) -> None:
        """Lets held and new requests run."""
        async with self._state_lock:
            await self._on_all(lambda member: member.replica.resume())
            self._gate.open()

    async def sleep(self) -> None:
        """Makes every replica free its memory; requests are held until `wake` and `resume`."""
        async with self._state_lock:
            self._gate.shut()
            self._awake.clear()
            await self._replacements_made()
            members = [m for m in self._members.values() if m.is_active or m.is_new]
            await self._on_all(lambda member: member.replica.sleep(), members)

    async def wake(self) -> None:
        """Makes every replica allocate its memory again."""
        async with self._state_lock:
            self._awake.set()
            await self._on_all(lambda member: member.replica.wake())

    async def load_weights(
        self, source: WeightSource | BroadcastSource, version: int
    ) -> SyncReport:
        """Loads new weights into every replica; `WeightsError` unless all then have the same.

        Returns a report with the seconds of the slowest replica and the bytes of all. If no replica
        is active but one is on its way, waits until that one has loaded the weights. A router
        without replicas, which no request comes to, loads nothing."""
        if not self._members:
            return SyncReport(version, 0.0, 0, "")
        async with self._state_lock:
            reports = await self._load_all(source, version)
            self._weights = (source, version)
            for member in self._members.values():
                if not member.is_active:
                    # After a lost attempt of the trainer, versions of other weights come again.
                    member.version = None
                    member.num_spawns = 0  # it may not have come to work because of the old weights
                    if self._spawn is not None:
                        self._start_watcher(member)
        if not reports:
            reports = [await self._report_of_first(version)]
        checksums = {report.checksum for report in reports}
        if len(checksums) != 1:
            raise WeightsError(f"weights of version {version}: replicas hold different ones")
        num_bytes = sum(report.num_bytes for report in reports)
        seconds = max(report.seconds for report in reports)
        return SyncReport(version, seconds, num_bytes, checksums.pop())

    async def empty_caches(self) -> None:
        """Makes every replica forget its cached prefixes."""
        async with self._state_lock:
            await self._on_all(lambda member: member.replica.empty_cache())

    def replace(self, name: str, replica: Replica) -> None:
        """Adds a replica, or replaces the one of this name; it takes requests at once."""
        assert replica.name == name
        member = self._members.setdefault(name, _Member(replica))
        member.replica, member.is_active = replica, True
        member.failed_checks, member.reason = 0, ""
        self._routing.joined(name)
        if self._is_watching:
            self._start_watcher(member)

    async def close(self) -> None:
        """Stops watching and closes every replica."""
        for member in self._members.values():
            if member.watcher is not None:
                member.watcher.cancel()
        for member in self._members.values():
            await member.replica.close()

    async def _route(self, request_id: str) -> str:
        """Returns the name of the replica for a request; waits while one is on its way."""
        try:
            async with asyncio.timeout(self._settings.wait_for_replica_s):
                while True:
                    changed = self._changed  # taken before the state is read: no change is missed
                    if request_id in self._given_up:
                        raise RequestGivenUp
                    try:
                        return self._routing.assign(request_id)
                    except NoReplica:
                        if not any(member.watcher for member in self._members.values()):
                            raise ModelError(
                                self._no_replica_message(), code=Code.ENGINE_FAILED
                            ) from None
                        await changed.wait()
        except TimeoutError:
            raise ModelError(self._no_replica_message(), code=Code.ENGINE_FAILED) from None
        finally:
            self._given_up.discard(request_id)

    def _no_replica_message(self) -> str:
        reasons = "; ".join(member.reason for member in self._members.values() if member.reason)
        return f"no inference replica is left ({reasons or 'none was there'})"

    # --- health and replacement ------------------------------------------------------------------

    def _deactivate(self, member: _Member, reason: str) -> None:
        """Gives the replica no further requests, and wakes its watcher to check its health."""
        if member.is_active:
            member.is_active, member.reason = False, reason
            self._routing.lost(member.name)
            self.stats.num_lost += 1
            logger.warning(f"an inference replica gets no more requests: {reason}")
        member.suspected.set()

    def _watch_all(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            for member in self._members.values():
                self._start_watcher(member)

    def _start_watcher(self, member: _Member) -> None:
        if member.watcher is None or member.watcher.done():
            member.watcher = asyncio.create_task(
                self._watch_loop(member), name=f"watch {member.name}"
            )

    async def _watch_loop(self, member: _Member) -> None:
        """Watches a replica and its replacements until it cannot be replaced any more."""
        try:
            while await self._watch_once(member):
                pass
        finally:
            member.watcher = None
            self._notify()

    async def _watch_once(self, member: _Member) -> bool:
        """Does one round of the watcher; returns False if the replica cannot be replaced."""
        interval_s = self._settings.health_interval_s
        try:
            if member.failed_checks >= self._settings.max_failed_checks:
                await self._close_dead(member)
                return await self._respawn(member)
            if not member.suspected.is_set():
                await _wait_for(member.suspected, interval_s)
            elif member.failed_checks or member.is_loading:
                await asyncio.sleep(interval_s)
            if await self._check(member):
                await self._reactivate(member)
        except Exception as error:  # noqa: BLE001, nobody awaits the watcher
            message = f"{type(error).__name__}: {' '.join(str(error).split())}"
            logger.error(f"inference replica {member.name}: the watch over it met {message}")
            self._failed(member, f"{member.name}: {message}")
            await asyncio.sleep(interval_s)
        return True

    async def _check(self, member: _Member) -> bool:
        """Returns whether the replica is well. A replica that loads weights may not answer, which
        is no failure."""
        if member.is_loading:
            return False
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                await member.replica.health()
        except TimeoutError:
            failure = f"{member.name}: no answer within {self._settings.health_timeout_s:g} s"
        except (ReplicaDown, ModelError) as failed:
            failure = str(failed)
        else:
            return True
        if not member.is_loading:
            self._failed(member, failure)
        return False

    def _failed(self, member: _Member, reason: str) -> None:
        """Counts a failed check; `reason` names the replica, as its own errors do."""
        member.reason = reason
        member.failed_checks += 1
        member.suspected.set()

    async def _reactivate(self, member: _Member) -> None:
        """Makes a replica that is well active again, with the present weights and state."""
        if not member.is_active:
            async with self._state_lock:
                try:
                    await self._synchronize(member)
                except (ReplicaDown, ModelError) as failed:
                    return self._failed(member, str(failed))
                member.is_active, member.is_new = True, False
                self._routing.joined(member.name)
        member.failed_checks = member.num_spawns = 0
        member.suspected.clear()
        self._notify()

    async def _synchronize(self, member: _Member) -> None:
        """Gives a replica the present weights, and makes it sleep, pause or run like the others. It
        may have missed a `wake`."""
        if self._awake.is_set():
            await member.replica.wake()
        if self._weights is not None and member.version != self._weights[1]:
            weights, version = self._weights
            (source,) = await _sources_for(weights, [member])
            await self._load(member, source, version)
        if not self._awake.is_set():
            await member.replica.sleep()
        elif self._gate.is_open:
            await member.replica.resume()
        else:
            await member.replica.pause()

    async def _close_dead(self, member: _Member) -> None:
        """Closes a dead replica, so that its requests fail and are sent to another one."""
        self._deactivate(member, member.reason)
        logger.warning(f"inference replica lost: {member.reason}")
        await member.replica.close()

    async def _respawn(self, member: _Member) -> bool:
        """Makes a replacement; returns False if the router cannot spawn, or it failed too often."""
        while self._spawn is not None and member.num_spawns < self._settings.max_spawns:
            await self._awake.wait()
            member.num_spawns += 1
            try:
                member.replacement = asyncio.ensure_future(
                    self._make_replacement(self._spawn, member)
                )
                await member.replacement
            except (ReplicaDown, ModelError) as failed:
                member.reason = str(failed)
                logger.warning(f"inference replica {member.name} not replaced: {failed}")
                await asyncio.sleep(self._settings.health_interval_s)
                continue
            self.stats.num_replaced += 1
            logger.info(f"inference replica {member.name} is there again")
            return True
        return False

    async def _make_replacement(self, spawn: Spawn, member: _Member) -> None:
        weights = self._weights
        member.replica = await spawn(member.name)
        member.incarnation += 1
        member.is_new, member.failed_checks = True, 0
        # Weights that were loaded meanwhile may be others of the version that it began with.
        member.version = member.replica.version if self._weights is weights else None

    async def _replacements_made(self) -> None:
        """Returns when no replacement is being made."""
        replacements = (member.replacement for member in self._members.values())
        unfinished = [replacement for replacement in replacements if replacement is not None and not replacement.done()]
        if unfinished:
            await asyncio.wait(unfinished)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- weights ---------------------------------------------------------------------------------

    async def _load_all(
        self, weights: WeightSource | BroadcastSource, version: int
    ) -> list[SyncReport]:
        """Loads weights into all active replicas. A replica that dies during a broadcast ends it
        for the others too: the weights are then sent again."""
        while members := self._active_members():
            sources = dict(zip(members, await _sources_for(weights, members), strict=True))
            try:
                await self._on_all(lambda m, sources_by_member=sources: self._load(m, sources_by_member[m], version), members)
            except WeightsError:
                if not isinstance(weights, BroadcastSource) or members == self._active_members():
                    raise
                logger.warning(f"weights of version {version} are sent again: a replica was lost")
            else:
                return [m.report for m in members if m.is_active and m.report is not None]
        return []

    async def _load(self, member: _Member, source: WeightSource, version: int) -> None:
        member.is_loading = True
        try:
            member.report = await member.replica.load_weights(source, version)
        finally:
            member.is_loading = False
        member.version = version

    async def _report_of_first(self, version: int) -> SyncReport:
        """Waits for a replica that becomes active with this version; returns its report."""
        try:
            async with asyncio.timeout(self._settings.wait_for_replica_s):
                while True:
                    changed = self._changed  # taken before the state is read: no change is missed
                    for member in self._active_members():
                        if member.report is not None and member.version == version:
                            return member.report
                    if not any(member.watcher for member in self._members.values()):
                        raise ModelError(self._no_replica_message(), code=Code.ENGINE_FAILED)
                    await changed.wait()
        except TimeoutError:
            raise ModelError(self._no_replica_message(), code=Code.ENGINE_FAILED) from None

    def _active_members(self) -> list[_Member]:
        return [member for member in self._members.values() if member.is_active]

    async def _on_all(
        self, call: Callable[[_Member], Awaitable[object]], members: list[_Member] | None = None
    ) -> None:
        """Calls a method of every active replica, at the same time. A replica that is down is
        deactivated; another error is raised after all calls have ended."""
        members = self._active_members() if members is None else members
        outcomes = await asyncio.gather(*(call(m) for m in members), return_exceptions=True)
        errors: list[BaseException] = []
        for member, outcome in zip(members, outcomes, strict=True):
            if isinstance(outcome, ReplicaDown):
                self._deactivate(member, str(outcome))
                self._start_watcher(member)
            elif isinstance(outcome, BaseException):
                errors.append(outcome)
        if errors:
            raise errors[0]


async def _sources_for(
    weights: WeightSource | BroadcastSource, members: Sequence[_Member]
) -> Sequence[WeightSource]:
    """Returns one source for each of these replicas."""
    if isinstance(weights, BroadcastSource):
        return await weights.make_sources([member.name for member in members])
    return [weights] * len(members)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Returns when the event is set, or after this time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
