"""The operations of Tinker's API: fields of a request in, an answer or a request_id out.

    session ── models     created by create_model or from a checkpoint; requests in order (futures)
            └─ samplers   the base, a checkpoint, or a snapshot of a model

Everything here runs on the server's event loop; models compute in one thread. A field that is not
served is refused by its name. The API's owners, projects and access tokens mean nothing here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ajet.core.checkpoint.checkpoint import read_state, read_weights
from ajet.core.update.weights import find_checkpoint
from ajet.core.workflow.gateway.request import Fields, RequestError
from ajet.serve.tinker.futures import Answer, Futures, RequestQueue
from ajet.serve.tinker.models import (
    BaseModel,
    LoraRequest,
    Snapshot,
    TrainedModel,
    adam_settings,
    saved_lora,
)
from ajet.serve.tinker.samplers import Samplers, read_sample_request
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
"""A session that was silent for so long is ended when another one begins; the SDK sends a
heartbeat every few seconds."""
MAX_RANK = 1024
NOT_SERVED = (
    "not served: losses custom and stable_reinforce, images and audio, optimizers other than AdamW, "
    "topk_sample_logprobs, target_prompt_logprobs, prompt_alt_tokens_k, save_weights_external"
)

Result = TypeVar("Result")


@dataclass(eq=False)
class Session:
    """A client's session, and the time of its last sign of life."""

    about: dict[str, Any]
    seen_s: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class ServedModel:
    """A trained model with its requests. `snapshots` are the latest without a name."""

    model: TrainedModel
    queue: RequestQueue
    snapshots: deque[Snapshot] = field(default_factory=deque)
    snapshot_at: int = -1  # num_changes of the latest


@dataclass(eq=False)
class SamplingSession:
    snapshot: Snapshot | None
    model_path: str | None


