"""The engine in the training process, which samples with the policy's own weights.

Agents run on an event loop; the model runs in one thread of the engine. Requests meet in waves:

    episode a   generate ──┐                ┌─ tool ─ generate ──┐
    episode b   generate ──┤ wave 1: all    ├─ tool ──── generate┤ wave 2 ...
    episode c   generate ──┘ decode together└─ leave             │

With `deterministic=True` a wave starts only when nothing runs and every live episode (`enter` to
`leave`) waits here, and takes its requests in the order of their ids. What is computed together,
and so every rounding, then depends on the requests and never on their timing. A finished request
resolves at once, so tools run while the wave goes on. A function that is called before each wave
(`set_wave_check`) may make episodes leave: which episodes have ended by then does not depend on
timing. `deterministic=False` lets requests join a running batch (batch.py says when).

With several adapters each has a batch and a prefix cache of its own, and a wave holds the requests
of all of them: an episode may call any. Batches take turns, one token each. What is computed for
an adapter depends on its own rows alone.

Not covered: deadlines (the caller cancels), several requests of one episode at the same time (the
wave does not wait for the second), weights on several devices.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from loguru import logger

from ajet.core.error_codes import Code
from ajet.core.errors import AjetError, ModelError
from ajet.core.inference.endpoint import (
    Completion,
    ContextOverflow,
    SamplingParams,
    WaveEndpoint,
    WaveWait,
)
from ajet.core.inference.engines.batch import Batch
from ajet.core.inference.engines.flat_forward import FlatForward
from ajet.core.inference.engines.forward import BatchRow, Forward
from ajet.core.inference.engines.hf_forward import HfForward
from ajet.core.inference.engines.joined_decoder import gpu_bytes
from ajet.core.inference.engines.step_graph import MakeGraph, cuda_graph_of
from ajet.core.inference.stop_strings import first_stop
from ajet.core.model.allocator import is_large, release_freed_memory
from ajet.core.model.flat_decoder import FlatDecoder, flat_decoder, has_flat_decoder

KV_BYTES, KV_SHARE = 3 << 27, 0.1
"""Default budget for the keys and values of running rows, and again for those of the cache: so many
bytes, and on a GPU this share of its memory if that is more."""
SETTLE_TURNS = 8
"""The turns of the event loop without an arrival before a wave starts: `gather` starts its calls
one after the other, and an episode that leaves gives its slot to one that enters a moment later."""
GATHER_S = 0.02
"""With `gathers`, a batch begins when no request has arrived for so long."""
MAX_GATHER_S = 0.16
"""The first of these requests waits no longer than this, in seconds."""


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was made. Cached prompt tokens were not computed again. A decode step
    ran eagerly, operator by operator, or was a replay of a captured one."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    sampled_tokens: int = 0
    eager_steps: int = 0
    replayed_steps: int = 0
    busy_s: float = 0.0


OnTokens = Callable[[str, Sequence[int]], None]
"""Is called with a request's id and the tokens that it has sampled so far."""


class Waitable(Protocol):
    """A condition variable, whose lock the caller holds."""

    def wait(self, timeout: float | None = None) -> bool: ...


def wait_for_pause(changed: Waitable, clock: Callable[[], float] = time.monotonic) -> None:
    """Waits until nothing has been announced on `changed` for `GATHER_S`, at most `MAX_GATHER_S`
    in all.

    Episodes that run in other processes begin one after another. An engine that starts with the
    first of their requests computes most of its steps with few rows.
    """
    end_s = clock() + MAX_GATHER_S
    while clock() < end_s and changed.wait(GATHER_S):
        pass


@dataclass(eq=False)
class PendingRequest:
    """A request and the future, on its event loop, that waits for it."""

    row: BatchRow
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Completion]"


