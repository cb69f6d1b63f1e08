"""Engines that repeat the recorded completions of an episode and note where prompts differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ajet.core import seeding
from ajet.core.inference.endpoint import (
    Completion,
    ContextOverflow,
    ModelEndpoint,
    SamplingParams,
    WaveEndpoint,
)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded completion, with the times when its call started and ended."""

    completion: Completion
    started_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call of the replay. `recorded` is the index of the matching recorded call (None after the
    last one), `completion` is the answer, and `departs_at` the first position where the prompts
    differ."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    recorded: int | None = None
    departs_at: int | None = None
    completion: Completion | None = field(default=None, compare=False)

    @property
    def exceeds_max_tokens(self) -> bool:
        """True if the recorded reply has more tokens than this call allows."""
        completion = self.completion
        return completion is not None and len(completion.token_ids) > self.max_tokens


class ReplayStopped(Exception):
    """Raised when the record is at its end, or at the first prompt that differs."""


class ReplayEngine(ModelEndpoint):
    """Answers each call with the recorded completion: `calls[1].departs_at` is None if that prompt
    was the recorded one, or 57 if it has another id at that position.

    Calls are matched in order. Of recorded calls that were in flight together, a prompt takes the
    one with the longest common prefix, and they are answered in the recorded order. `overflow` is
    the error message of an episode whose last prompt was too long: the call after the last recorded
    one raises it again. `ended` is set when the replay has ended, even if the workflow is still
    running."""

    policy_version = 0

    def __init__(
        self,
        recorded: Sequence[RecordedCall],
        *,
        stops_at_departure: bool = False,
        overflow: str | None = None,
    ) -> None:
        self.calls: list[ReplayedCall] = []
        self.ended = asyncio.Event()
        self._recorded = recorded
        self.missing_calls = list(range(len(recorded)))
        """The indices of the recorded calls that were not made yet."""
        self._in_flight: set[int] = set()
        self._stops_at_departure = stops_at_departure
        self._overflow = overflow

    @property
    def stopped(self) -> bool:
        """True if the replay ended before the workflow did."""
        return self.ended.is_set()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Returns the recorded completion, even if the prompt differs."""
        if self.stopped:
            await asyncio.sleep(0)  # an agent that retries for ever must not block the loop
            raise ReplayStopped("the replay is over")
        return await self.completion_of(self.match(prompt_ids, sampling.max_tokens))

    def match(self, prompt_ids: Sequence[int], max_tokens: int) -> ReplayedCall:
        """Matches a call with a recorded one. Raises `ReplayStopped` if none remains."""
        request = ReplayedCall(tuple(prompt_ids), max_tokens)
        if not self.missing_calls:
            self.calls.append(request)
            if self._overflow is not None:
                raise ContextOverflow(self._overflow)
            self.ended.set()
            raise ReplayStopped(f"the run recorded {len(self._recorded)} calls of this episode")
        # The next recorded call; of several that were in flight together, the nearest prompt's.
        next_end = min(self._recorded[index].ended_s for index in self.missing_calls)
        in_flight = [i for i in self.missing_calls if self._recorded[i].started_s < next_end]
        index = max(
            in_flight or self.missing_calls[:1],
            key=lambda index: self._common_length(index, request.prompt_ids),
        )
        self.missing_calls.remove(index)
        completion = replace(self._recorded[index].completion, prompt_ids=request.prompt_ids)
        recorded_prompt_ids = self._recorded[index].completion.prompt_ids
        call = replace(
            request,
            recorded=index,
            departs_at=first_difference(recorded_prompt_ids, request.prompt_ids),
            completion=completion,
        )
        self.calls.append(call)
        if self._stops_at_departure and (call.departs_at is not None or call.exceeds_max_tokens):
            self.ended.set()
            raise ReplayStopped("the prompt departs from the recorded one")
        return call

    async def completion_of(self, call: ReplayedCall) -> Completion:
        """Returns the recorded completion of a call from `match`, after the calls in flight that
        ended before it in the record."""
        assert call.recorded is not None and call.completion is not None
        self._in_flight.add(call.recorded)
        ended_s = self._recorded[call.recorded].ended_s
        try:
            await asyncio.sleep(0)
            while any(self._recorded[index].ended_s < ended_s for index in self._in_flight):
                await asyncio.sleep(0)
        finally:
            self._in_flight.discard(call.recorded)
        return call.completion

    def _common_length(self, index: int, prompt_ids: tuple[int, ...]) -> float:
        at = first_difference(self._recorded[index].completion.prompt_ids, prompt_ids)
        return float("inf") if at is None else at


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Returns the first position where two sequences differ, or None if they are equal."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return None if len(a) == len(b) else min(len(a), len(b))


class ForkEngine(ModelEndpoint):
    """Answers the first `num_given` calls of each episode with the recorded completions, and later
    ones with `engine`. Each episode is a separate fork with different draws.

    If a prompt up to the first sampled call differs from the recorded one, all forks end
    (backbones/debug/forking.py). `departure` is the first such call, if any; `on_departure` is
    called then."""

    def __init__(
        self, recorded: Sequence[RecordedCall], num_given: int, engine: ModelEndpoint
    ) -> None:
        self.departure: ReplayedCall | None = None
        self.on_departure: Callable[[], None] = lambda: None
        self._recorded = recorded
        self._num_given = num_given
        self._engine = engine
        self._prefixes: dict[str, ReplayEngine] = {}

    def missing_calls(self, episode_id: str) -> list[int]:
        """Returns the recorded calls, up to the first sampled one, that the episode has not
        made."""
        prefix = self._prefixes.get(episode_id)
        missing = range(len(self._recorded)) if prefix is None else prefix.missing_calls
        return [index for index in missing if index <= self._num_given]

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Returns the recorded completion, or a sampled one. Raises `ReplayStopped` if the prompt
        differs from the recorded one."""
        episode_id, _, number = request_id.rpartition("/")
        if int(number) == 0:  # or a second attempt, after one that blocked the event loop
            self._prefixes[episode_id] = ReplayEngine(self._recorded)
        if self.missing_calls(episode_id):
            prefix = self._prefixes[episode_id]
            # The first sampled call is matched too: its prompt must be the recorded one.
            call = prefix.match(prompt_ids, sampling.max_tokens)
            assert call.recorded is not None
            is_given = call.recorded < self._num_given
            if call.departs_at is not None or (is_given and call.exceeds_max_tokens):
                self.departure = self.departure or call
                self.on_departure()
            if self.departure is not None:
                await asyncio.sleep(0)  # an agent that retries for ever must not block the loop
                raise ReplayStopped("a prompt departs from the recorded one")
            if is_given:
                return await prefix.completion_of(call)
        # Forks repeat one episode, so the request's seed is the same in all of them.
        forked = replace(sampling, seed=seeding.derive(sampling.seed, "fork", episode_id))
        return await self._engine.generate(list(prompt_ids), forked, request_id)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def enter(self, episode_id: str) -> None:
        self._engine.enter(episode_id)

    def leave(self, episode_id: str) -> None:
        self._engine.leave(episode_id)

    @property
    def waves(self) -> WaveEndpoint | None:
        return self._engine.waves
