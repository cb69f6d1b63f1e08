"""The engine in the training process, which samples with the policy's weights."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from loguru import logger

from ajet.core.errors import AjetError, ModelError, UnsupportedModel
from ajet.core.errors.codes import Code
from ajet.core.images.image_ids import FIRST_ID, keys_in_order
from ajet.core.inference.endpoint import (
    Completion,
    ContextOverflow,
    SamplingParams,
    WaveEndpoint,
    WaveWait,
    first_stop,
)
from ajet.core.inference.grammar import Grammars
from ajet.core.model.allocator import is_large, release_freed_memory
from ajet.core.model.flat_decoder import flat_decoder, has_flat_decoder
from ajet.core.model.routers import Routers
from ajet.core.model.vision import vision_of
from ajet.core.workflow.bridge import post
from ajet.engines.batch import Batch
from ajet.engines.copied_decoder import gpu_bytes
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow, Forward
from ajet.engines.hf_forward import HfForward
from ajet.engines.step_graph import MakeGraph, cuda_graph_of

KV_BYTES, KV_SHARE = 3 << 27, 0.1
"""The default budget for the keys and values of running rows, and again for those of the cache:
this many bytes, or this share of a GPU's memory if that is more."""
SETTLE_TURNS = 8
"""The turns of the event loop without an arrival before a wave starts: an episode that leaves hands
its slot to one that enters a few turns later."""
GATHER_S = 0.02
"""With `gathers`, a batch starts when no request has arrived for this time."""
MAX_GATHER_S = 0.16
"""The longest time that the first of these requests waits."""


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was created. A decode step is eager, or a replay of a captured
    one."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    sampled_tokens: int = 0
    eager_steps: int = 0
    replayed_steps: int = 0


OnTokens = Callable[[str, Sequence[int]], None]
"""Called with a request's id and the tokens that it has sampled so far."""


def wait_for_pause(
    wait: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
) -> None:
    """Calls `wait(GATHER_S)` until it times out (returns False), for at most `MAX_GATHER_S`.

    Episodes in other processes start one after another. An engine that starts with the first of
    their requests would compute most of its steps with few rows.
    """
    end_s = clock() + MAX_GATHER_S
    while clock() < end_s and wait(GATHER_S):
        pass


@dataclass(eq=False)
class PendingRequest:
    """A request and the future that waits for it on an event loop."""

    row: BatchRow
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Completion]"


