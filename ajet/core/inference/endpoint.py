"""The one seam between agents and models: token ids in, token ids with log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. `seed` fixes the draw whatever else is in the batch.

    `temperature=0` is greedy (log-probabilities are then those at temperature 1). `top_k=-1` and
    `top_p=1.0` mean no cut. The log-probabilities returned are of the distribution drawn from:
    after temperature and after the cut.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine saw and what it sampled.

    `token_ids` includes the stop token when one was sampled (`finish_reason="stop"`); `logprobs`
    has one entry for each of them. `policy_version` counts weight publications.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"completion has {len(self.token_ids)} tokens but {len(self.logprobs)} logprobs"
            )


class ModelEndpoint(Protocol):
    """Anything that continues a list of token ids."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Sample a continuation. `request_id` is ``episode_id/turn``: the order of a batch and the
        stickiness of a router come from it."""
        ...


class ContextOverflow(Exception):
    """The prompt leaves no room for a single new token; the episode ends as truncated."""
