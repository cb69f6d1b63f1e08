"""The interfaces between agents and models.

    ModelEndpoint    token ids          every model that is trained
    WaveEndpoint     token ids          an engine that computes requests in waves
    ChatEndpoint     chat messages      a model behind an API, for evaluation only

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
    """The sampling parameters of one request. `seed` fixes the draw whatever else is in the batch.

    `temperature=0` is greedy (log-probabilities are then those at temperature 1). `top_k=-1` and
    `top_p=1.0` mean no cut. Log-probabilities are those of the distribution that tokens are drawn
    from: after temperature and after the cut. An engine may end the reply early at one of the texts
    in `stop`; the recorder cuts there in any case. `adapter` names the LoRA adapter that samples,
    where the endpoint has several; empty is the base without any.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0
    adapter: str = ""

    @classmethod
    def from_config(cls, config: AjetConfig, mode: Literal["train", "eval", "baseline"]) -> Self:
        """Returns the config's parameters for training or for validation, where null means the
        value of training. A baseline is greedy."""
        rollout = config.ajet.rollout
        values = {
            "temperature": rollout.temperature,
            "top_p": rollout.top_p,
            "top_k": rollout.top_k,
        }
        if mode == "eval":
            validation = rollout.val_kwargs
            overrides = {
                "temperature": validation.temperature,
                "top_p": validation.top_p,
                "top_k": validation.top_k,
            }
            values |= {name: value for name, value in overrides.items() if value is not None}
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
    """The prompt ids that the engine was given and the tokens that it sampled.

    `token_ids` includes the stop token if one was sampled (`finish_reason="stop"`); `logprobs` has
    one entry for each of them. `policy_version` is the version of the weights that sampled them.
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
    """A model that continues a list of token ids. A class that derives from this has to write only
    `generate`; the other methods do nothing by default."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples a continuation. `request_id` is ``episode_id/turn``: an engine orders its batch
        by it, and a router sends an episode's requests to one replica by it."""
        ...

    def abort(self, request_id: str) -> None:
        """Ends a request: `generate` returns what it has sampled so far, with `finish_reason`
        ``abort``. Nothing happens if the request is not known."""
        return

    def enter(self, episode_id: str) -> None:
        """Marks the episode as live: requests of it may come until `leave`."""
        return

    def leave(self, episode_id: str) -> None:
        """Marks the episode as over: it makes no more requests, and its cache may be freed."""
        return

    @property
    def waves(self) -> WaveEndpoint | None:
        """The endpoint itself if it computes in waves, else None."""
        return None


@dataclass(frozen=True, slots=True)
class WaveWait:
    """Describes a wave that cannot begin.

    `missing` are the live episodes that make no request, `num_waiting` is the number of those that
    do. `wave` counts the waves so far.
    """

    wave: int
    num_waiting: int
    missing: tuple[str, ...]


class WaveEndpoint(ModelEndpoint, Protocol):
    """An endpoint that begins a batch (a wave) when every live episode waits for it, so that what
    is computed together does not depend on timing. An episode is live from `enter` to `leave`."""

    def set_wave_check(self, check: Callable[[], bool] | None) -> None:
        """Has `check` called on the event loop before each wave. The wave begins if it returns
        true, else it waits for the next request or `leave`. None removes the check."""
        ...

    def waiting(self) -> WaveWait | None:
        """Returns who is waited for, while requests wait and nothing is computed; else None."""
        ...


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """An assistant message in OpenAI's form, with the server's token counts if it gives them."""

    message: dict[str, Any]
    finish_reason: FinishReason
    num_prompt_tokens: int | None = None
    num_sampled_tokens: int | None = None


@runtime_checkable
class ChatEndpoint(Protocol):
    """A model that answers chat messages. It gives no token ids, so it cannot be trained."""

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        sampling: SamplingParams,
        tool_choice: str | None,
    ) -> ChatCompletion: ...


class ContextOverflow(Exception):
    """Raised when the prompt leaves no room for a new token; the episode ends as truncated."""
