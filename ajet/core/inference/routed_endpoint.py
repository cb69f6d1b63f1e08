"""A `ModelEndpoint` over many replicas: each request goes directly to the replica that the router
chooses, and to another one if that is down.

While weights are loaded, the router may end running requests. The endpoint continues them from the
tokens sampled so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.replica import Replica, ReplicaDown
from ajet.core.inference.router import Assignment, RequestGivenUp
from ajet.core.model.routes import merge_routes
from ajet.core.seeding import derive

PAUSE_AFTER_ABORT_S = 0.01
"""The pause before a request that was ended is continued."""


class RequestRouter(Protocol):
    """A `Router` in this process, or a handle of one in another process."""

    def assign(self, request_id: str) -> Awaitable[Assignment]: ...
    def replica(self, assignment: Assignment) -> Replica: ...
    def done(self, request_id: str) -> None: ...
    def report_down(self, assignment: Assignment, reason: str) -> None: ...
    def give_up(self, request_id: str) -> None: ...
    def leave(self, episode_id: str) -> None: ...


@dataclass(slots=True)
class RequestStats:
    """Counts since the endpoint was created."""

    num_requests: int = 0
    num_retries: int = 0


@dataclass(eq=False, slots=True)
class _Request:
    """A running request."""

    full_id: str  # its id at the router and the replicas
    replica: Replica | None = None
    is_given_up: bool = False


class RoutedEndpoint(ModelEndpoint):
    """An endpoint over a router's replicas."""

    def __init__(
        self,
        router: RequestRouter,
        *,
        max_tries: int = 3,
        id_suffix: str = "",
    ) -> None:
        """`id_suffix` is appended to the ids at the router and the replicas, so that requests of a
        process that died differ from those of its replacement."""
        self._router = router
        self._max_tries = max_tries
        self._id_suffix = id_suffix
        self._running: dict[str, _Request] = {}
        self.stats = RequestStats()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        if request_id in self._running:
            raise ValueError(f"request {request_id!r} is already under way")
        self.stats.num_requests += 1
        # Numbered, because an episode that was cancelled and starts again uses the same ids, while
        # messages about the first requests may still be on their way.
        full_id = f"{request_id}.{self.stats.num_requests}{self._id_suffix}"
        request = self._running[request_id] = _Request(full_id)
        num_failed = 0
        sampled: Completion | None = None
        try:
            while True:
                ids, rest = _remaining(prompt_ids, sampling, sampled)
                try:
                    async with self._assigned(request) as replica:
                        piece = await replica.generate(ids, rest, full_id)
                except RequestGivenUp:
                    return _joined(sampled, Completion(tuple(ids), (), (), "abort", 0))
                except ReplicaDown as down:
                    self.stats.num_retries += 1
                    num_failed += 1
                    if num_failed == self._max_tries:
                        tries = f"{num_failed} tries failed, the last one: {down}"
                        raise ModelError(
                            f"request {request_id}: {tries}",
                            code=Code.ENGINE_FAILED,
                        ) from down
                    continue
                if piece.finish_reason != "abort" or request.is_given_up:
                    return _joined(sampled, piece)
                sampled = _joined(sampled, piece)
                await asyncio.sleep(PAUSE_AFTER_ABORT_S)
        finally:
            del self._running[request_id]

    def abort(self, request_id: str) -> None:
        request = self._running.get(request_id)
        if request is None:
            return
        request.is_given_up = True
        if request.replica is None:
            self._router.give_up(request.full_id)
        else:
            request.replica.abort(request.full_id)

    def leave(self, episode_id: str) -> None:
        self._router.leave(episode_id)

    @asynccontextmanager
    async def _assigned(self, request: _Request) -> AsyncIterator[Replica]:
        """Yields the replica for a request, which counts as running there within the block."""
        request_id = request.full_id
        # Outside of the `try`: if it is cancelled here, the router itself frees the request.
        assignment = await self._router.assign(request_id)
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


def _remaining(
    prompt_ids: Sequence[int], sampling: SamplingParams, sampled: Completion | None
) -> tuple[list[int], SamplingParams]:
    """Returns the prompt and the parameters for the rest of a reply. The seed must differ: the same
    one would draw the same random numbers again for other positions."""
    if sampled is None or not sampled.token_ids:
        return list(prompt_ids), sampling
    num_sampled = len(sampled.token_ids)
    rest = replace(
        sampling,
        max_tokens=sampling.max_tokens - num_sampled,
        seed=derive(sampling.seed, "continued", num_sampled),
    )
    return [*prompt_ids, *sampled.token_ids], rest


def _joined(first: Completion | None, rest: Completion) -> Completion:
    """Joins two pieces into one completion, with the oldest of their policy versions."""
    if first is None:
        return rest
    # A piece without tokens was ended in a queue: no weights sampled it.
    pieces = [
        piece
        for each in (first, rest)
        if each.token_ids
        for piece in each.versions or ((len(each.token_ids), each.policy_version),)
    ]
    versions = {version for _, version in pieces}
    return Completion(
        prompt_ids=first.prompt_ids,
        token_ids=first.token_ids + rest.token_ids,
        logprobs=first.logprobs + rest.logprobs,
        finish_reason=rest.finish_reason,
        policy_version=min(versions, default=rest.policy_version),
        routes=merge_routes([first.routes, rest.routes]),
        versions=tuple(pieces) if len(versions) > 1 else (),
        num_old_keys=max(first.num_old_keys, rest.num_old_keys),
    )
