"""Sampling with the base and with snapshots: an in-process engine for each of the latest used.

    prompt ─ engine ─> n continuations with log-probabilities (of what they are drawn from)
    prompt ─ one forward pass ─> log-probabilities of the prompt, and the likeliest tokens

An engine's weights never change, so a request samples all its tokens with one version.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.stop_strings import cut_at_stop
from ajet.core.model.precision import to_wide_dtype
from ajet.core.seeding import derive
from ajet.core.update.layouts import make_layout
from ajet.core.workflow.gateway.request import RequestError
from ajet.engines.in_process import InProcessEngine
from ajet.serve.tinker.models import BaseModel, Snapshot, prompt_row
from ajet.serve.tinker.wire import NO_LOGPROB, PromptScores, SampledTokens, sample_response

MAX_ENGINES = 4
"""Engines that are kept ready. Each may hold packed copies of the weights it samples with."""
MAX_SAMPLES = 1024
MAX_TOP = 100
ROWS_AT_ONCE = 256
"""Positions whose logits over the vocabulary exist at a time where the likeliest are wanted."""

NOT_SERVED = (
    "topk_sample_logprobs",
    "prompt_alt_tokens_k",
    "target_prompt_logprobs",
    "prompt_logprobs_last_n",
    "record_stability_info",
)

MakeEngine = Callable[[nn.Module], InProcessEngine]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to sample. `stops` are texts, `stop_ids` tokens; both end a continuation, which has
    them as its end. `seed` None draws one."""

    prompt_ids: tuple[int, ...]
    num_samples: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0

    @property
    def scores_prompt(self) -> bool:
        return self.prompt_logprobs or self.topk_prompt_logprobs > 0


class Sampler:
    """A model that samples: modules with the snapshot's weights, and an engine over them."""

    def __init__(self, base: BaseModel, snapshot: Snapshot | None, make_engine: MakeEngine) -> None:
        """`snapshot` None is the base."""
        self.num_in_flight = 0
        self._model = base.modules(snapshot).eval()
        self._layout = make_layout(self._model, base.settings.batch_layout)
        self.engine = make_engine(self._model)
        self.engine.enter("sampler")  # an engine without episodes frees its buffers

    @torch.inference_mode()
    def score(self, prompt_ids: Sequence[int], num_top: int) -> PromptScores:
        """Returns the log-probabilities of the prompt's tokens, at temperature 1."""
        num_tokens = len(prompt_ids)
        logprobs_N = np.full(num_tokens, np.nan, np.float32)
        top_ids = np.zeros((num_tokens, num_top), np.int32)
        top_logprobs = np.full((num_tokens, num_top), NO_LOGPROB, np.float32)
        if num_tokens > 1:
            row = prompt_row(prompt_ids)
            output = self._layout.forward([row])
            features, targets = output.features_UD[output.index_M], torch.from_numpy(row.targets)
            for at in range(0, num_tokens - 1, ROWS_AT_ONCE):
                part = slice(at, at + ROWS_AT_ONCE)
                logits = to_wide_dtype(output.head(features[part]))
                logprobs = torch.log_softmax(logits, dim=-1)
                chosen = targets[part].to(logprobs.device).unsqueeze(1)
                after = slice(at + 1, at + 1 + len(chosen))
                logprobs_N[after] = logprobs.gather(1, chosen).squeeze(1).float().cpu().numpy()
                if num_top:
                    top = logprobs.topk(num_top, dim=-1)
                    top_ids[after] = top.indices.cpu().numpy()
                    top_logprobs[after] = top.values.float().cpu().numpy()
        return PromptScores(logprobs_N, top_ids, top_logprobs)


