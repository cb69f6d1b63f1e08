"""Answers an episode's first calls with recorded replies, and samples later ones.

    engine = ForkEngine(recorded_calls, num_given=2, engine=in_process_engine)

    call 0, call 1    the prompt is the recorded one: the recorded completion
    call 2            the prompt is the recorded one: `engine` samples a reply
    call 3, …         `engine` samples a reply

Each episode is a separate fork with different draws. If a prompt up to the first sampled call
differs from the recorded one, all forks end (backbones/debug/forking.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from ajet.core import seeding
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams, WaveEndpoint
from ajet.engines.replay import RecordedCall, ReplayedCall, ReplayEngine, ReplayStopped


class ForkEngine(ModelEndpoint):
    """Answers the first `num_given` calls of each episode with the recorded completions, and later
    ones with `engine`. `departure` is the first call that differs from the record, if any;
    `on_departure` is called then."""

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
