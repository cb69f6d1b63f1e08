"""Many replicas as one `ModelEndpoint`: each request goes straight to the replica that the router
names, and to another one if that is down.

    generate ──assign──> router "r1"
             ──prompt, reply──> replica r1 ──ReplicaDown──> router, another one, `max_tries` in all
             ──done──> router

While weights are loaded the router may end the requests that run. The endpoint goes on with them:
from the tokens that they had (`continue_aborted`), stamped with the oldest version among them, or
from their start.

Not covered: which replica it is (router.py, routing.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.replica import Replica, ReplicaDown
from ajet.core.inference.router import Assignment, RequestGivenUp
from ajet.core.seeding import derive

PAUSE_AFTER_ABORT_S = 0.01
"""Before a request that somebody else has ended is sent again."""


class RequestRouter(Protocol):
    """A `Router` in this process, or the way to one in another process."""

    def assign(self, request_id: str) -> Awaitable[Assignment]: ...
    def replica(self, assignment: Assignment) -> Replica: ...
    def done(self, request_id: str) -> None: ...
    def report_down(self, assignment: Assignment, reason: str) -> None: ...
    def give_up(self, request_id: str) -> None: ...
    def leave(self, episode_id: str) -> None: ...


@dataclass(slots=True)
class RequestStats:
    """Counts since the endpoint was made."""

    num_requests: int = 0
    num_retries: int = 0
    num_continued: int = 0


@dataclass(eq=False, slots=True)
class _Request:
    """A request under way: where it is, and whether its caller has given it up."""

    replica: Replica | None = None
    is_given_up: bool = False


class RoutedEndpoint(ModelEndpoint):
    """See the module's docstring."""

    def __init__(
        self,
        router: RequestRouter,
        *,
        max_tries: int = 3,
        continue_aborted: bool = True,
        mark: str = "",
    ) -> None:
        """`mark` ends the ids that the router and the replicas see: requests that a process left
        behind when it died must not be taken for those of its successor."""
        self._router = router
        self._max_tries = max_tries
        self._continue_aborted = continue_aborted
        self._mark = mark
        self._under_way: dict[str, _Request] = {}
        self.stats = RequestStats()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Sample a continuation; see `ModelEndpoint`."""
        if request_id in self._under_way:
            raise ValueError(f"request {request_id!r} is already under way")
        request = self._under_way[request_id] = _Request()
        self.stats.num_requests += 1
        marked, num_failed = request_id + self._mark, 0
        so_far: Completion | None = None
        try:
            while True:
                ids, drawn = _rest(prompt_ids, sampling, so_far)
                try:
                    async with self._assigned(marked, request) as replica:
                        piece = await replica.generate(ids, drawn, marked)
                except RequestGivenUp:
                    return _joined(so_far, _nothing(ids))
                except ReplicaDown as down:
                    self.stats.num_retries += 1
                    num_failed += 1
                    if num_failed == self._max_tries:
                        raise ModelError(
                            f"request {marked}: {num_failed} tries failed, the last one: {down}"
                        ) from down
                    continue
                if piece.finish_reason != "abort" or request.is_given_up:
                    return _joined(so_far, piece)
                self.stats.num_continued += 1
                if self._continue_aborted:
                    so_far = _joined(so_far, piece)
                await asyncio.sleep(PAUSE_AFTER_ABORT_S)
        finally:
            del self._under_way[request_id]

    def abort(self, request_id: str) -> None:
        """End a request with what it has sampled so far, wherever it is."""
        request = self._under_way.get(request_id)
        if request is None:
            return
        request.is_given_up = True
        if request.replica is None:
            self._router.give_up(request_id + self._mark)
        else:
            request.replica.abort(request_id + self._mark)

    def leave(self, episode_id: str) -> None:
        """The episode is over: its replica may forget its prefix."""
        self._router.leave(episode_id)

    @asynccontextmanager
    async def _assigned(self, request_id: str, request: _Request) -> AsyncIterator[Replica]:
        """The replica for a request, which counts there within the block."""
        assignment = await self._router.assign(request_id)  # done again where this is cancelled
        try:
            if request.is_given_up:
                raise RequestGivenUp
            request.replica = self._router.replica(assignment)
            yield request.replica
        except ReplicaDown as down:
            self._router.report_down(assignment, str(down))
            raise
        except asyncio.CancelledError:
            if request.replica is not None:
                request.replica.abort(request_id)
            raise
        finally:
            request.replica = None
            self._router.done(request_id)


def _nothing(prompt_ids: Sequence[int]) -> Completion:
    """The completion of a request that was given up before it was sampled."""
    return Completion(tuple(prompt_ids), (), (), "abort", 0)


def _rest(
    prompt_ids: Sequence[int], sampling: SamplingParams, so_far: Completion | None
) -> tuple[list[int], SamplingParams]:
    """What is still to be sampled. With the same seed the same random numbers would be drawn again,
    for other positions."""
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
    """One completion of two pieces, with the older version among those that have tokens: one that
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