class Samplers:
    """The samplers of a server. Its methods run on the server's event loop; models are built and
    prompts scored in one thread, and each engine has a thread."""

    def __init__(
        self,
        base: BaseModel,
        make_engine: MakeEngine,
        decode: Callable[[Sequence[int]], str],
        end_ids: tuple[int, ...],
    ) -> None:
        """`end_ids` end a continuation unless a request says that nothing does."""
        self._base, self._make_engine = base, make_engine
        self._decode, self.end_ids = decode, end_ids
        self._samplers: OrderedDict[Snapshot | None, Sampler] = OrderedDict()
        self._is_building = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ajet-tinker-score")

    async def sample(
        self, snapshot: Snapshot | None, request: SampleRequest, request_id: str
    ) -> bytes:
        """Returns the answer to an asample as a message."""
        prompt = np.array(request.prompt_ids, np.int64)
        self._base.check_tokens(prompt, "prompt")
        async with self._using(snapshot) as sampler:
            scores = None
            if request.scores_prompt:
                arguments = (sampler.score, request.prompt_ids, request.topk_prompt_logprobs)
                scores = await asyncio.get_running_loop().run_in_executor(self._thread, *arguments)
            sequences = await asyncio.gather(
                *(
                    self._continue(sampler, request, number, request_id)
                    for number in range(request.num_samples)
                )
            )
        return sample_response(sequences, scores, request.prompt_logprobs)

    async def _continue(
        self, sampler: Sampler, request: SampleRequest, number: int, request_id: str
    ) -> SampledTokens:
        room = self._base.max_context - len(request.prompt_ids)
        max_tokens = room if request.max_tokens is None else request.max_tokens
        if max_tokens > room or max_tokens < 1:
            raise RequestError(
                f"max_tokens is {max_tokens}: after a prompt of {len(request.prompt_ids)} tokens "
                f"there is room for {room}"
            )
        seed = secrets.randbits(63) if request.seed is None else request.seed
        params = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            max_tokens=max_tokens,
            stop_token_ids=request.stop_ids,
            stop=request.stops,
            seed=derive(seed, "sample", number),
        )
        reply = await sampler.engine.generate(
            request.prompt_ids, params, f"{request_id}/{number:06d}"
        )
        cut = cut_at_stop(reply, request.stops, self._decode) if request.stops else None
        reply = reply if cut is None else cut[0]
        return SampledTokens(reply.token_ids, reply.logprobs, reply.finish_reason == "stop")

    @asynccontextmanager
    async def _using(self, snapshot: Snapshot | None) -> AsyncIterator[Sampler]:
        """Has a sampler, which is built if there is none; those not used for longest are closed."""
        async with self._is_building:
            sampler = self._samplers.get(snapshot)
            if sampler is None:
                loop, make = asyncio.get_running_loop(), self._make_engine
                sampler = await loop.run_in_executor(
                    self._thread, Sampler, self._base, snapshot, make
                )
                self._samplers[snapshot] = sampler
            sampler.num_in_flight += 1
        self._samplers.move_to_end(snapshot)
        try:
            yield sampler
        finally:
            sampler.num_in_flight -= 1
            idle = [key for key, held in self._samplers.items() if not held.num_in_flight]
            for key in idle[: max(0, len(self._samplers) - MAX_ENGINES)]:
                await self._samplers.pop(key).engine.close()


def read_sample_request(fields: Any, end_ids: tuple[int, ...]) -> SampleRequest:
    """Reads an asample; refuses what is not served."""
    params = fields.take("sampling_params", dict, {})
    unknown = params.keys() - {"max_tokens", "seed", "stop", "temperature", "top_k", "top_p"}
    if unknown:
        raise RequestError(f"sampling_params: {', '.join(sorted(unknown))} is not served")
    stop = params.get("stop")
    stops: tuple[str, ...] = ()
    # Without `stop` the model's end tokens end a reply. An empty list means that nothing does, and
    # stops of the client's are in addition to the end tokens.
    stop_ids = () if stop == [] else end_ids
    if isinstance(stop, str):
        stops = (stop,)
    elif isinstance(stop, list) and stop and all(type(item) is str and item for item in stop):
        stops = tuple(stop)
    elif isinstance(stop, list) and all(type(item) is int for item in stop):
        stop_ids += tuple(stop)
    elif stop is not None:
        raise RequestError("sampling_params: stop must be a text, or a list of texts or of token ids")
    request = SampleRequest(
        prompt_ids=tokens_of(fields.take("prompt", dict, {})),
        num_samples=fields.take("num_samples", int, 1),
        max_tokens=_number(params, "max_tokens", None, int),
        temperature=float(_number(params, "temperature", 1.0)),
        top_p=float(_number(params, "top_p", 1.0)),
        top_k=_number(params, "top_k", -1, int),
        seed=_number(params, "seed", None, int),
        stops=stops,
        stop_ids=stop_ids,
        prompt_logprobs=fields.take("prompt_logprobs", bool, False),
        topk_prompt_logprobs=fields.take("topk_prompt_logprobs", int, 0),
    )
    for name in NOT_SERVED:
        if fields.take(name, (bool, int, dict)):
            raise RequestError(f"asample: {name} is not served: leave it out")
    if not 1 <= request.num_samples <= MAX_SAMPLES:
        raise RequestError(f"num_samples is {request.num_samples}: 1 to {MAX_SAMPLES} are served")
    if not 0 <= request.topk_prompt_logprobs <= MAX_TOP:
        raise RequestError(f"topk_prompt_logprobs: 0 to {MAX_TOP} are served")
    if not 0 <= request.temperature < float("inf") or not 0 < request.top_p <= 1:
        raise RequestError("sampling_params: temperature must be at least 0, and top_p in (0, 1]")
    return request


def tokens_of(prompt: dict[str, Any]) -> tuple[int, ...]:
    """Returns the tokens of a model input in JSON."""
    ids: list[int] = []
    for chunk in prompt.get("chunks") or []:
        if not isinstance(chunk, dict) or chunk.get("type", "encoded_text") != "encoded_text":
            raise RequestError("prompt: only tokens are served, no images and no audio")
        tokens = chunk.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise RequestError("prompt: tokens must be a list of integers")
        ids += tokens
    return tuple(ids)


def _number(
    params: dict[str, Any], name: str, default: Any, kind: type | tuple[type, ...] = (int, float)
) -> Any:
    value = params.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RequestError(f"sampling_params: {name} must be a number")
    return value
