"""Many replicas as one `ModelEndpoint`: chooses, retries, watches, replaces, holds.

    generate ─> gate ─> routing ─> replica ──ReplicaDown──> another one (at most `max_tries`)
                 │                    ^
        pause holds here              └── a watcher for each: health, out, back in or replaced

A replica that failed a request is taken out at once and asked for its health: well again, it comes
back in with the weights of the day; after `max_failed_checks` failed checks in a row it is dead:
its requests go elsewhere and `spawn` makes another in its place, once the engines are awake: while
they sleep their memory is somebody else's, and `sleep` waits for one that is being made. A check
that fails once and passes again changes nothing, nor does one while the replica loads weights.
While none is left but one is coming, requests wait; else they fail with one line.

`pause(abort=True)` ends what runs, and the router goes on with it after `resume`: from the tokens
that it had (`continue_aborted`), stamped with the oldest version among them, or from its start.

Not covered: placing replicas on machines, starting processes (`spawn` does); several event loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from loguru import logger

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.inference.gate import Gate
from ajet.core.inference.replica import Replica, ReplicaDown
from ajet.core.inference.routing import NoReplica, Routing
from ajet.core.seeding import derive
from ajet.core.weight_sync.manifest import Delivery, SyncReport, WeightsError, WeightSource

if TYPE_CHECKING:
    from collections.abc import Sequence

Spawn = Callable[[str], Awaitable[Replica]]
"""Makes a replica in the place of the dead one of this name; ReplicaDown or ModelError if that
fails. It is given today's weights, unless its `version` says that it has them."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How patient the router is."""

    skew: int = 32
    max_tries: int = 3
    health_interval_s: float = 5.0
    """Between checks, and between tries to replace a replica."""
    health_timeout_s: float = 10.0
    max_failed_checks: int = 3
    max_spawns: int = 3
    wait_for_replica_s: float = 900.0
    """For requests, while no replica is left and one is coming."""
    continue_aborted: bool = True


@dataclass(slots=True)
class RouterStats:
    """Counts since the router was made."""

    num_requests: int = 0
    num_retries: int = 0
    num_continued: int = 0
    num_lost: int = 0
    num_replaced: int = 0


class Places(Protocol):
    """Who has room: a `Routing` in this process, or one that many processes share."""

    async def assign(self, request_id: str) -> str:
        """A replica's name, or NoReplica."""
        ...

    def done(self, request_id: str) -> None: ...
    def leave(self, episode_id: str) -> str | None: ...
    def lost(self, name: str) -> object: ...
    def joined(self, name: str) -> None: ...


