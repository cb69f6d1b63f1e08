"""The requests in JSON, with the API's names and defaults. A field that is not here is refused by
its name, and so is a value that is not served. `Ignored` fields change nothing on this server:
nothing expires, and what a client says about itself is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
)

from ajet.core.workflow.gateway.request import RequestError

MAX_RANK = 1024
MAX_SAMPLES = 1024
MAX_TOP = 100
MAX_STOPS = 100
MAX_METADATA_BYTES = 1 << 16

INT32 = (1 << 31) - 1


def _sampled_temperature(value: float) -> float:
    # Where one request's logits are not finite, all requests of its batch fail.
    if 0 < value < 1e-4 or value > 1e4:
        raise ValueError("0, or 0.0001 to 10000, is expected")
    return value


def _short_json(value: Any) -> Any:
    try:
        size = len(json.dumps(value, allow_nan=False))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"{size} bytes, and at most {MAX_METADATA_BYTES} are kept")
    return value


Beta = Annotated[float, Field(ge=0, lt=1)]
Positive32 = Annotated[float, Field(ge=0, le=1e30)]  # also after a product, it is a float32
Number = Annotated[int, Field(ge=0, le=INT32)]
"""Counts the models and samplers of a session; names of folders contain it."""
TokenId = Annotated[StrictInt, Field(ge=0, le=INT32)]
StopText = Annotated[StrictStr, Field(max_length=1000)]
Metadata = Annotated[dict[str, Any], AfterValidator(_short_json)]
"""What a client says about its session or model, which lists show."""
Ignored = Any


class Message(BaseModel):
    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, frozen=True, protected_namespaces=()
    )
    type: Ignored = None


Parsed = TypeVar("Parsed", bound=BaseModel)


class AdamParams(Message):
    learning_rate: Positive32 = 1e-4
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    # With 0, a weight without gradient would become NaN.
    eps: float = Field(default=1e-12, gt=0, le=1e30)
    weight_decay: Positive32 = 0.0
    grad_clip_norm: float = 0.0  # 0 or less means no limit


class LoraConfig(Message):
    """An adapter; `seed` None draws one."""

    rank: int = Field(ge=1, le=MAX_RANK)
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


class SamplingParams(Message):
    """`stop` None ends a reply at the model's end tokens, an empty list nowhere; stops of the
    client's are in addition to the end tokens."""

    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: (
        StopText
        | Annotated[list[StrictInt], Field(max_length=MAX_STOPS)]
        | Annotated[list[StopText], Field(max_length=MAX_STOPS)]
        | None
    ) = None
    temperature: Annotated[float, Field(ge=0), AfterValidator(_sampled_temperature)] = 1.0
    top_k: int = Field(default=-1, ge=-1, le=INT32)
    top_p: float = Field(default=1.0, gt=0, le=1)


class Chunk(Message):
    """A part of a prompt: tokens, since neither images nor audio are served."""

    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[TokenId]


class Prompt(Message):
    chunks: list[Chunk]


class SampleRequest(Message):
    prompt: Prompt
    sampling_params: SamplingParams
    num_samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=MAX_TOP)
    sampling_session_id: str | None = None
    seq_id: int | None = None
    base_model: str | None = None
    model_path: str | None = None
    # Not served: only the SDK's defaults are accepted.
    topk_sample_logprobs: Literal[0] = 0
    prompt_alt_tokens_k: Literal[0] = 0
    record_stability_info: Literal[False] = False
    target_prompt_logprobs: None = None
    prompt_logprobs_last_n: None = None

    @property
    def prompt_ids(self) -> list[int]:
        return [token for chunk in self.prompt.chunks for token in chunk.tokens]

    def stops(self, end_ids: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Returns the texts and the tokens that end a reply."""
        stop = self.sampling_params.stop
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        texts = tuple(item for item in stops if isinstance(item, str) and item)
        ids = tuple(item for item in stops if isinstance(item, int))
        return texts, () if stop == [] else end_ids + ids


class AnyMessage(BaseModel):
    """A message that is not read."""


class CreateSession(AnyMessage):
    user_metadata: Metadata | None = None
    display_name: str | None = Field(default=None, max_length=1000)


class SessionMessage(Message):
    session_id: str


class Optimizer(Message):
    type: Literal["adamw"] = "adamw"


class CreateModel(SessionMessage):
    """`lora_config` None trains all weights."""

    model_seq_id: Number
    base_model: str | None = None
    lora_config: LoraConfig | None = None
    user_metadata: Metadata | None = None
    optimizer_config: Optimizer | None = None


class ModelMessage(Message):
    model_id: str


class ModelRequest(ModelMessage):
    """A request in the order of its model's."""

    seq_id: int = Field(ge=1)


class OptimStep(ModelRequest):
    adam_params: AdamParams


class SaveWeights(ModelRequest):
    path: str
    overwrite: bool = False
    ttl_seconds: Ignored = None
    user_metadata: Ignored = None


class SaveForSampler(ModelRequest):
    """Without a `path`, a snapshot for the sampling session of this number."""

    path: str | None = None
    sampling_session_seq_id: Number | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: Ignored = None
    user_metadata: Ignored = None


class LoadWeights(ModelRequest):
    path: str
    optimizer: bool
    weights_access_token: None = None


class CreateFromCheckpoint(SessionMessage):
    model_seq_id: Number
    path: str
    optimizer: bool
    base_model: str | None = None
    user_metadata: Metadata | None = None
    optimizer_config: Optimizer | None = None
    weights_access_token: None = None


class CreateSamplingSession(SessionMessage):
    sampling_session_seq_id: Number
    base_model: str | None = None
    model_path: str | None = None


class FutureMessage(Message):
    request_id: str
    allow_metadata_only: Ignored = None


class WeightsInfo(Message):
    tinker_path: str


def parse(message: type[Parsed], value: Mapping[str, Any]) -> Parsed:
    """Returns the value as a message; raises `RequestError` for its first mistake."""
    try:
        return message.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"]))
        if first["type"] in ("extra_forbidden", "none_required", "literal_error"):
            raise RequestError(f"{location} is not served: leave it out") from error
        raise RequestError(f"{location}: {first['msg']}") from error
