"""Protobuf messages of Tinker's SDK as arrays, and results as messages.

The schema is the generated module in the wheel of `tinker`. Everything in a request is a client's:
sizes and indices are checked here, numbers and token ids where they are used (models.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import PackageMissing
from ajet.core.inference.endpoint import Completion
from ajet.core.text.error_text import extra_advice
from ajet.core.workflow.gateway.request import RequestError

PROTOBUF = "application/x-protobuf"
MAX_ENTRIES = 1 << 24
"""The most numbers of a request's tensors: a few bytes of a sparse one may stand for any number."""
NO_LOGPROB = -99999.0
"""The SDK's filler of positions without top-k log-probabilities."""


def schema() -> Any:
    """Returns the module with the message classes."""
    try:
        from tinker.proto import tinker_public_pb2
    except ImportError:
        raise PackageMissing(
            f"ajet serve --tinker: tinker is not installed; run {extra_advice('tinker')}"
        ) from None
    return tinker_public_pb2


@dataclass(frozen=True, slots=True)
class Datum:
    """A sequence, and tensors for its loss of the shape of `target_tokens`: [N], or [N, K] for K
    targets at each position. Position n predicts the targets n."""

    tokens_N: NDArray[np.int64]
    inputs: Mapping[str, NDArray[Any]]

    @property
    def targets(self) -> NDArray[np.int64]:
        return self.inputs["target_tokens"]


@dataclass(frozen=True, slots=True)
class LossRequest:
    """The data of a forward_backward, and the name and settings of its loss."""

    data: Sequence[Datum]
    loss_fn: str
    config: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LossResult:
    """The log-probabilities of each datum's targets, in their shape, and the loss of all data."""

    logprobs: Sequence[NDArray[np.float32]]
    loss: float


def parse_forward_backward(body: bytes) -> Any:
    """Returns the message of a forward_backward."""
    from google.protobuf.message import DecodeError

    try:
        return schema().ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise RequestError(
            f"forward_backward: the body is not the SDK's message: {error}"
        ) from error


def read_loss_request(message: Any) -> LossRequest:
    config = dict(message.loss_fn_config)
    # Newer SDKs write the settings twice, with texts only here.
    for name, value in message.loss_fn_config_v2.items():
        if value.WhichOneof("value") == "text":
            raise RequestError(f"loss_fn_config: {name} must be a number")
        config[name] = value.number
    data, num_entries = [], 0
    for number, datum in enumerate(message.data):
        tokens = []
        for chunk in datum.model_input:
            if (chunk_type := chunk.WhichOneof("chunk")) != "encoded_text":
                raise RequestError(
                    f"datum {number}: model_input has a {chunk_type or 'chunk of no type'}: only "
                    "tokens are served, no images and no audio"
                )
            numbers = _numbers(chunk.encoded_text.tokens, np.dtype(np.int32), "tokens")
            tokens.append(numbers.astype(np.int64))
        tokens_N = np.concatenate(tokens) if tokens else np.zeros(0, np.int64)
        inputs = {}
        for name, tensor in datum.loss_fn_inputs.items():
            inputs[name] = _array(tensor, f"datum {number}: {name[:200]}")
            num_entries += inputs[name].size
            if num_entries > MAX_ENTRIES:
                raise RequestError(f"the tensors have more than {MAX_ENTRIES} numbers: divide them")
        data.append(Datum(tokens_N, inputs))
    return LossRequest(data, message.loss_fn, config)


def _numbers(data: bytes, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise RequestError(f"{what}: {len(data)} bytes are not whole numbers of {dtype}")
    return np.frombuffer(data, dtype)


def _array(tensor: Any, what: str) -> NDArray[Any]:
    """Returns a tensor as a dense array; what a sparse one leaves out is 0."""
    types = schema()
    dtype = {types.DTYPE_FLOAT32: np.dtype(np.float32), types.DTYPE_INT64: np.dtype(np.int64)}.get(
        tensor.dtype
    )
    if dtype is None:
        raise RequestError(f"{what}: its type must be float32 or int64")
    shape = tuple(tensor.shape)
    if len(shape) > 2:  # the product of millions of numbers would take hours
        raise RequestError(f"{what}: {len(shape)} dimensions; [N] or [N, K] is expected")
    if tensor.WhichOneof("encoding") == "dense":
        values = _numbers(tensor.dense, dtype, what)
        shape = shape or (len(values),)
        if min(shape) < 0 or math.prod(shape) != len(values):
            raise RequestError(f"{what}: shape {list(shape)} does not fit {len(values)} numbers")
        return values.reshape(shape)
    if len(shape) != 2 or min(shape) < 1 or math.prod(shape) > MAX_ENTRIES:
        raise RequestError(
            f"{what}: a sparse tensor has two dimensions and at most {MAX_ENTRIES} entries, "
            f"not shape {list(shape)}"
        )
    values = _numbers(tensor.sparse_csr.values, dtype, what)
    starts = _numbers(tensor.sparse_csr.crow_indices, np.dtype(np.int64), what)
    columns = _numbers(tensor.sparse_csr.col_indices, np.dtype(np.int64), what)
    fits = len(starts) == shape[0] + 1 and len(columns) == len(values)
    if not fits or starts[0] != 0 or starts[-1] != len(values) or (np.diff(starts) < 0).any():
        raise RequestError(f"{what}: its row starts do not fit its {len(values)} values")
    if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
        raise RequestError(f"{what}: a column is outside 0 .. {shape[1] - 1}")
    dense = np.zeros(shape, dtype)
    dense[np.repeat(np.arange(shape[0]), np.diff(starts)), columns] = values
    return dense


def forward_backward_output(result: LossResult) -> bytes:
    types = schema()
    message = types.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    message.metrics["loss:sum"] = result.loss
    # A record holds data of one K.
    for trailing, group in groupby(result.logprobs, lambda array: array.shape[1:]):
        arrays = list(group)
        offsets = np.cumsum([0, *(array.nbytes for array in arrays)])
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(arrays))
        record.fields["logprobs"].CopyFrom(
            types.BatchedTensor(
                data=b"".join(array.tobytes() for array in arrays),
                offsets=offsets.astype(np.int64).tobytes(),
                dtype=types.DTYPE_FLOAT32,
                trailing_shape=trailing,
            )
        )
    return message.SerializeToString()


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of a prompt's tokens [N], NaN for the first; and the k likeliest tokens at
    each position, [N, k], where k may be 0."""

    logprobs_N: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]


def sample_response(
    completions: Sequence[Completion], scores: PromptScores | None, with_logprobs: bool
) -> bytes:
    types = schema()
    message = types.SampleResponse()
    for completion in completions:
        is_stopped = completion.finish_reason == "stop"
        message.sequences.add(
            stop_reason=types.STOP_REASON_STOP if is_stopped else types.STOP_REASON_LENGTH,
            tokens=np.array(completion.token_ids, np.int32).tobytes(),
            logprobs=np.array(completion.logprobs, np.float32).tobytes(),
        )
    if scores is not None and with_logprobs:
        message.prompt_logprobs = scores.logprobs_N.tobytes()
    if scores is not None and scores.top_ids.shape[1]:
        message.topk_prompt_logprobs.CopyFrom(
            types.TopkLogprobs(
                token_ids=scores.top_ids.tobytes(),
                logprobs=scores.top_logprobs.tobytes(),
                length=scores.top_ids.shape[0],
                k=scores.top_ids.shape[1],
            )
        )
    return message.SerializeToString()