class OwnPlaces:
    """`Places` in this process."""

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.done = routing.done
        self.leave = routing.leave
        self.lost = routing.lost
        self.joined = routing.joined

    async def assign(self, request_id: str) -> str:
        return self.routing.assign(request_id)


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
    reason: str = ""
    calls: set[asyncio.Task[Completion]] = field(default_factory=set)
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
        places: Places | None = None,
    ) -> None:
        self._settings = settings or RouterSettings()
        self._spawn = spawn
        self._places = places or OwnPlaces(Routing(skew=self._settings.skew))
        self._gate = Gate()
        self._members: dict[str, _Member] = {}
        self._under_way: set[str] = set()
        self._given_up: set[str] = set()
        self._weights: tuple[WeightSource | Delivery, int] | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._changing = asyncio.Lock()
        self._news = asyncio.Event()
        self._at: dict[str, _Member] = {}
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

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Sample a continuation; see `ModelEndpoint`."""
        self._watch_all()
        if request_id in self._under_way:
            raise ValueError(f"request {request_id!r} is already under way")
        self._under_way.add(request_id)
        self.stats.num_requests += 1
        so_far: Completion | None = None
        try:
            while True:
                asked, drawn = _rest(prompt_ids, sampling, so_far)
                piece = await self._through_gate(asked, drawn, request_id)
                if piece.finish_reason != "abort" or request_id in self._given_up:
                    return _joined(so_far, piece)
                self.stats.num_continued += 1
                if self._settings.continue_aborted:
                    so_far = _joined(so_far, piece)
                if self._gate.is_open:  # somebody else ended it: not in a tight loop
                    await asyncio.sleep(0.01)
        finally:
            self._under_way.discard(request_id)
            self._given_up.discard(request_id)

    def leave(self, episode_id: str) -> None:
        """The episode is over: its replica may forget its prefix."""
        name = self._places.leave(episode_id)
        member = self._members.get(name) if name else None
        tell = getattr(member.replica, "leave", None) if member else None
        if tell is not None:
            tell(episode_id)

    def abort(self, request_id: str) -> None:
        """End a request with what it has sampled so far, wherever it is."""
        if request_id not in self._under_way:
            return
        self._given_up.add(request_id)
        if self._gate.give_up(request_id):
            return
        member = self._at.get(request_id)
        tell = getattr(member.replica, "abort", None) if member else None
        if tell is not None:
            tell(request_id)

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

    async def load_weights(self, source: WeightSource | Delivery, version: int) -> SyncReport:
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
        self._places.joined(name)
        if self._watching:
            self._watch(member)

    async def close(self) -> None:
        """Close every replica and stop watching."""
        for member in self._members.values():
            if member.watcher is not None:
                member.watcher.cancel()
        for member in self._members.values():
            await member.replica.close()

    # --- one request -----------------------------------------------------------------------------

    async def _through_gate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        if not await self._gate.enter(request_id):
            self._given_up.add(request_id)
            return Completion(tuple(prompt_ids), (), (), "abort", self.policy_version)
        try:
            return await self._sample(prompt_ids, sampling, request_id)
        finally:
            self._gate.leave(request_id)

    async def _sample(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        down: ReplicaDown | None = None
        for _ in range(self._settings.max_tries):
            member = await self._place(request_id)
            try:
                if request_id in self._given_up:  # before, or while it waited for a place
                    return Completion(tuple(prompt_ids), (), (), "abort", self.policy_version)
                return await self._ask(member, prompt_ids, sampling, request_id)
            except ReplicaDown as failed:
                down = failed
                self.stats.num_retries += 1
                self._take_out(member, str(failed))
            finally:
                self._places.done(request_id)
        raise ModelError(
            f"request {request_id}: {self._settings.max_tries} tries failed, the last one: {down}"
        )

    async def _place(self, request_id: str) -> _Member:
        """A replica with room, waiting for one that is on its way."""
        try:
            async with asyncio.timeout(self._settings.wait_for_replica_s):
                while True:
                    news = self._news  # taken first: none may be missed
                    try:
                        return self._members[await self._places.assign(request_id)]
                    except NoReplica:
                        if not any(member.watcher for member in self._members.values()):
                            raise ModelError(self._none_left()) from None
                        await news.wait()
        except TimeoutError:
            raise ModelError(self._none_left()) from None

    def _none_left(self) -> str:
        why = "; ".join(member.reason for member in self._members.values() if member.reason)
        return f"no inference replica is left ({why or 'none was there'})"

    async def _ask(
        self, member: _Member, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Ask the replica, and stop waiting for it when it is found dead."""
        call = asyncio.ensure_future(member.replica.generate(prompt_ids, sampling, request_id))
        member.calls.add(call)
        self._at[request_id] = member
        try:
            return await call
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise
            raise ReplicaDown(member.reason or f"{member.name}: closed") from None
        finally:
            member.calls.discard(call)
            self._at.pop(request_id, None)

    # --- replicas come and go --------------------------------------------------------------------

    def _take_out(self, member: _Member, reason: str) -> None:
        """No further requests for it until a check says that it is well."""
        if member.is_in:
            member.is_in, member.reason = False, reason
            self._places.lost(member.name)
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
                self._drop(member)
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
                self._places.joined(member.name)
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

    def _drop(self, member: _Member) -> None:
        """It is dead: whoever waits for it asks another one."""
        self._take_out(member, member.reason)
        logger.warning(f"inference replica lost: {member.reason}")
        for call in member.calls:
            call.cancel()

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
        member.is_new, member.failed_checks = True, 0
        member.version = getattr(member.replica, "version", None)

    async def _made(self) -> None:
        """Returns when no replacement is being made."""
        makings = [m.making for m in self._members.values() if m.making and not m.making.done()]
        if makings:
            await asyncio.wait(makings)

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- weights ---------------------------------------------------------------------------------

    async def _delivered(self, given: WeightSource | Delivery, version: int) -> list[SyncReport]:
        """Loaded by all that are in. A replica that dies in the middle of a delivery takes it from
        the others too: they are sent another."""
        while members := self._members_in():
            sources = dict(zip(members, await _dealt(given, len(members)), strict=True))
            try:
                await self._all(lambda m, own=sources: self._load(m, own[m], version), members)
            except WeightsError:
                if not isinstance(given, Delivery) or members == self._members_in():
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


async def _dealt(given: WeightSource | Delivery, number: int) -> Sequence[WeightSource]:
    """A source for each of so many replicas."""
    return await given.begin(number) if isinstance(given, Delivery) else [given] * number


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _rest(
    prompt_ids: Sequence[int], sampling: SamplingParams, so_far: Completion | None
) -> tuple[list[int], SamplingParams]:
    """What is still to be sampled. With the same seed the same numbers would be drawn again, for
    other places."""
    if so_far is None or not so_far.token_ids:
        return list(prompt_ids), sampling
    num_sampled = len(so_far.token_ids)
    rest = replace(
        sampling,
        max_tokens=sampling.max_tokens - num_sampled,
        seed=derive(sampling.seed, "continued", num_sampled),
    )
    return [*prompt_ids, *so_far.token_ids], rest


def _joined(first: Completion | None, rest: Completion) -> Completion:
    """One completion of two pieces, of the older version among those that have tokens: one that
    was ended in a queue was sampled with no weights at all."""
    if first is None:
        return rest
    versions = [piece.policy_version for piece in (first, rest) if piece.token_ids]
    return Completion(
        prompt_ids=first.prompt_ids,
        token_ids=first.token_ids + rest.token_ids,
        logprobs=first.logprobs + rest.logprobs,
        finish_reason=rest.finish_reason,
        policy_version=min(versions, default=rest.policy_version),
    )