class InProcessEngine:
    """A `WaveEndpoint` over a Hugging Face causal model in this process. Agents run on an event
    loop, the model in one thread. Requests meet in waves:

        episode a   generate ──┐                ┌─ tool ─ generate ──┐
        episode b   generate ──┤ wave 1: all    ├─ tool ──── generate┤ wave 2 ...
        episode c   generate ──┘ decode together└─ leave             │

    If it is `deterministic`, a wave starts only when nothing is running and every live episode
    (between `enter` and `leave`) waits here, and it takes requests in the order of their ids. What
    is computed together, and so every rounding, then depends on the requests and never on their
    timing. A second concurrent request of an episode is not waited for. Otherwise requests join a
    running batch. Each adapter has a separate batch and prefix cache; a wave has the requests of
    all of them. Batches take turns, one token each."""

    def __init__(
        self,
        model: Any,
        *,
        stop_token_ids: tuple[int, ...],
        max_num_seqs: int = 256,
        max_model_len: int = 4096,
        deterministic: bool = True,
        max_kv_tokens: int | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        grammars: Grammars | None = None,
        on_tokens: OnTokens | None = None,
        adapters: Mapping[str, Any] | None = None,
        gathers: bool = True,
        make_graph: MakeGraph | None = cuda_graph_of,
        records_routes: bool = False,
        keeps_cache: bool = False,
    ) -> None:
        """`decode` turns ids into text; without it, stop strings end no reply early. Without
        `grammars` a request with a grammar is refused. `on_tokens` is
        called in the engine's thread after each step, for each running request. `adapters` are
        models over the weights of `model`, by name. With `gathers`, an idle engine that is not
        deterministic waits a moment for further requests before it starts. `make_graph` creates
        what captures and replays a model's decode steps; None runs them eagerly. `records_routes`
        adds the experts of each token to completions. `keeps_cache`: keys and values of requests
        that are aborted are kept, and `publish` may keep those of earlier weights."""
        self._models = {"": model} | dict(adapters or {})
        self._decode = decode
        self._grammars = grammars
        self._on_tokens = on_tokens
        self._stop_token_ids = frozenset(stop_token_ids)
        self._max_model_len = max_model_len
        self._deterministic = deterministic
        self._gathers = gathers and not deterministic
        self._make_graph = make_graph
        self._records_routes = records_routes
        self._keeps_cache = keeps_cache
        device = next(model.parameters()).device
        device_bytes = gpu_bytes(device) if device.type == "cuda" else 0
        num_kv_bytes = kv_bytes(device_bytes) // len(self._models)
        self._max_kv_tokens = max_kv_tokens
        self._releases_memory = deterministic and device.type == "cpu" and is_large(model)
        self._vision = vision_of(model)
        self._vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self._batches = {
            name: Batch(
                self._forward(adapter_model, num_kv_bytes),
                next(adapter_model.parameters()).device,
                max_num_seqs=max_num_seqs,
                eager=not deterministic,
                looks_ahead=next(adapter_model.parameters()).device.type == "cuda",
                keeps_aborted=keeps_cache,
            )
            for name, adapter_model in self._models.items()
        }
        self.policy_version = 0
        self._changed = threading.Condition()  # guards everything below
        self._live: set[str] = set()
        self._left_episodes: set[str] = set()  # whose cache the thread has not released yet
        self._pending: dict[str, PendingRequest] = {}  # waiting for a wave
        self._running: dict[str, PendingRequest] = {}  # given to the thread
        self._submitted: list[BatchRow] = []  # of these, the rows that it has not taken yet
        # A version that it has not seen yet, and the oldest whose keys and values stay.
        self._published: tuple[int, int | None] | None = None
        self._arrivals = 0  # counts what may delay a wave, see `_settle`
        self._num_waves = 0
        self._wave_check: Callable[[], bool] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def stats(self) -> EngineStats:
        """The counts so far."""
        batches = self._batches.values()
        replayed = sum(batch.forward.num_replayed for batch in batches)
        return EngineStats(
            prompt_tokens=sum(batch.prompt_tokens for batch in batches),
            cached_prompt_tokens=sum(batch.cached_prompt_tokens for batch in batches),
            sampled_tokens=sum(batch.sampled_tokens for batch in batches),
            eager_steps=sum(batch.decode_steps for batch in batches) - replayed,
            replayed_steps=replayed,
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        (completion,) = await self.generate_together([(prompt_ids, sampling, request_id)])
        return completion

    async def generate_together(
        self, requests: Sequence[tuple[Sequence[int], SamplingParams, str]]
    ) -> list[Completion]:
        """Generates for several requests, which join a batch in the same step: where no other runs,
        the bits of their log-probabilities do not depend on timing."""
        loop = asyncio.get_running_loop()
        calls = [
            PendingRequest(self._row(*request), loop, loop.create_future()) for request in requests
        ]
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed")
            for _, _, request_id in requests:
                if request_id in self._pending or request_id in self._running:
                    raise ValueError(f"request {request_id!r} is already under way")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_thread, name="ajet-engine", daemon=True
                )
                self._thread.start()
            self._pending |= {call.row.request_id: call for call in calls}
            self._arrivals += len(calls)
            self._maybe_start_wave()
        try:
            return await asyncio.gather(*(call.future for call in calls))
        finally:
            for call in calls:
                if not call.future.done() or call.future.cancelled():  # the caller was cancelled
                    self._drop(call.row.request_id, call)

    def enter(self, episode_id: str) -> None:
        with self._changed:
            self._live.add(episode_id)
            self._arrivals += 1

    def leave(self, episode_id: str) -> None:
        with self._changed:
            self._live.discard(episode_id)
            self._left_episodes.add(episode_id)
            self._arrivals += 1
            self._maybe_start_wave()
            if not self._live:
                self._changed.notify()  # the thread may free copies of the weights

    @property
    def waves(self) -> WaveEndpoint | None:
        return self if self._deterministic else None

    def set_wave_check(self, check: Callable[[], bool] | None) -> None:
        with self._changed:
            self._wave_check = check

    def waiting(self) -> WaveWait | None:
        with self._changed:
            if not self._pending or self._running or self._submitted:
                return None
            calling = {call.row.episode_id for call in self._pending.values()}
            missing = tuple(sorted(self._live - calling))
            return WaveWait(self._num_waves, len(calling), missing)

    def publish(self, version: int, oldest: int | None = None) -> None:
        """Forgets what was computed with the old weights, which were changed in place. Keys and
        values that weights from version `oldest` on computed stay; None: none."""
        with self._changed:
            self.policy_version = version
            if self._published is not None and self._published[1] is None:
                oldest = None  # an earlier call, not seen yet, forgets all
            self._published = version, oldest
            self._changed.notify()

    def abort(self, request_id: str) -> None:
        with self._changed:
            call = self._pending.pop(request_id, None)
            if request_id in self._running:
                self._running[request_id].row.aborted = True
        if call is not None:
            call.row.finish_reason = "abort"
            call.row.policy_version = self.policy_version
            post(call.loop, _resolve, (call.future, call.row.completion()))

    async def close(self) -> None:
        """Stops the thread; unfinished requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            # Polled, because a join in the loop's thread pool could wait for ever: tools that block
            # may have all of its threads.
            while self._thread.is_alive():
                await asyncio.sleep(0.005)

    def _forward(self, model: Any, num_kv_bytes: int) -> Forward:
        routers = Routers.of(model) if self._records_routes else None
        packs = len(self._models) == 1  # adapters share their base, and would each copy it
        decoder = flat_decoder(model) if has_flat_decoder(model) else None
        # The flat forward shares keys and values, which all later tokens must attend to.
        if decoder is None or decoder.longest_plain < self._max_model_len:
            if decoder is None:
                reason = "it has no flat forward"
            elif decoder.longest_plain:
                window = decoder.longest_plain
                reason = f"ajet.rollout.max_model_len exceeds its window of {window} tokens"
            else:
                reason = "not all of its layers are plain attention"
            if self._keeps_cache:
                raise UnsupportedModel(
                    "trinity.keep_kv_cache: models of type "
                    f"{model.config.model_type!r} are sampled without a cache here, because "
                    f"{reason}; set it false"
                )
            logger.info(
                f"in-process engine: model type {model.config.model_type!r} is sampled through "
                f"transformers, without shared prefixes: {reason}"
            )
            return HfForward(model, self._max_kv_tokens, num_kv_bytes, packs=packs, routers=routers)
        graph = None
        if self._make_graph is not None and decoder.launches_the_same:
            graph = self._make_graph(model)
        if graph is None and next(model.parameters()).device.type == "cuda":
            logger.info(
                "in-process engine: decode steps run eagerly: the model has experts, its weights "
                "are sharded, or ajet.rollout.cuda_graphs is false"
            )
        kv_values = 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim
        token_bytes = kv_values * next(model.parameters()).element_size()
        num_tokens = self._max_kv_tokens or max(self._max_model_len, num_kv_bytes // token_bytes)
        return FlatForward(model, num_tokens, graph=graph, packs=packs, routers=routers)

    def _row(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> BatchRow:
        num_prompt = len(prompt_ids)
        text = prompt_ids
        if self._vision is not None:
            text = [token_id for token_id in prompt_ids if token_id < FIRST_ID]
            for key in keys_in_order(prompt_ids):
                self._vision.processor.expansion(key)  # an unknown one fails this request alone
        if not text or min(text) < 0 or max(text) >= self._vocab_size or prompt_ids[-1] != text[-1]:
            raise ValueError(
                f"request {request_id!r}: the prompt must be token ids in 0 .. "
                f"{self._vocab_size - 1}, at least one, and end with one"
            )
        if sampling.adapter not in self._models:
            raise ValueError(f"request {request_id!r}: no adapter is named {sampling.adapter!r}")
        if sampling.max_tokens < 1:
            raise ValueError(f"request {request_id!r}: max_tokens is {sampling.max_tokens}")
        max_len = min(num_prompt + sampling.max_tokens, self._max_model_len)
        budget = self._max_kv_tokens or self._max_model_len
        if num_prompt >= self._max_model_len or max_len > budget:
            raise ContextOverflow(
                f"request {request_id!r}: {num_prompt} prompt tokens, {sampling.max_tokens} new "
                f"ones at most; max_model_len is {self._max_model_len}, "
                f"the KV budget {budget}"
            )
        stop_ids = self._stop_token_ids.union(sampling.stop_token_ids)
        stop_check, matcher = self._stop_check(sampling.stop), None
        if sampling.grammar:
            if self._grammars is None:
                raise ValueError(f"request {request_id!r}: this engine knows no grammars")
            matcher = self._grammars.matcher(sampling.grammar)
        return BatchRow(
            request_id, tuple(prompt_ids), sampling, stop_ids, max_len, stop_check, matcher
        )

    def _stop_check(self, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        """Returns a function that searches for a stop string in the latest sampled tokens, or
        None."""
        decode = self._decode
        if not stops or decode is None:
            return None
        # A token has at least one byte, so this many tokens contain the longest stop string. Four
        # more, in case the first one begins within a character.
        window = max(len(stop.encode()) for stop in stops) + 4
        return lambda ids: first_stop(decode(ids[-window:]), stops) is not None

    def _drop(self, request_id: str, call: PendingRequest) -> None:
        """Drops a request whose caller was cancelled."""
        with self._changed:
            if self._pending.get(request_id) is call:
                del self._pending[request_id]
            if self._running.get(request_id) is call:
                del self._running[request_id]
            call.row.aborted = True

    def _maybe_start_wave(self) -> None:
        """Schedules a wave if one may start. The caller must hold the lock."""
        if self._deterministic and self._is_wave_ready():
            loop = next(iter(self._pending.values())).loop
            post(loop, self._settle, loop, self._arrivals, SETTLE_TURNS)
        elif not self._deterministic:
            self._submit_pending()

    def _is_wave_ready(self) -> bool:
        if self._running or self._submitted or len(self._pending) < max(1, len(self._live)):
            return False
        return self._live <= {call.row.episode_id for call in self._pending.values()}

    def _settle(self, loop: asyncio.AbstractEventLoop, arrivals: int, turns: int) -> None:
        """Starts the wave after `turns` more turns of the event loop without an arrival."""
        with self._changed:
            if arrivals != self._arrivals or not self._is_wave_ready():
                return  # something arrived, which has scheduled the wave again if it is ready
            if turns == 0:
                if self._wave_check is None or self._wave_check():
                    self._submit_pending()
            else:
                loop.call_soon(self._settle, loop, arrivals, turns - 1)

    def _submit_pending(self) -> None:
        """Gives all pending requests to the thread, in the order of their ids. The caller must hold
        the lock."""
        self._num_waves += 1
        for request_id in sorted(self._pending):
            self._running[request_id] = self._pending[request_id]
            self._submitted.append(self._pending[request_id].row)
        self._pending.clear()
        self._changed.notify()

    def _run_thread(self) -> None:
        """Runs in the thread: each iteration samples one token for every running row."""
        were_training: list[bool] = []
        with torch.inference_mode():
            while True:
                idle = not self._busy_batches
                self._apply_changes(wait=idle)
                if self._closed:
                    return self._fail(RuntimeError("the engine was closed"))
                if idle:  # a wave begins
                    were_training = [model.training for model in self._models.values()]
                    for model in self._models.values():
                        model.eval()
                    if self._releases_memory:
                        release_freed_memory()
                try:
                    finished = [row for batch in self._busy_batches for row in batch.step()]
                    if self._on_tokens is not None:
                        with self._changed:
                            rows = [call.row for call in self._running.values()]
                        for row in rows:
                            self._on_tokens(row.request_id, row.ids[len(row.prompt_ids) :])
                # Every error goes to the callers, which would otherwise wait for ever.
                except Exception as error:  # noqa: BLE001
                    for batch in self._batches.values():
                        batch.clear()
                    self._fail(error)
                    finished = []
                if not self._busy_batches:  # the wave is over: the trainer may use the models
                    for model, mode in zip(self._models.values(), were_training, strict=True):
                        model.train(mode)
                self._deliver(finished)

    @property
    def _busy_batches(self) -> list[Batch]:
        return [batch for batch in self._batches.values() if batch.busy]

    def _apply_changes(self, *, wait: bool) -> None:
        """Passes to the batches what has happened since the last step. With `wait`, waits for
        rows."""
        with self._changed:
            while wait and not (self._submitted or self._closed):
                self._apply_publish()
                if not self._live:
                    for batch in self._batches.values():
                        batch.forward.free_weights()  # an update needs the memory
                self._changed.wait()
            if self._gathers and not any(b.running for b in self._batches.values()):
                wait_for_pause(self._changed.wait)
            self._apply_publish()
            if self._submitted:
                # Only at the start of a wave: who has left between waves depends on timing, and the
                # cache must not.
                for batch in self._batches.values():
                    batch.forward.release(sorted(self._left_episodes))
                self._left_episodes.clear()
            for name, batch in self._batches.items():
                batch.add(row for row in self._submitted if row.sampling.adapter == name)
            self._submitted = []

    def _apply_publish(self) -> None:
        """Makes the batches forget what was computed before the last `publish`."""
        if self._published is not None:
            if self._vision is not None and self._vision.is_trained:
                self._vision.forget()
            for batch in self._batches.values():
                batch.publish(*self._published)
            self._published = None

    def _deliver(self, finished: Iterable[BatchRow]) -> None:
        """Resolves the futures of finished rows, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Completion | Exception]]] = {}
        with self._changed:
            for row in finished:
                call = self._running.get(row.request_id)
                if call is not None and call.row is row:  # not dropped since
                    del self._running[row.request_id]
                    result = row.error or row.completion()
                    by_loop.setdefault(call.loop, []).append((call.future, result))
            if not self._running:
                self._maybe_start_wave()
        for loop, resolved in by_loop.items():
            post(loop, _resolve, *resolved)

    def _fail(self, error: Exception) -> None:
        """Ends every running request with this error, and after `close` the pending ones too."""
        with self._changed:
            calls = [*self._running.values(), *(self._pending.values() if self._closed else ())]
            self._running.clear()
            self._submitted = []
            if not self._closed:
                self._maybe_start_wave()
        for call in calls:
            post(call.loop, _reject, call.future, error)


def kv_bytes(gpu_bytes: int) -> int:
    """Returns the budget for a GPU with this much memory (0: a CPU). It depends on the total memory
    and not on what is free, so that a resumed run computes the same batches."""
    return max(KV_BYTES, int(KV_SHARE * gpu_bytes))


def _resolve(*results: tuple["asyncio.Future[Completion]", Completion | Exception]) -> None:
    for future, result in results:
        if isinstance(result, Exception):
            _reject(future, result)
        elif not future.done():
            future.set_result(result)


def _reject(future: "asyncio.Future[Completion]", error: Exception) -> None:
    """Sets a separate exception for each caller: a shared one would collect all their
    tracebacks."""
    if not future.done():
        if isinstance(error, AjetError):
            future.set_exception(type(error)(*error.args, code=error.code))
        else:
            wrapped = ModelError(
                f"in-process engine: {type(error).__name__}: {error}", code=Code.ENGINE_FAILED
            )
            wrapped.__cause__ = error
            future.set_exception(wrapped)
