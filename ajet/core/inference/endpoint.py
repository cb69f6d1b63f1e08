"""The interfaces between agents and models.

ModelEndpoint    token ids          every model that is trained
WaveEndpoint     token ids          an engine that computes requests in waves
ChatEndpoint     chat messages      a model behind an API, for evaluation only
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.model.routes import Routes

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of one request. `seed` fixes the draw, whatever else is in the batch.

    `temperature=0` is greedy, with log-probabilities at temperature 1. `top_k=-1` and `top_p=1.0`
    mean no cut. Log-probabilities are those of the distribution that tokens are drawn from: after
    temperature and cuts. An engine may end the reply early at a text in `stop`; the recorder cuts
    there in any case. `adapter` names the LoRA adapter; "" is the base model. `grammar` is what the
    reply must follow (grammar.py), "" for none; its tokens' log-probabilities are those of the
    distribution restricted to the tokens that it allows.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0
    adapter: str = ""
    grammar: str = ""

    @classmethod
    def from_config(cls, config: AjetConfig, mode: Literal["train", "eval", "baseline"]) -> Self:
        """Returns the config's parameters. For "eval", null means the value of training; a
        "baseline" is greedy."""
        rollout, validation = config.ajet.rollout, config.ajet.rollout.val_kwargs
        temperature, top_p, top_k = rollout.temperature, rollout.top_p, rollout.top_k
        if mode == "eval":
            temperature = temperature if validation.temperature is None else validation.temperature
            top_p = top_p if validation.top_p is None else validation.top_p
            top_k = top_k if validation.top_k is None else validation.top_k
        elif mode == "baseline":
            temperature, top_p, top_k = 0.0, 1.0, -1
        return cls(
            temperature=float(temperature),
            top_p=float(top_p),
            top_k=int(top_k),
            max_tokens=rollout.max_response_length_in_one_turn,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """The prompt ids that the engine received and the tokens that it sampled.

    `token_ids` includes the stop token if one was sampled (`finish_reason="stop"`), and `logprobs`
    has one entry for each. `policy_version` is the version of the weights that sampled them. If the
    weights changed in between, it is the oldest one, and `versions` has the pieces, each a number
    of tokens and their version. `num_old_keys` counts the tokens before the last piece whose keys
    and values older weights than that piece's had computed (`trinity.keep_kv_cache`).
    `routes` are the experts of each token of prompt and reply that was fed, all but the last one,
    where the engine records them.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int
    routes: Routes | None = field(default=None, compare=False, repr=False)
    versions: tuple[tuple[int, int], ...] = ()
    num_old_keys: int = 0

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(
                f"completion has {len(self.token_ids)} tokens but {len(self.logprobs)} logprobs"
            )


class ModelEndpoint(Protocol):
    """A model that continues a list of token ids. A subclass must define only `generate`; the other
    methods do nothing by default."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples a continuation. `request_id` is ``episode_id/turn``: an engine orders its batch
        by it, and a router sends an episode's requests to one replica by it."""
        ...

    def abort(self, request_id: str) -> None:
        """Ends a request: `generate` returns what it has sampled so far, with `finish_reason`
        ``abort``. An unknown request is ignored."""
        return

    def enter(self, episode_id: str) -> None:
        """Marks the episode as live: it may make requests until `leave`."""
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
    """A wave that cannot begin yet: `missing` are the live episodes without a request, and
    `num_waiting` counts those with one. `wave` counts the waves so far."""

    wave: int
    num_waiting: int
    missing: tuple[str, ...]


class WaveEndpoint(ModelEndpoint, Protocol):
    """An endpoint that begins a batch (a wave) when every live episode is waiting for it, so that
    what is computed together does not depend on timing."""

    def set_wave_check(self, check: Callable[[], bool] | None) -> None:
        """Sets a function to call on the event loop before each wave. If it returns false, the
        wave waits for the next request or `leave`. None removes the check."""
        ...

    def waiting(self) -> WaveWait | None:
        """Returns who is missing while requests wait and nothing is computed, else None."""
        ...


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """An assistant message in OpenAI's form, with the server's token counts if it reports them."""

    message: dict[str, Any]
    finish_reason: FinishReason
    num_prompt_tokens: int | None = None
    num_sampled_tokens: int | None = None


@runtime_checkable
class ChatEndpoint(Protocol):
    """A model that answers chat messages. Without token ids it cannot be trained."""

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        sampling: SamplingParams,
        tool_choice: str | None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> ChatCompletion:
        """Returns one reply; `response_format` (grammar.py) is passed only where a call has one."""
        ...


class ContextOverflow(Exception):
    """Raised when the prompt leaves no room for a new token; the episode ends as truncated."""


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Returns the position of the first stop string in the text and that string, or None."""
    matches = [(position, stop) for stop in stops if (position := text.find(stop)) >= 0]
    return min(matches, default=None)


def cut_at_stop(
    completion: Completion, stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> tuple[Completion, str] | None:
    """Returns the completion up to its first stop string, and that string, or None without one.

    The cut is after the first token that completes a stop string. An engine that stops there
    samples exactly these tokens, so stopping early is faster but changes no distribution. The text
    that the agent gets ends before the stop string (trajectory/reply_reader.py).
    """
    ids = completion.token_ids
    if first_stop(decode(ids), stops) is None:
        return None
    # A binary search for the shortest prefix with a stop string: `high` tokens have one, `low` do
    # not. Tokens cannot be searched directly, since a stop string may begin or end within one.
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        if first_stop(decode(ids[:middle]), stops) is None:
            low = middle
        else:
            high = middle
    match = first_stop(decode(ids[:high]), stops)
    assert match is not None
    cut = replace(
        completion,
        token_ids=ids[:high],
        logprobs=completion.logprobs[:high],
        finish_reason="stop",
    )
    return cut, match[1]