class InProcessEngine:
    """A `WaveEndpoint` over a Hugging Face causal model in this process."""

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
        on_tokens: OnTokens | None = None,
        adapters: Mapping[str, Any] | None = None,
        gathers: bool = True,
        make_graph: MakeGraph | None = cuda_graph_of,
    ) -> None:
        """`decode` turns ids into text; without it a stop string ends no reply early. `on_tokens`
        is called in the engine's thread after each step, for each running request. `adapters` are
        models over the weights of `model`, by the names that requests give. Without `gathers` an
        idle engine begins at once with a request that comes, where it is not deterministic.
        `make_graph` makes what captures and replays a model's decode steps; None runs all of them
        eagerly."""
        self._models = {"": model} | dict(adapters or {})
        self._decode = decode
        self._on_tokens = on_tokens
        self._stop_token_ids = frozenset(stop_token_ids)
        self._max_model_len = max_model_len
        self._deterministic = deterministic
        self._gathers = gathers and not deterministic
        self._make_graph = make_graph
        num_kv_bytes = kv_bytes(_gpu_bytes(model)) // len(self._models)
        self._max_kv_tokens = max_kv_tokens
        on_cpu = next(model.parameters()).device.type == "cpu"
        self._releases_memory = deterministic and on_cpu and is_large(model)
        self._vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self._batches = {
            name: Batch(
                self._forward(adapter_model, num_kv_bytes),
                next(adapter_model.parameters()).device,
                max_num_seqs=max_num_seqs,
                eager=not deterministic,
                looks_ahead=next(adapter_model.parameters()).device.type == "cuda",
            )
            for name, adapter_model in self._models.items()
        }
        self.policy_version = 0
        self._busy_s = 0.0
        self._changed = threading.Condition()  # guards everything below
        self._live: set[str] = set()
        self._left_episodes: set[str] = set()
        self._pending: dict[str, PendingRequest] = {}
        self._running: dict[str, PendingRequest] = {}
        self._submitted: list[BatchRow] = []
        self._published: int | None = None
        self._arrivals = 0
        self._num_waves = 0
        self._wave_check: Callable[[], bool] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def stats(self) -> EngineStats:
        """The counts so far."""
        batches = self._batches.values()
        replayed = sum(batch.replayed_steps for batch in batches)
        return EngineStats(
            prompt_tokens=sum(batch.prompt_tokens for batch in batches),
            cached_prompt_tokens=sum(batch.cached_prompt_tokens for batch in batches),
            sampled_tokens=sum(batch.sampled_tokens for batch in batches),
            eager_steps=sum(batch.decode_steps for batch in batches) - replayed,
            replayed_steps=replayed,
            busy_s=self._busy_s,
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples a continuation of `prompt_ids`; see `ModelEndpoint`."""
        loop = asyncio.get_running_loop()
        call = PendingRequest(
            self._row(prompt_ids, sampling, request_id), loop, loop.create_future()
        )
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is closed")
            if request_id in self._pending or request_id in self._running:
                raise ValueError(f"request {request_id!r} is already under way")
            self._start_thread()
            self._pending[request_id] = call
            self._arrivals += 1
            self._maybe_start_wave()
        try:
            return await call.future
        finally:
            if not call.future.done() or call.future.cancelled():
                self._drop(request_id, call)

    def enter(self, episode_id: str) -> None:
        """Marks the episode as live: waves wait for its requests until it leaves."""
        with self._changed:
            self._live.add(episode_id)
            self._arrivals += 1

    def leave(self, episode_id: str) -> None:
        """Marks the episode as over: no wave waits for it, and its part of the cache is freed."""
        with self._changed:
            self._live.discard(episode_id)
            self._left_episodes.add(episode_id)
            self._arrivals += 1
            self._maybe_start_wave()
            if not self._live:
                self._changed.notify()

    @property
    def waves(self) -> WaveEndpoint | None:
        """This engine if it is deterministic; None if requests join a running batch."""
        return self if self._deterministic else None

    def set_wave_check(self, check: Callable[[], bool] | None) -> None:
        """Sets the function that is called before each wave; see `WaveEndpoint`."""
        with self._changed:
            self._wave_check = check

    def waiting(self) -> WaveWait | None:
        """Returns who the next wave waits for; see `WaveEndpoint`."""
        with self._changed:
            if not self._pending or self._running or self._submitted:
                return None
            calling = {call.row.episode_id for call in self._pending.values()}
            missing = tuple(sorted(self._live - calling))
            return WaveWait(self._num_waves, len(calling), missing)

    def publish(self, version: int) -> None:
        """Forgets what was computed with the old weights, which have changed in place, and frees
        its memory."""
        with self._changed:
            self.policy_version = version
            self._published = version
            self._changed.notify()

    def abort(self, request_id: str) -> None:
        """Ends a request with what it has sampled so far and `finish_reason="abort"`."""
        with self._changed:
            call = self._pending.pop(request_id, None)
            if request_id in self._running:
                self._running[request_id].row.aborted = True
        if call is not None:
            call.row.finish_reason = "abort"
            call.row.policy_version = self.policy_version
            _post(call.loop, _resolve, call.future, call.row.completion())

    async def close(self) -> None:
        """Stops the thread; requests still under way fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            # A join in a thread of the loop's pool could wait for ever: tools may hold all of them.
            while self._thread.is_alive():
                await asyncio.sleep(0.005)

    def _forward(self, model: Any, num_kv_bytes: int) -> Forward:
        packs = len(self._models) == 1  # adapters share their base, and would each copy it
        decoder = flat_decoder(model) if has_flat_decoder(model) else None
        # Rows share keys and values, which all later tokens must see.
        if decoder is None or decoder.longest_plain < self._max_model_len:
            logger.info(
                f"in-process engine: model type {model.config.model_type!r} is sampled by "
                f"transformers' own forward, without shared prefixes: {_why_not_shared(decoder)}"
            )
            return HfForward(model, self._max_kv_tokens, num_kv_bytes, packs=packs)
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
        return FlatForward(model, num_tokens, graph=graph, packs=packs)

    def _row(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> BatchRow:
        num_prompt = len(prompt_ids)
        if not num_prompt or min(prompt_ids) < 0 or max(prompt_ids) >= self._vocab_size:
            raise ValueError(
                f"request {request_id!r}: the prompt must be token ids in 0 .. "
                f"{self._vocab_size - 1}, at least one"
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
        stop_check = self._stop_check(sampling.stop)
        return BatchRow(request_id, tuple(prompt_ids), sampling, stop_ids, max_len, stop_check)

    def _stop_check(self, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
        """Returns a function that looks for a stop string in the last sampled tokens, if there are
        stop strings. A token is at least one byte, so as many tokens as the longest stop string has
        bytes hold it; a few more are decoded in case the first one cuts a character in two."""
        decode = self._decode
        if not stops or decode is None:
            return None
        window = max(len(stop.encode()) for stop in stops) + 4
        return lambda ids: first_stop(decode(ids[-window:]), stops) is not None

    def _drop(self, request_id: str, call: PendingRequest) -> None:
        """Drops a request that nobody waits for, because its caller was cancelled."""
        with self._changed:
            if self._pending.get(request_id) is call:
                del self._pending[request_id]
            if self._running.get(request_id) is call:
                del self._running[request_id]
            call.row.aborted = True

    def _maybe_start_wave(self) -> None:
        """Schedules a wave if one may start. The caller holds the lock."""
        if self._deterministic and self._is_wave_ready():
            loop = next(iter(self._pending.values())).loop
            _post(loop, self._settle, loop, self._arrivals, SETTLE_TURNS)
        elif not self._deterministic:
            self._submit_pending()

    def _is_wave_ready(self) -> bool:
        if self._running or self._submitted or len(self._pending) < max(1, len(self._live)):
            return False
        return self._live <= {call.row.episode_id for call in self._pending.values()}

    def _settle(self, loop: asyncio.AbstractEventLoop, arrivals: int, turns: int) -> None:
        """Starts the wave after `turns` more turns of the event loop in which nothing arrives."""
        with self._changed:
            if arrivals != self._arrivals or not self._is_wave_ready():
                return
            if turns == 0:
                if self._wave_check is None or self._wave_check():
                    self._submit_pending()
            else:
                loop.call_soon(self._settle, loop, arrivals, turns - 1)

    def _submit_pending(self) -> None:
        """Gives all pending requests to the thread, in the order of their ids. The caller holds the
        lock."""
        self._num_waves += 1
        for request_id in sorted(self._pending):
            self._running[request_id] = self._pending[request_id]
            self._submitted.append(self._pending[request_id].row)
        self._pending.clear()
        self._changed.notify()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run_thread, name="ajet-engine", daemon=True
            )
            self._thread.start()

    def _run_thread(self) -> None:
        """Runs in the thread: samples one token for every running row, as long as there are any."""
        were_training: list[bool] = []
        with torch.inference_mode():
            while True:
                idle = not self._busy_batches
                self._apply_changes(wait=idle)
                if self._closed:
                    return self._fail(RuntimeError("the engine was closed"))
                if idle:
                    were_training = [model.training for model in self._models.values()]
                    for model in self._models.values():
                        model.eval()
                    if self._releases_memory:
                        release_freed_memory()
                started = time.perf_counter()
                try:
                    finished = [row for batch in self._busy_batches for row in batch.step()]
                    self._tell_tokens()
                # Every error goes to the callers, which would wait for ever otherwise.
                except Exception as error:  # noqa: BLE001
                    for batch in self._batches.values():
                        batch.clear()
                    self._fail(error)
                    finished = []
                self._busy_s += time.perf_counter() - started
                if not self._busy_batches:
                    for model, mode in zip(self._models.values(), were_training, strict=True):
                        model.train(mode)
                self._deliver(finished)

    @property
    def _busy_batches(self) -> list[Batch]:
        return [batch for batch in self._batches.values() if batch.busy]

    def _tell_tokens(self) -> None:
        """Calls `on_tokens`, if given, with what each running request has sampled so far."""
        if self._on_tokens is None:
            return
        with self._changed:
            rows = [call.row for call in self._running.values()]
        for row in rows:
            self._on_tokens(row.request_id, row.ids[len(row.prompt_ids) :])

    def _apply_changes(self, *, wait: bool) -> None:
        """Passes to the batch what happened since the last step."""
        with self._changed:
            while wait and not (self._submitted or self._closed):
                self._apply_publish()
                if not self._live:
                    for batch in self._batches.values():
                        batch.free_weights()  # an update follows, which needs the memory
                self._changed.wait()
            if self._gathers and not any(b.running for b in self._batches.values()):
                wait_for_pause(self._changed)
            self._apply_publish()
            if self._submitted:
                # Only at the start of a wave: between waves, which have left depends on timing.
                for batch in self._batches.values():
                    batch.release(sorted(self._left_episodes))
                self._left_episodes.clear()
            for name, batch in self._batches.items():
                batch.add(row for row in self._submitted if row.sampling.adapter == name)
            self._submitted = []

    def _apply_publish(self) -> None:
        """Has the batches forget what was computed before the last `publish`."""
        if self._published is not None:
            for batch in self._batches.values():
                batch.publish(self._published)
            self._published = None

    def _deliver(self, finished: Iterable[BatchRow]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Any, Completion]]] = {}
        with self._changed:
            for row in finished:
                call = self._running.get(row.request_id)
                if call is not None and call.row is row:
                    del self._running[row.request_id]
                    by_loop.setdefault(call.loop, []).append((call.future, row.completion()))
            if not self._running:
                self._maybe_start_wave()
        for loop, resolved in by_loop.items():
            _post(loop, _resolve_all, resolved)

    def _fail(self, error: Exception) -> None:
        """Ends every request under way with this error."""
        with self._changed:
            calls = [*self._running.values(), *(self._pending.values() if self._closed else ())]
            self._running.clear()
            self._submitted = []
            if not self._closed:
                self._maybe_start_wave()
        for call in calls:
            _post(call.loop, _reject, call.future, error)


def kv_bytes(gpu_bytes: int) -> int:
    """Returns the budget on a GPU with so much memory, or on a CPU if that is 0. It follows from
    the whole memory, not from what is free: a run that is resumed must compute the same batches."""
    return max(KV_BYTES, int(KV_SHARE * gpu_bytes))


def _why_not_shared(decoder: FlatDecoder | None) -> str:
    if decoder is None:
        return "it has no flat forward"
    if decoder.longest_plain:
        return f"ajet.rollout.max_model_len is beyond its window of {decoder.longest_plain} tokens"
    return "not all of its layers are plain attention"


def _gpu_bytes(model: Any) -> int:
    device = next(model.parameters()).device
    return gpu_bytes(device) if device.type == "cuda" else 0


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Calls the function on the loop's thread, unless the loop is closed: then nobody waits."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)


def _resolve(future: "asyncio.Future[Completion]", completion: Completion) -> None:
    if not future.done():
        future.set_result(completion)


def _resolve_all(resolved: list[tuple["asyncio.Future[Completion]", Completion]]) -> None:
    for future, completion in resolved:
        _resolve(future, completion)


def _reject(future: "asyncio.Future[Completion]", error: Exception) -> None:
    """Sets a new exception for each caller: a shared one would collect all their tracebacks."""
    if not future.done():
        if isinstance(error, AjetError):
            future.set_exception(type(error)(*error.args, code=error.code))
        else:
            wrapped = ModelError(
                f"in-process engine: {type(error).__name__}: {error}", code=Code.ENGINE_FAILED
            )
            wrapped.__cause__ = error
            future.set_exception(wrapped)
