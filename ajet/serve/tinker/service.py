"""The operations of Tinker's API: a message in, an answer or a request_id out.

    session ─┬ models     created by create_model or from a checkpoint; requests in order (futures)
             └ samplers   the base, a checkpoint, or a snapshot of a model

Everything runs on the server's event loop, but for what models compute: that is in one thread. The
API's owners, projects and access tokens mean nothing here.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ajet.cluster.machine import machine_memory
from ajet.core.checkpoint.checkpoint import read_state, read_weights
from ajet.core.update.settings import LoraSettings
from ajet.core.update.weights import find_checkpoint
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker import messages
from ajet.serve.tinker.futures import Answer, Futures, RequestQueue
from ajet.serve.tinker.models import BaseModel, Snapshot, TrainedModel, saved_lora
from ajet.serve.tinker.samplers import Samplers
from ajet.serve.tinker.store import Store
from ajet.serve.tinker.wire import (
    LossRequest,
    forward_backward_output,
    parse_forward_backward,
    read_loss_request,
)

POLL_S = 20.0
"""The longest that retrieve_future waits; the SDK waits 45 s for a reply."""
KEPT_SNAPSHOTS = 8
"""The latest snapshots without a name that a model keeps in memory."""
SESSION_S = 3600.0
"""A session that was silent for so long ends when another begins; the SDK sends heartbeats."""
MAX_SESSIONS = 1000
TRAINED_BYTES = 16
"""A trained weight in memory: in float32 with its gradient and AdamW's two numbers."""
MEMORY_SHARE = 0.5
"""The share of the machine's memory that all trained weights together may take."""
NOT_SERVED = (
    "not served: losses custom and stable_reinforce, images, audio, optimizers other than AdamW, "
    "topk_sample_logprobs, target_prompt_logprobs, prompt_alt_tokens_k, save_weights_external"
)

Result = TypeVar("Result")
Operation = tuple[type[Any], Callable[[Any], dict[str, Any]]]
"""The class of an operation's message, and what it does."""


@dataclass(eq=False)
class Session:
    """What a client says about its session, and the time of the session's last sign of life."""

    about: dict[str, Any]
    seen_s: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class ServedModel:
    """A trained model with its requests. `snapshots` are the latest without a name."""

    model: TrainedModel
    queue: RequestQueue
    snapshots: deque[Snapshot] = field(default_factory=deque)
    snapshot_at: int = -1  # num_changes of the latest

    def snapshot(self) -> Snapshot:
        """Returns a snapshot of the weights, the last one if they have not changed since."""
        if self.snapshot_at != self.model.num_changes:
            name = f"a sampler of {self.model.model_id} after {self.model.num_changes} changes"
            self.snapshots.append(self.model.snapshot(name))
            self.snapshot_at = self.model.num_changes
            if len(self.snapshots) > KEPT_SNAPSHOTS:
                self.snapshots.popleft().tensors = None
        return self.snapshots[-1]


@dataclass(frozen=True, slots=True)
class SamplingSession:
    """What a sampler samples with: a snapshot, or None for the base."""

    snapshot: Snapshot | None
    model_path: str | None


