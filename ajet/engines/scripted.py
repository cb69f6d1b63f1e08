"""Engines without a model, for tests and benchmarks."""

import asyncio
import math
from collections.abc import Callable, Sequence

import numpy as np

from ajet.core.inference.endpoint import Completion, FinishReason, ModelEndpoint, SamplingParams
from ajet.engines.sampling import uniforms

Script = Callable[[Sequence[int], SamplingParams, str], Sequence[int]]


class ScriptedEngine(ModelEndpoint):
    """Completes each request with the result of `script`, every token at probability one."""

    policy_version = 0

    def __init__(self, script: Script) -> None:
        self._script = script

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Returns the script's tokens, cut at `max_tokens`."""
        await asyncio.sleep(0)  # real engines never answer in the same turn of the loop
        token_ids = tuple(self._script(prompt_ids, sampling, request_id))
        cut = token_ids[: sampling.max_tokens]
        finish: FinishReason = "stop" if len(cut) == len(token_ids) else "length"
        return Completion(tuple(prompt_ids), cut, (0.0,) * len(cut), finish, self.policy_version)


class RandomEngine(ModelEndpoint):
    """Draws every token uniformly from the vocabulary; only the request's seed decides the draw."""

    policy_version = 0

    def __init__(self, vocab_size: int, stop_token_ids: tuple[int, ...] = ()) -> None:
        self._vocab_size = vocab_size
        self._stop_token_ids = frozenset(stop_token_ids)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Returns up to `max_tokens` tokens, each with log-probability ``-log(vocab_size)``."""
        await asyncio.sleep(0)
        u = uniforms(
            np.full(sampling.max_tokens, sampling.seed, np.uint64), np.arange(sampling.max_tokens)
        )
        token_ids = (u * self._vocab_size).astype(np.int64).tolist()
        stop_ids = self._stop_token_ids.union(sampling.stop_token_ids)
        ends = [at + 1 for at, token in enumerate(token_ids) if token in stop_ids]
        token_ids = token_ids[: ends[0]] if ends else token_ids
        return Completion(
            tuple(prompt_ids),
            tuple(token_ids),
            (-math.log(self._vocab_size),) * len(token_ids),
            "stop" if ends else "length",
            self.policy_version,
        )
