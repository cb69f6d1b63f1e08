"""Chooses the replica for each request, watches the replicas' health and loads their weights.

RoutedEndpoint ──assign──> gate ─> routing ─> "r1"    prompts and replies go directly to the replica
                             ^        ^
     pause holds requests here        └─ a watcher for each replica takes it out, puts it back in
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.replica import Gate, Replica, ReplicaDown
from ajet.core.inference.routing import NoReplica, Routing
from ajet.core.weight_sync.manifest import BroadcastSource, SyncReport, WeightsError, WeightSource

Result = TypeVar("Result")
Spawn = Callable[[str], Awaitable[Replica]]
"""Creates a replacement for the dead replica of this name, or raises ReplicaDown or ModelError. The
new replica then loads the current weights, unless its `version` says that it has them."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Settings of a router, from `ajet.rollout.router`."""

    skew: int = 32
    health_interval_s: float = 5.0
    """The interval between health checks, and between attempts to replace a replica."""
    health_timeout_s: float = 10.0
    max_failed_checks: int = 3
    max_spawns: int = 3
    wait_for_replica_s: float = 900.0
    """How long requests wait while no replica is active but one is expected."""

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        return cls(**same_named(cls, config.ajet.rollout.router))


@dataclass(slots=True)
class RouterStats:
    """Counts since the router was created."""

    num_lost: int = 0
    num_replaced: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replica for a request. A replacement has the name of the dead replica; `incarnation`
    counts the earlier replicas of this name."""

    name: str
    incarnation: int


class RequestGivenUp(Exception):
    """Raised when a request is given up while it waits for a replica."""


@dataclass(eq=False, slots=True)
class _Member:
    """A replica and what the router knows about it."""

    replica: Replica
    is_active: bool = False
    is_loading: bool = False
    is_new: bool = False  # a replacement that is not active yet
    replacement: asyncio.Future[None] | None = None
    version: int | None = None
    report: SyncReport | None = None  # of its last load of weights
    failed_checks: int = 0
    num_spawns: int = 0
    incarnation: int = 0
    reason: str = ""  # why it was deactivated last
    suspected: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.replica.name


class Router:
    """Routes requests over replicas. For one event loop.

    A replica that failed a request gets no more requests until a health check passes; it then
    returns with the current weights. After `max_failed_checks` failed checks in a row it is dead:
    it is closed, which fails its requests, and `spawn` creates a replacement. After `max_spawns`
    failed replacements it is abandoned until new weights are loaded. While no replica is active,
    requests wait if one is being checked or replaced, and fail if none is.
    """

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
        self._given_up: set[str] = set()  # requests that wait in `_route` and shall stop
        self._weights: tuple[WeightSource | BroadcastSource, int] | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        # Held by whatever changes the state of all replicas (pause, sleep, weights), and by a
        # watcher that brings one replica to that state.
        self._state_lock = asyncio.Lock()
        self._changed = asyncio.Event()  # replaced by a new one at each change, see `_notify`
        self._is_watching = False
        self.stats = RouterStats()
        for replica in replicas:
            self.replace(replica.name, replica)

    @property
    def names(self) -> list[str]:
        """The names of the active replicas."""
        return [name for name, member in self._members.items() if member.is_active]

    @property
    def policy_version(self) -> int:
        """The version of the weights that were loaded last."""
        return self._weights[1] if self._weights else 0

    async def assign(self, request_id: str) -> Assignment:
        """Returns the replica for this request, which counts as running there until `done`.

        Waits while requests are held, and while no replica is active but one is expected. Raises
        `RequestGivenUp` if the request is given up while waiting, and ModelError without replicas.
        """
        if not self._is_watching:
            self._is_watching = True
            for member in self._members.values():
                self._start_watcher(member)
        if not await self._gate.enter(request_id):
            raise RequestGivenUp
        try:
            name = await self._route(request_id)
        except BaseException:
            self._gate.leave(request_id)
            raise
        return Assignment(name, self._members[name].incarnation)

    def replica(self, assignment: Assignment) -> Replica:
        """Returns the replica of an assignment, or its replacement, which can serve the request
        too."""
        return self._members[assignment.name].replica

    def done(self, request_id: str) -> None:
        """Notes that a request was answered, has failed or was given up."""
        self._routing.done(request_id)
        self._gate.leave(request_id)
        self._given_up.discard(request_id)  # `give_up` may have come after it had a replica

    def report_down(self, assignment: Assignment, reason: str) -> None:
        """Deactivates a replica that did not answer, until a health check passes."""
        member = self._members[assignment.name]
        # A report about an earlier incarnation says nothing about its replacement.
        if member.incarnation == assignment.incarnation:
            self._deactivate(member, reason)

    def give_up(self, request_id: str) -> None:
        """Ends a request that waits for a replica: `assign` raises `RequestGivenUp`."""
        if not self._gate.give_up(request_id):
            self._given_up.add(request_id)
            self._notify()

    def leave(self, episode_id: str) -> None:
        """Notes that an episode is over: its replica may drop the episode's prefix."""
        name = self._routing.leave(episode_id)
        if name in self._members:
            self._members[name].replica.leave(episode_id)

    def drop_requests(self, id_suffix: str) -> None:
        """Marks all requests whose ids have this suffix as done: their process has ended."""
        for request_id in self._gate.inside:
            if request_id.endswith(id_suffix):
                self.done(request_id)

    async def pause(self, abort: bool = False) -> None:
        """Holds new requests, and returns when none is running. With `abort`, running requests end
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
            self._awake.clear()  # no new replacement from here: the memory is the trainer's
            replacements = (member.replacement for member in self._members.values())
            unfinished = [future for future in replacements if future and not future.done()]
            if unfinished:
                await asyncio.wait(unfinished)
            # A new replica is not active yet, but has allocated its memory.
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
        """Loads new weights into every replica; raises `WeightsError` unless all have the same.

        Returns a report with the seconds of the slowest replica and the bytes of all. If no replica
        is active but one is expected, waits until that one has loaded the weights."""
        if not self._members:  # a run without engines
            return SyncReport(version, 0.0, 0, "")
        async with self._state_lock:
            reports = await self._load_all(source, version)
            self._weights = (source, version)
            for member in self._members.values():
                if not member.is_active:
                    # A restarted trainer uses a version number again for different weights.
                    member.version = None
                    member.num_spawns = 0  # the old weights may have been why it failed
                    if self._spawn is not None:
                        self._start_watcher(member)

        def first_report() -> SyncReport | None:
            reports = (m.report for m in self._active_members() if m.version == version)
            return next((report for report in reports if report is not None), None)

        if not reports:
            reports = [await self._wait_for(first_report)]
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
        """Adds a replica, or replaces the one with this name; it is active immediately."""
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
        """Returns the name of the replica for a request; waits while one is expected."""

        def assign() -> str | None:
            if request_id in self._given_up:
                raise RequestGivenUp
            try:
                return self._routing.assign(request_id)
            except NoReplica:
                return None

        try:
            return await self._wait_for(assign)
        finally:
            self._given_up.discard(request_id)

    async def _wait_for(self, attempt: Callable[[], Result | None]) -> Result:
        """Returns the first result of `attempt` that is not None; tries again after each change of
        the replicas. Raises ModelError when no replica is expected any more."""
        try:
            async with asyncio.timeout(self._settings.wait_for_replica_s):
                while True:
                    changed = self._changed  # read before the state, so that no change is missed
                    if (result := attempt()) is not None:
                        return result
                    # A watcher is checking or replacing its replica.
                    if not any(member.watcher for member in self._members.values()):
                        raise ModelError(self._no_replica_message(), code=Code.ENGINE_FAILED)
                    await changed.wait()
        except TimeoutError:
            raise ModelError(self._no_replica_message(), code=Code.ENGINE_FAILED) from None

    def _no_replica_message(self) -> str:
        reasons = "; ".join(member.reason for member in self._members.values() if member.reason)
        return f"no inference replica is left ({reasons or 'there was none'})"

    # --- health and replacement ------------------------------------------------------------------

    def _deactivate(self, member: _Member, reason: str) -> None:
        """Stops sending requests to the replica, and wakes its watcher to check its health."""
        if member.is_active:
            member.is_active, member.reason = False, reason
            self._routing.lost(member.name)
            self.stats.num_lost += 1
            logger.warning(f"an inference replica gets no more requests: {reason}")
        member.suspected.set()

    def _start_watcher(self, member: _Member) -> None:
        async def watch() -> None:
            try:
                while await self._watch_once(member):
                    pass
            finally:
                # Without a watcher no replica is expected here, so waiting requests must fail.
                member.watcher = None
                self._notify()

        if member.watcher is None or member.watcher.done():
            member.watcher = asyncio.create_task(watch(), name=f"watch {member.name}")

    async def _watch_once(self, member: _Member) -> bool:
        """Does one round of the watcher; returns False if the replica cannot be replaced."""
        interval_s = self._settings.health_interval_s
        try:
            if member.failed_checks >= self._settings.max_failed_checks:
                self._deactivate(member, member.reason)
                logger.warning(f"inference replica lost: {member.reason}")
                await member.replica.close()  # its requests fail, and go to another replica
                return await self._respawn(member)
            # Waits for the next regular check, or until a request has failed there. A replica that
            # is suspected already is checked at once the first time, and then at intervals.
            if not member.suspected.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await member.suspected.wait()
            elif member.failed_checks or member.is_loading:
                await asyncio.sleep(interval_s)
            if await self._check(member):
                await self._reactivate(member)
        except Exception as error:  # noqa: BLE001, nobody awaits the watcher
            message = f"{type(error).__name__}: {' '.join(str(error).split())}"
            logger.error(f"inference replica {member.name}: its watcher raised {message}")
            self._failed(member, f"{member.name}: {message}")
            await asyncio.sleep(interval_s)
        return True

    async def _check(self, member: _Member) -> bool:
        """Returns whether the replica is well."""
        if member.is_loading:  # it may not answer, which is not a failure
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
        if not member.is_loading:  # a load may have started during the check
            self._failed(member, failure)
        return False

    def _failed(self, member: _Member, reason: str) -> None:
        """Counts a failed check; `reason` names the replica."""
        member.reason = reason
        member.failed_checks += 1
        member.suspected.set()

    async def _reactivate(self, member: _Member) -> None:
        """Activates a healthy replica again, with the current weights and state."""
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
        """Loads the current weights into a replica, and makes it sleep, pause or run like the
        others."""
        if self._awake.is_set():  # it may have missed a `wake`
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

    async def _respawn(self, member: _Member) -> bool:
        """Creates a replacement; returns False if there is no `spawn` or it failed too often."""
        while self._spawn is not None and member.num_spawns < self._settings.max_spawns:
            await self._awake.wait()  # while asleep, the trainer has the memory
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
            logger.info(f"inference replica {member.name} was replaced")
            return True
        return False

    async def _make_replacement(self, spawn: Spawn, member: _Member) -> None:
        weights = self._weights
        member.replica = await spawn(member.name)
        member.incarnation += 1
        member.is_new, member.failed_checks = True, 0
        # If weights were loaded since, they may be different ones with the version that it has.
        member.version = member.replica.version if self._weights is weights else None

    def _notify(self) -> None:
        """Wakes everything that waits for a change of the replicas."""
        self._changed.set()
        self._changed = asyncio.Event()

    # --- weights ---------------------------------------------------------------------------------

    async def _load_all(
        self, weights: WeightSource | BroadcastSource, version: int
    ) -> list[SyncReport]:
        """Loads weights into all active replicas. A broadcast also fails for the others if a
        replica dies; the weights are then sent again."""
        while members := self._active_members():
            sources = dict(zip(members, await _sources_for(weights, members), strict=True))

            def load(
                member: _Member, sources: dict[_Member, WeightSource] = sources
            ) -> Awaitable[None]:
                return self._load(member, sources[member], version)

            try:
                await self._on_all(load, members)
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

    def _active_members(self) -> list[_Member]:
        return [member for member in self._members.values() if member.is_active]

    async def _on_all(
        self, call: Callable[[_Member], Awaitable[object]], members: list[_Member] | None = None
    ) -> None:
        """Makes a call for every active replica, concurrently. Replicas that are down are
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
    """Returns one source for each replica."""
    if isinstance(weights, BroadcastSource):
        return await weights.make_sources([member.name for member in members])
    return [weights] * len(members)
