"""The one seam between agents and models: token ids in, token ids with log-probabilities out.

    ModelEndpoint    token ids          every model that is trained
    WaveEndpoint     the same, for an engine that computes the requests of all live episodes at once
    ChatEndpoint     chat messages      somebody else's model behind an API: evaluation only

Not covered: who an episode belongs to, its limits and its record (the recorders in trajectory/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw tokens. `seed` fixes the draw whatever else is in the batch.

    `temperature=0` is greedy (log-probabilities are then those at temperature 1). `top_k=-1` and
    `top_p=1.0` mean no cut. The log-probabilities returned are of the distribution drawn from:
    after temperature and after the cut. At one of the texts in `stop` an engine may end the reply
    early: the recorder cuts there in any case.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0

    @classmethod
    def from_config(cls, config: AjetConfig, mode: Literal["train", "eval", "baseline"]) -> Self:
        """How the config has tokens drawn in training, or in validation (null there means: as in
        training). A baseline is greedy."""
        rollout = config.ajet.rollout
        values = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
        }
        if mode == "eval":
            validation = rollout.val_kwargs
            given = {
                "temperature": validation.temperature,
                "top_p": validation.top_p,
                "top_k": validation.top_k,
            }
            values |= {name: value for name, value in given.items() if value is not None}
        if mode == "baseline":
            values = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
        return cls(
            temperature=float(values["temperature"]),
            top_p=float(values["top_p"]),
            top_k=int(values["top_k"]),
            max_tokens=rollout.max_response_length_in_one_turn,
        )


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
    """Anything that continues a list of token ids. A class that derives from this has to write
    `generate` only: it serves each request as it comes, and forgets it when it is answered."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Sample a continuation. `request_id` is ``episode_id/turn``: the order of a batch and the
        stickiness of a router come from it."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request: `generate` returns what it has sampled so far, with `finish_reason`
        ``abort``. Nothing happens where the request is not known."""
        return

    def enter(self, episode_id: str) -> None:
        """The episode is live: requests of it may come until `leave`."""
        return

    def leave(self, episode_id: str) -> None:
        """The episode makes no more requests: what is cached for it may go."""
        return

    @property
    def waves(self) -> WaveEndpoint | None:
        """The endpoint itself where it computes in waves, else None."""
        return None


class WaveEndpoint(ModelEndpoint, Protocol):
    """An endpoint that begins a batch (a wave) when every live episode waits for it, so that what
    is computed together does not depend on timing. An episode is live from `enter` to `leave`."""

    def set_wave_check(self, ask: Callable[[], bool] | None) -> None:
        """Call `ask` on the event loop before each wave, which begins if that is true; if not, it
        waits for the next request or `leave`. None asks nobody."""
        ...


@dataclass(frozen=True, slots=True)
class ChatReply:
    """An assistant message in OpenAI's form, and the tokens that the other side counted, if it
    says so."""

    message: dict[str, Any]
    finish_reason: FinishReason
    num_prompt_tokens: int | None = None
    num_sampled_tokens: int | None = None


@runtime_checkable
class ChatEndpoint(Protocol):
    """Anything that answers chat messages. It shows no token ids, so it cannot be trained."""

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        sampling: SamplingParams,
        tool_choice: str | None,
    ) -> ChatReply: ...


class ContextOverflow(Exception):
    """The prompt leaves no room for a single new token; the episode ends as truncated."""