class TinkerService:
    def __init__(self, base: BaseModel, samplers: Samplers, store: Store, tokenizer: Path) -> None:
        """`tokenizer` is a folder with the base's tokenizer."""
        self._base, self._samplers, self.store = base, samplers, store
        self._tokenizer = tokenizer
        self._sessions: dict[str, Session] = {}
        self._models: dict[str, ServedModel] = {}
        self._sampling: dict[str, SamplingSession] = {}
        self._futures = Futures()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ajet-tinker-train")
        m = messages
        self.posts: Mapping[str, Operation] = {
            # The SDK's defaults: no identity tokens, no compression, no traced losses.
            "client/config": (m.AnyMessage, lambda _: {}),
            "client/dynamic_config": (m.AnyMessage, lambda _: {"sample_cancel_enabled": True}),
            "telemetry": (m.AnyMessage, lambda _: {"status": "accepted"}),  # and not read
            "create_session": (m.CreateSession, self._create_session),
            "session_heartbeat": (m.SessionMessage, self._heartbeat),
            "create_model": (m.CreateModel, self._create_model),
            "get_info": (m.ModelMessage, self._get_info),
            "unload_model": (m.ModelMessage, self._unload_model),
            "optim_step": (m.OptimStep, self._optim_step),
            "save_weights": (m.SaveWeights, self._save_weights),
            "load_weights": (m.LoadWeights, self._load_weights),
            "save_weights_for_sampler": (m.SaveForSampler, self._save_for_sampler),
            "create_sampling_session": (m.CreateSamplingSession, self._create_sampling_session),
            "asample": (m.SampleRequest, self._sample),
            "cancel_future": (m.FutureMessage, self._cancel),
            "weights_info": (m.WeightsInfo, self._weights_info),
        }

    def post(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a POST in JSON."""
        # The SDK leaves null fields out, except for some.
        present = {name: value for name, value in fields.items() if value is not None}
        message_type, operation = self.posts[path]
        if (
            path == "load_weights" and "session_id" in present
        ):  # of a new model, without create_model
            message_type, operation = messages.CreateFromCheckpoint, self._create_from_checkpoint
        try:
            message = messages.parse(message_type, present)
        except RequestError as error:
            if not issubclass(message_type, messages.ModelRequest):
                raise
            return self._queue_refusal(present, error)
        return operation(message)

    def _queue_refusal(self, fields: Mapping[str, Any], error: RequestError) -> dict[str, Any]:
        """Gives a refused request its place in the order: later ones would wait for it."""
        place = {name: fields[name] for name in ("model_id", "seq_id") if name in fields}

        def refuse(served: ServedModel) -> dict[str, Any]:
            raise error

        return self._queue(messages.parse(messages.ModelRequest, place), refuse)

    # Sessions.

    def _create_session(self, message: messages.CreateSession) -> dict[str, Any]:
        now_s = time.monotonic()
        silent = [key for key, s in self._sessions.items() if now_s - s.seen_s > SESSION_S]
        for session_id in silent:
            self.finish_session(session_id)
        if len(self._sessions) >= MAX_SESSIONS:
            raise RequestError(f"there are {MAX_SESSIONS} sessions: finish some", status=429)
        session_id = uuid.uuid4().hex
        self._sessions[session_id] = Session(message.model_dump())
        answer = {"session_id": session_id, "info_message": NOT_SERVED}
        if self._base.has_tied_head:
            answer["warning_message"] = (
                f"{self._base.name}: its output layer is its embedding, so train_unembed adds no "
                "adapter there"
            )
        return answer

    def _heartbeat(self, message: messages.SessionMessage) -> dict[str, Any]:
        self._see(message.session_id)
        return {"type": "session_heartbeat"}

    def _see(self, session_id: str) -> Session:
        session = _lookup(self._sessions, "session", session_id)
        session.seen_s = time.monotonic()
        return session

    def session(self, session_id: str) -> dict[str, Any]:
        prefix = f"{session_id}:"
        return _lookup(self._sessions, "session", session_id).about | {
            "training_run_ids": [key for key in self._models if key.startswith(prefix)],
            "sampler_ids": [key for key in self._sampling if key.startswith(prefix)],
        }

    def finish_session(self, session_id: str) -> None:
        """Ends a session: its models and samplers are dropped, its checkpoints stay."""
        about = self.session(session_id)
        for model_id in about["training_run_ids"]:
            self._unload(model_id)
        for sampler_id in about["sampler_ids"]:
            del self._sampling[sampler_id]
        del self._sessions[session_id]

    # Models.

    def _create_model(self, message: messages.CreateModel) -> dict[str, Any]:
        config = message.lora_config

        def make(model_id: str) -> TrainedModel:
            lora = None if config is None else self._base.lora_settings(config)
            return self._new_model(model_id, lora)

        return self._begin_model(message, make, {"type": "create_model"})

    def _create_from_checkpoint(self, message: messages.CreateFromCheckpoint) -> dict[str, Any]:
        folder = self.store.folder(message.path)

        def make(model_id: str) -> TrainedModel:
            model = self._new_model(model_id, saved_lora(self._saved_state(folder)))
            model.load(folder, with_optimizer=message.optimizer)
            return model

        return self._begin_model(message, make, {"type": "load_weights", "path": message.path})

    def _new_model(self, model_id: str, lora: LoraSettings | None) -> TrainedModel:
        """Makes a model, unless it and those that there are could take too much memory when all of
        them are trained."""
        models = [served.model.lora for served in list(self._models.values())]
        needed = TRAINED_BYTES * sum(map(self._base.num_trained, (*models, lora)))
        memory = machine_memory()
        if memory is not None and needed > MEMORY_SHARE * memory:
            raise RequestError(
                f"create_model: training this model and the {len(models)} others takes "
                f"{needed / 2**30:.1f} GiB, and this machine has {memory / 2**30:.1f}: lower the "
                "rank, or unload models"
            )
        return TrainedModel(self._base, model_id, lora)

    def _begin_model(
        self,
        message: messages.CreateModel | messages.CreateFromCheckpoint,
        make: Callable[[str], TrainedModel],
        answer: dict[str, Any],
    ) -> dict[str, Any]:
        self._see(message.session_id)
        self._check_base(message.base_model)
        model_id = f"{message.session_id}:train:{message.model_seq_id}"  # the SDK knows this form

        async def work() -> dict[str, Any]:
            model = await self._in_thread(lambda: make(model_id))
            about = {
                "base_model": self._base.name,
                "model_owner": "local",
                "is_lora": model.lora is not None,
                "lora_rank": model.lora and model.lora.rank,
                "user_metadata": message.user_metadata,
            }
            self.store.begin_run(model_id, about)
            self._models[model_id] = ServedModel(model, RequestQueue(model_id, self._futures))
            return answer | {"model_id": model_id}

        return self._start(f"{model_id}:0", work) | {"model_id": model_id}

    def _check_base(self, name: str | None) -> None:
        if name is not None and name != self._base.name:
            raise RequestError(
                f"base_model {name[:200]!r} is not served here, only {self._base.name!r}: start "
                "`ajet serve --tinker --model` with it"
            )

    def _model(self, model_id: str) -> ServedModel:
        served = _lookup(self._models, "model", model_id)
        self._see(model_id.partition(":")[0])
        return served

    def _get_info(self, message: messages.ModelMessage) -> dict[str, Any]:
        model = self._model(message.model_id).model
        name, config = self._base.name, self._base.model.config
        data = {"arch": config.model_type, "model_name": name, "tokenizer_id": str(self._tokenizer)}
        return {
            "type": "get_info",
            "model_id": model.model_id,
            "model_data": data,
            "model_name": name,
            "is_lora": model.lora is not None,
            "lora_rank": model.lora and model.lora.rank,
        }

    def _unload_model(self, message: messages.ModelMessage) -> dict[str, Any]:
        model_id = message.model_id
        self._model(model_id)
        self._unload(model_id)

        async def work() -> dict[str, Any]:
            return {"model_id": model_id, "type": "unload_model"}

        return self._start(f"{model_id}:unload", work) | {"model_id": model_id}

    def _unload(self, model_id: str) -> None:
        served = self._models.pop(model_id)
        served.queue.close()
        for snapshot in served.snapshots:
            snapshot.tensors = None

    # Training: requests in the order of their model's.

    def forward_backward(self, body: bytes) -> dict[str, Any]:
        message = parse_forward_backward(body)

        def read() -> LossRequest:
            return read_loss_request(message)

        def work(served: ServedModel) -> bytes:
            result = served.model.forward_backward(read, forward_only=message.forward_only)
            return forward_backward_output(result)

        return self._queue(message, work)

    def _optim_step(self, message: messages.OptimStep) -> dict[str, Any]:
        return self._queue(message, lambda s: {"metrics": s.model.optim_step(message.adam_params)})

    def _save_weights(self, message: messages.SaveWeights) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            path = self._save(served, "weights", message.path, message.overwrite)
            return {"path": path, "type": "save_weights"}

        return self._queue(message, work)

    def _save(self, served: ServedModel, section: str, name: str, overwrite: bool = False) -> str:
        model = served.model
        folder = self.store.new_checkpoint(model.model_id, section, name, overwrite)
        model.save(folder, model.num_changes)
        return f"tinker://{model.model_id}/{section}/{name}"

    def _load_weights(self, message: messages.LoadWeights) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            folder = self.store.folder(message.path)
            self._saved_state(folder)
            served.model.load(folder, with_optimizer=message.optimizer)
            return {"path": message.path, "model_id": message.model_id, "type": "load_weights"}

        return self._queue(message, work)

    def _save_for_sampler(self, message: messages.SaveForSampler) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            answer = {"type": "save_weights_for_sampler"}
            if message.path is not None:
                return answer | {"path": self._save(served, "sampler_weights", message.path)}
            if message.sampling_session_seq_id is None:
                raise RequestError("save_weights_for_sampler: path is missing")
            session_id = message.model_id.partition(":")[0]
            sampler_id = f"{session_id}:sample:{message.sampling_session_seq_id}"
            self._sampling[sampler_id] = SamplingSession(served.snapshot(), None)
            return answer | {"sampling_session_id": sampler_id}

        return self._queue(message, work)

    def _queue(
        self, message: Any, work: Callable[[ServedModel], bytes | dict[str, Any]]
    ) -> dict[str, Any]:
        served = self._model(message.model_id)

        async def in_turn() -> bytes | dict[str, Any]:
            return await self._in_thread(lambda: work(served))

        request_id = served.queue.submit(message.seq_id, in_turn)
        return {"request_id": request_id, "model_id": message.model_id}

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _start(self, request_id: str, work: Any) -> dict[str, Any]:
        self._futures.start(request_id, work)
        return {"request_id": request_id}

    # Sampling.

    def _create_sampling_session(self, message: messages.CreateSamplingSession) -> dict[str, Any]:
        self._see(message.session_id)
        sampler_id = f"{message.session_id}:sample:{message.sampling_session_seq_id}"
        self._sampling[sampler_id] = self._sampling_session(message)
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def _sampling_session(
        self, message: messages.CreateSamplingSession | messages.SampleRequest
    ) -> SamplingSession:
        self._check_base(message.base_model)
        path = message.model_path
        if path is None:
            return SamplingSession(None, None)
        folder = self.store.folder(path)
        lora = saved_lora(self._saved_state(folder))
        return SamplingSession(Snapshot(path, lora, read_weights(find_checkpoint(folder))), path)

    def _saved_state(self, folder: Path) -> dict[str, Any]:
        """Returns what a checkpoint says about itself; it must be of this base."""
        state = read_state(find_checkpoint(folder))
        if state["base_model"] != self._base.name:
            raise RequestError(
                f"{folder.name} was trained from {state['base_model']}, and {self._base.name} is "
                "served here"
            )
        return state

    def _sample(self, message: messages.SampleRequest) -> dict[str, Any]:
        if message.sampling_session_id is not None:
            sampling = _lookup(self._sampling, "sampler", message.sampling_session_id)
        else:
            sampling = self._sampling_session(message)
        # Without a sampler and a number there is nothing to tell a repetition by.
        is_numbered = message.sampling_session_id is not None and message.seq_id is not None
        number = message.seq_id if is_numbered else uuid.uuid4().hex
        request_id = f"{message.sampling_session_id or ':sample'}:{number}"

        async def work() -> bytes:
            return await self._samplers.sample(sampling.snapshot, message, request_id)

        ids = [f"{request_id}:{number}" for number in range(message.num_samples)]
        return self._start(request_id, work) | {"sample_sequence_ids": ids}

    def sampler(self, sampler_id: str) -> dict[str, Any]:
        path = _lookup(self._sampling, "sampler", sampler_id).model_path
        return {"sampler_id": sampler_id, "base_model": self._base.name, "model_path": path}

    # Answers, and what there is.

    async def retrieve(self, fields: Mapping[str, Any]) -> Answer | None:
        """Returns the answer to a request; None if the client should ask again."""
        message = messages.parse(messages.FutureMessage, fields)
        return await self._futures.retrieve(message.request_id, POLL_S)

    def _cancel(self, message: messages.FutureMessage) -> dict[str, Any]:
        if ":sample:" in message.request_id:  # a training request must not lose its place
            self._futures.cancel(message.request_id)
        return {}

    def _weights_info(self, message: messages.WeightsInfo) -> dict[str, Any]:
        state = self._saved_state(self.store.folder(message.tinker_path))
        lora = saved_lora(state)
        about = {"base_model": state["base_model"], "is_lora": lora is not None}
        return about | {"lora_rank": lora and lora.rank}

    def capabilities(self) -> dict[str, Any]:
        context = {"model_name": self._base.name, "max_context_length": self._base.max_context}
        return {"supported_models": [context | {"trainable": True, "sampleable": True}]}


def _lookup(known: Mapping[str, Result], what: str, key: str) -> Result:
    if key not in known:
        raise RequestError(f"there is no {what} {key[:200]}, or no more", status=404)
    return known[key]