class TinkerService:
    def __init__(self, base: BaseModel, samplers: Samplers, store: Store, tokenizer: Path) -> None:
        """`tokenizer` is a folder with the base's tokenizer."""
        self._base, self._samplers, self._store = base, samplers, store
        self._tokenizer = tokenizer
        self._sessions: dict[str, Session] = {}
        self._models: dict[str, ServedModel] = {}
        self._sampling: dict[str, SamplingSession] = {}
        self._saved: dict[str, Snapshot] = {}  # by path
        self._futures = Futures()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ajet-tinker-train")
        self.posts: Mapping[str, Callable[[Fields], Any]] = {
            "client/config": self._flags,
            "client/dynamic_config": self._dynamic_flags,
            "telemetry": self._telemetry,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "create_model": self._create_model,
            "get_info": self._get_info,
            "unload_model": self._unload_model,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "load_weights": self._load_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._sample,
            "cancel_future": self._cancel,
            "weights_info": self._weights_info,
        }

    # Sessions.

    def _flags(self, fields: Fields) -> dict[str, Any]:
        return {}  # the SDK's defaults: no identity tokens, no compression, no traced losses

    def _dynamic_flags(self, fields: Fields) -> dict[str, Any]:
        return {"sample_cancel_enabled": True}

    def _telemetry(self, fields: Fields) -> dict[str, Any]:
        return {"status": "accepted"}  # and not read

    def _create_session(self, fields: Fields) -> dict[str, Any]:
        silent = [
            key
            for key, session in self._sessions.items()
            if time.monotonic() - session.seen_s > SESSION_S
        ]
        for session_id in silent:
            self.finish_session(session_id)
        session_id = uuid.uuid4().hex
        about = {
            "user_metadata": fields.take("user_metadata", dict),
            "display_name": fields.take("display_name", str),
        }
        self._sessions[session_id] = Session(about)
        answer = {"session_id": session_id, "info_message": NOT_SERVED}
        if self._base.has_tied_head:
            answer["warning_message"] = (
                f"{self._base.name}: its output layer is its embedding, so train_unembed adds no "
                "adapter there"
            )
        return answer

    def _heartbeat(self, fields: Fields) -> dict[str, Any]:
        self._session(fields)
        return {"type": "session_heartbeat"}

    def _session(self, fields: Fields) -> str:
        session_id = fields.take("session_id", str, "")
        if session_id not in self._sessions:
            raise RequestError(f"there is no session {session_id[:200]}, or no more", status=404)
        self._sessions[session_id].seen_s = time.monotonic()
        return session_id

    def session(self, session_id: str) -> dict[str, Any]:
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError(f"there is no session {session_id[:200]}, or no more", status=404)
        prefix = f"{session_id}:"
        return session.about | {
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

    def _create_model(self, fields: Fields) -> dict[str, Any]:
        model_id = self._new_model_id(fields)
        self._check_base(fields.take("base_model", str))
        self._check_optimizer(fields)
        lora = _lora_request(fields.take("lora_config", dict))
        metadata = fields.take("user_metadata", dict)
        _refuse_rest(fields)

        def make() -> TrainedModel:
            settings = None if lora is None else self._base.lora_settings(lora)
            return TrainedModel(self._base, model_id, settings)

        return self._begin_model(model_id, make, metadata, {"type": "create_model"})

    def _create_from_checkpoint(self, fields: Fields) -> dict[str, Any]:
        model_id = self._new_model_id(fields)
        self._check_base(fields.take("base_model", str))
        self._check_optimizer(fields)
        path, with_optimizer = fields.take("path", str, ""), fields.take("optimizer", bool, False)
        metadata = fields.take("user_metadata", dict)
        _refuse_rest(fields)
        folder = self._store.folder(path)

        def make() -> TrainedModel:
            model = TrainedModel(self._base, model_id, saved_lora(self._saved_state(folder)))
            model.load(folder, with_optimizer=with_optimizer)
            return model

        answer = {"type": "load_weights", "path": path}
        return self._begin_model(model_id, make, metadata, answer)

    def _begin_model(
        self,
        model_id: str,
        make: Callable[[], TrainedModel],
        metadata: dict[str, Any] | None,
        answer: dict[str, Any],
    ) -> dict[str, Any]:
        async def work() -> dict[str, Any]:
            model = await self._in_thread(make)
            about = {
                "base_model": self._base.name,
                "model_owner": "local",
                "is_lora": model.lora is not None,
                "lora_rank": model.lora and model.lora.rank,
                "user_metadata": metadata,
            }
            self._store.begin_run(model_id, about)
            self._models[model_id] = ServedModel(model, RequestQueue(model_id, self._futures))
            return answer | {"model_id": model_id}

        request_id = f"{model_id}:0"
        self._futures.start(request_id, work)
        return {"request_id": request_id, "model_id": model_id}

    def _new_model_id(self, fields: Fields) -> str:
        number = fields.take("model_seq_id", int, -1)
        if number < 0:
            raise RequestError("model_seq_id must be a number from 0 on")
        return f"{self._session(fields)}:train:{number}"

    def _check_base(self, name: str | None) -> None:
        if name is not None and name != self._base.name:
            raise RequestError(
                f"base_model {name[:200]!r} is not served here, only {self._base.name!r}: start "
                "`ajet serve --tinker --model` with it"
            )

    def _check_optimizer(self, fields: Fields) -> None:
        kind = (fields.take("optimizer_config", dict) or {}).get("type", "adamw")
        if kind != "adamw":
            raise RequestError(f"optimizer {str(kind)[:100]!r} is not served: use adamw")

    def _model(self, model_id: str) -> ServedModel:
        served = self._models.get(model_id)
        if served is None:
            raise RequestError(f"there is no model {model_id[:200]}, or no more", status=404)
        self._sessions[model_id.partition(":")[0]].seen_s = time.monotonic()
        return served

    def _get_info(self, fields: Fields) -> dict[str, Any]:
        model = self._model(fields.take("model_id", str, "")).model
        config = self._base.model.config
        data = {
            "arch": config.model_type,
            "model_name": self._base.name,
            "tokenizer_id": str(self._tokenizer),
        }
        return {
            "type": "get_info",
            "model_id": model.model_id,
            "model_data": data,
            "model_name": self._base.name,
            "is_lora": model.lora is not None,
            "lora_rank": model.lora and model.lora.rank,
        }

    def _unload_model(self, fields: Fields) -> dict[str, Any]:
        model_id = fields.take("model_id", str, "")
        self._model(model_id)
        self._unload(model_id)
        request_id = f"{model_id}:unload"

        async def work() -> dict[str, Any]:
            return {"model_id": model_id, "type": "unload_model"}

        self._futures.start(request_id, work)
        return {"request_id": request_id, "model_id": model_id}

    def _unload(self, model_id: str) -> None:
        served = self._models.pop(model_id)
        served.queue.close()
        for snapshot in served.snapshots:
            snapshot.tensors = None

    # Training. Each is queued behind the model's earlier requests, and read when its turn comes: a
    # refused request has taken its place in the order.

    def forward_backward(self, body: bytes) -> dict[str, Any]:
        message = parse_forward_backward(body)

        def work(served: ServedModel) -> bytes:
            def read() -> LossRequest:
                return read_loss_request(message)

            result = served.model.forward_backward(read, forward_only=message.forward_only)
            return forward_backward_output(result)

        return self._queue(message.model_id, message.seq_id, work)

    def _optim_step(self, fields: Fields) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            params = fields.take("adam_params", dict)
            if params is None:
                raise RequestError("optim_step: adam_params are missing; no other optimizer is served")
            numbers = Fields(params)
            names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
            taken = {name: numbers.take(name, (int, float)) for name in names}
            _refuse_rest(numbers)
            _refuse_rest(fields)
            adam = adam_settings({n: float(v) for n, v in taken.items() if v is not None})
            return {"metrics": served.model.optim_step(adam)}

        return self._queue(fields.take("model_id", str, ""), fields.take("seq_id", int, 0), work)

    def _save_weights(self, fields: Fields) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            path = self._save(served, fields, "weights", fields.take("path", str, ""))
            return {"path": path, "type": "save_weights"}

        return self._queue(fields.take("model_id", str, ""), fields.take("seq_id", int, 0), work)

    def _save(self, served: ServedModel, fields: Fields, kind: str, name: str) -> str:
        overwrite = fields.take("overwrite", bool, False)
        fields.take("ttl_seconds", int)  # nothing expires here
        fields.take("user_metadata", dict)
        _refuse_rest(fields)
        model = served.model
        folder = self._store.new_checkpoint(model.model_id, kind, name, overwrite)
        model.save(folder, model.num_changes)
        return f"tinker://{model.model_id}/{kind}/{name}"

    def _load_weights(self, fields: Fields) -> dict[str, Any]:
        if fields.take("weights_access_token", str):
            raise RequestError("weights_access_token: this server has no accounts: leave it out")
        model_id = fields.take("model_id", str)
        if model_id is None:
            return self._create_from_checkpoint(fields)

        def work(served: ServedModel) -> dict[str, Any]:
            path, with_optimizer = fields.take("path", str, ""), fields.take("optimizer", bool, False)
            _refuse_rest(fields)
            served.model.load(self._store.folder(path), with_optimizer=with_optimizer)
            return {"path": path, "model_id": model_id, "type": "load_weights"}

        return self._queue(model_id, fields.take("seq_id", int, 0), work)

    def _save_for_sampler(self, fields: Fields) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            name, number = fields.take("path", str), fields.take("sampling_session_seq_id", int)
            if fields.take("kind", str, "snapshot") != "snapshot":
                raise RequestError(
                    "save_weights_for_sampler: kind inflight is not served: use snapshot"
                )
            if name is not None:
                path = self._save(served, fields, "sampler_weights", name)
                self._saved.pop(path, None)
                return {"path": path, "type": "save_weights_for_sampler"}
            if number is None:
                raise RequestError("save_weights_for_sampler: path is missing")
            fields.take("ttl_seconds", int)
            fields.take("user_metadata", dict)
            _refuse_rest(fields)
            sampler_id = f"{served.model.model_id.partition(':')[0]}:sample:{number}"
            self._sampling[sampler_id] = SamplingSession(_snapshot(served), None)
            return {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}

        return self._queue(fields.take("model_id", str, ""), fields.take("seq_id", int, 0), work)

    def _queue(
        self, model_id: str, seq_id: int, work: Callable[[ServedModel], bytes | dict[str, Any]]
    ) -> dict[str, Any]:
        served = self._model(model_id)

        async def in_turn() -> bytes | dict[str, Any]:
            return await self._in_thread(lambda: work(served))

        return {"request_id": served.queue.submit(seq_id, in_turn), "model_id": model_id}

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Sampling.

    def _create_sampling_session(self, fields: Fields) -> dict[str, Any]:
        number = fields.take("sampling_session_seq_id", int, -1)
        sampler_id = f"{self._session(fields)}:sample:{number}"
        self._check_base(fields.take("base_model", str))
        path = fields.take("model_path", str)
        _refuse_rest(fields)
        snapshot = None if path is None else self._snapshot_at(path)
        self._sampling[sampler_id] = SamplingSession(snapshot, path)
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def _snapshot_at(self, path: str) -> Snapshot:
        if path not in self._saved:
            checkpoint = find_checkpoint(self._store.folder(path))
            state = self._saved_state(self._store.folder(path))
            self._saved[path] = Snapshot(path, saved_lora(state), read_weights(checkpoint))
        return self._saved[path]

    def _saved_state(self, folder: Path) -> dict[str, Any]:
        """Returns what a checkpoint says about itself; it must be of this base."""
        state = read_state(find_checkpoint(folder))
        if state["base_model"] != self._base.name:
            raise RequestError(
                f"{folder.name} was trained from {state['base_model']}, and {self._base.name} is "
                "served here"
            )
        return state

    def _sample(self, fields: Fields) -> dict[str, Any]:
        sampler_id, seq_id = fields.take("sampling_session_id", str), fields.take("seq_id", int)
        base, path = fields.take("base_model", str), fields.take("model_path", str)
        if sampler_id is None:  # without a session there is nothing to tell a repetition by
            self._check_base(base)
            sampling = SamplingSession(None if path is None else self._snapshot_at(path), path)
            request_id = f"sample:{uuid.uuid4().hex}"
        else:
            sampling = self._sampler(sampler_id)
            request_id = f"{sampler_id}:{secrets.token_hex(8) if seq_id is None else seq_id}"
        request = read_sample_request(fields, self._samplers.end_ids)
        _refuse_rest(fields)

        async def work() -> bytes:
            return await self._samplers.sample(sampling.snapshot, request, request_id)

        self._futures.start(request_id, work)
        ids = [f"{request_id}:{number}" for number in range(request.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    def _sampler(self, sampler_id: str) -> SamplingSession:
        sampling = self._sampling.get(sampler_id)
        if sampling is None:
            raise RequestError(f"there is no sampler {sampler_id[:200]}, or no more", status=404)
        return sampling

    def sampler(self, sampler_id: str) -> dict[str, Any]:
        sampling = self._sampler(sampler_id)
        about = {"sampler_id": sampler_id, "base_model": self._base.name}
        return about | {"model_path": sampling.model_path}

    # Answers, and lists of what there is.

    async def retrieve(self, fields: Fields) -> Answer | None:
        """Returns the answer to a request; None if the client should ask again."""
        return await self._futures.retrieve(fields.take("request_id", str, ""), POLL_S)

    def _cancel(self, fields: Fields) -> dict[str, Any]:
        request_id = fields.take("request_id", str, "")
        if ":sample:" in request_id or request_id.startswith("sample:"):
            self._futures.cancel(request_id)  # a training request must not lose its place
        return {}

    def _weights_info(self, fields: Fields) -> dict[str, Any]:
        state = self._saved_state(self._store.folder(fields.take("tinker_path", str, "")))
        lora = saved_lora(state)
        rank = None if lora is None else lora.rank
        return {
            "base_model": state["base_model"],
            "is_lora": lora is not None,
            "lora_rank": rank,
        }

    def capabilities(self) -> dict[str, Any]:
        model = {
            "model_name": self._base.name,
            "max_context_length": self._base.max_context,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [model]}

    def training_runs(self, limit: int, offset: int) -> dict[str, Any]:
        runs = self._store.runs()
        cursor = {"offset": offset, "limit": limit, "total_count": len(runs)}
        return {"training_runs": runs[offset : offset + limit], "cursor": cursor}

    def training_run(self, run_id: str) -> dict[str, Any]:
        return self._store.run(run_id)

    def checkpoints(self, run_id: str) -> dict[str, Any]:
        self._store.run(run_id)
        return {"checkpoints": self._store.checkpoints(run_id)}

    def all_checkpoints(self, limit: int, offset: int) -> dict[str, Any]:
        found = [
            checkpoint
            for run in self._store.runs()
            for checkpoint in self._store.checkpoints(run["training_run_id"])
        ]
        cursor = {"offset": offset, "limit": limit, "total_count": len(found)}
        return {"checkpoints": found[offset : offset + limit], "cursor": cursor}

    def delete_checkpoint(self, run_id: str, kind: str, name: str) -> None:
        path = f"tinker://{run_id}/{kind}/{name}"
        self._store.delete(path)
        self._saved.pop(path, None)


def _snapshot(served: ServedModel) -> Snapshot:
    """Returns a snapshot of the model's weights, the last one if they have not changed since."""
    model = served.model
    if served.snapshot_at != model.num_changes:
        name = f"a sampler of {model.model_id} after {model.num_changes} changes"
        served.snapshots.append(model.snapshot(name))
        served.snapshot_at = model.num_changes
        if len(served.snapshots) > KEPT_SNAPSHOTS:
            served.snapshots.popleft().tensors = None
    return served.snapshots[-1]


def _lora_request(config: dict[str, Any] | None) -> LoraRequest | None:
    if config is None:
        return None
    fields = Fields(config)
    rank, seed = fields.take("rank", int, 0), fields.take("seed", int)
    parts = {
        name: fields.take(name, bool, True)
        for name in ("train_mlp", "train_attn", "train_unembed")
    }
    _refuse_rest(fields)
    if not 1 <= rank <= MAX_RANK:
        raise RequestError(f"lora_config: rank is {rank}: 1 to {MAX_RANK} are served")
    return LoraRequest(rank, secrets.randbits(31) if seed is None else seed, **parts)


def _refuse_rest(fields: Fields) -> None:
    fields.take("type", str)  # the SDK's name of the message
    fields.refuse_rest()
