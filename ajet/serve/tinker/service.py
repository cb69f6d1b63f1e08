"""The operations of Tinker's API: a message in, an answer or a request_id out. Everything runs on
the server's event loop, but for what models compute: that is in one thread. A request is in the
journal before it is acknowledged. The API's owners, projects and access tokens mean nothing here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from loguru import logger

from ajet.cluster.machine import machine_memory
from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.checkpoint.manifest import find_checkpoint
from ajet.core.errors import AjetError
from ajet.core.seeding import derive
from ajet.core.update.settings import LoraSettings
from ajet.core.workflow.gateway.gateway import parse_json_object
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker import messages
from ajet.serve.tinker.futures import Futures
from ajet.serve.tinker.journal import Answer, Journal
from ajet.serve.tinker.models import BaseModel, TrainedModel, saved_lora
from ajet.serve.tinker.samplers import RemoteSamplers, Samplers
from ajet.serve.tinker.served import SamplingSession, ServedModel, Session, remove_restart_files
from ajet.serve.tinker.store import Store
from ajet.serve.tinker.wire import (
    forward_backward_output,
    parse_forward_backward,
    read_loss_request,
)

POLL_S = 20.0
"""The longest that retrieve_future waits; the SDK waits 45 s for a reply."""
SESSION_S = 600.0
"""A session that was silent for so long ends when another begins; the SDK sends a heartbeat every
10 s."""
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
ModelWork = Callable[[ServedModel], Awaitable["bytes | dict[str, Any]"]]
"""Computes the answer to a request of a model, when it is its turn."""


class TinkerService:
    def __init__(
        self,
        base: BaseModel,
        samplers: Samplers | RemoteSamplers,
        store: Store,
        journal: Journal,
        tokenizer: Path,
        seed: int,
    ) -> None:
        """`tokenizer` is a folder with the base's tokenizer; `seed` is for what clients leave to
        chance."""
        self._base, self._samplers, self.store = base, samplers, store
        self._journal, self._tokenizer, self._seed = journal, tokenizer, seed
        self._sessions: dict[str, Session] = {}
        self._models: dict[str, ServedModel] = {}
        self._sampling: dict[str, SamplingSession] = {}
        self._futures = Futures(journal)
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

    def restore(self) -> None:
        """Brings back what the journal has; before the server's event loop runs."""
        self._journal.drop_orphans()
        for session_id, about in self._journal.made("session"):
            self._sessions[session_id] = Session(about["about"], about["number"])
        for model_id, _ in self._journal.made("model"):
            served = self._models[model_id] = self._served(model_id)
            if served.done_answer is not None:  # it may have been killed before it wrote this
                answer = Answer.from_value(served.done_answer)
                self._journal.add_answer(f"{model_id}:{served.done_id}", answer)
        for run_id in self.store.run_ids(self._base.name):
            if run_id not in self._models:  # its session ended just before the kill
                remove_restart_files(self.store.run_folder(run_id))
        for sampler_id, about in self._journal.made("sampler"):
            path = about["checkpoint"] and self.store.root / about["checkpoint"]
            self._sampling[sampler_id] = SamplingSession(path, about["model_path"])

    def resume(self) -> None:
        """Begins the requests again that had no answer, or that no checkpoint includes."""

        async def nothing() -> dict[str, Any]:
            return {}

        for request_id, path, body in self._journal.requests():
            try:
                if path:
                    self.post(path, body)
                else:
                    # It was answered and did not change its model, but keeps its place.
                    model_id, _, seq_id = request_id.rpartition(":")
                    queue = self._model(model_id).queue
                    queue.submit(int(seq_id), nothing, changes_model=False)
            except (RequestError, AjetError) as error:
                logger.warning(f"request {request_id} was not resumed: {error}")

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        """Returns the answer to a POST."""
        answer = self._answer(path, body)
        request_id = answer.get("request_id", ":")
        if not request_id.startswith(":"):  # those of a session
            self._journal.add_request(request_id, path, body)
        return answer

    def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "forward_backward":
            return self._forward_backward(body)
        # The SDK leaves null fields out, except for some.
        fields = parse_json_object(body or b"{}")
        present = {name: value for name, value in fields.items() if value is not None}
        message_type, operation = self.posts[path]
        if path == "load_weights" and "session_id" in present:  # of a new model
            message_type, operation = messages.CreateFromCheckpoint, self._create_from_checkpoint
        try:
            message = messages.parse(message_type, present)
        except RequestError as error:
            if not issubclass(message_type, messages.ModelRequest):
                raise
            # The request keeps its place in the order: later ones would wait for it.
            place = {name: present[name] for name in ("model_id", "seq_id") if name in present}
            refusal = error

            async def refuse(_: ServedModel) -> dict[str, Any]:
                raise refusal

            return self._queue(messages.parse(messages.ModelRequest, place), refuse)
        return operation(message)

    # Sessions.

    def _create_session(self, message: messages.CreateSession) -> dict[str, Any]:
        now_s = time.monotonic()
        silent = [key for key, s in self._sessions.items() if now_s - s.seen_s > SESSION_S]
        for session_id in silent:
            self.finish_session(session_id)
        if len(self._sessions) >= MAX_SESSIONS:
            raise RequestError(f"there are {MAX_SESSIONS} sessions: finish some", status=429)
        session_id = uuid.uuid4().hex
        number = 1 + max((session.number for session in self._sessions.values()), default=0)
        session = Session(message.model_dump(), number)
        self._journal.add("session", session_id, {"about": session.about, "number": number})
        self._sessions[session_id] = session
        answer = {"session_id": session_id, "info_message": NOT_SERVED}
        if self._base.has_tied_head:
            answer["warning_message"] = (
                f"{self._base.name}: its output layer is its embedding, so train_unembed adds no "
                "adapter there"
            )
        return answer

    def _heartbeat(self, message: messages.SessionMessage) -> dict[str, Any]:
        if message.session_id not in self._sessions:
            # Of all statuses, only this one makes the SDK stop its heartbeats; otherwise it warns
            # of each from two minutes on, for as long as its process lives.
            raise RequestError(f"there is no session {message.session_id[:200]}", status=410)
        self._see(message.session_id)
        return {"type": "session_heartbeat"}

    def _see(self, session_id: str) -> Session:
        session = _lookup(self._sessions, "session", session_id)
        session.seen_s = time.monotonic()
        return session

    async def close(self) -> None:
        """Ends the threads, after the request of a model that is under way."""
        self._futures.close()
        await self._samplers.close()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        for served in self._models.values():
            served.close()
        self._journal.close()

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
        self._journal.drop_session(session_id)
        del self._sessions[session_id]

    # Models.

    def _create_model(self, message: messages.CreateModel) -> dict[str, Any]:
        config = message.lora_config
        number = self._see(message.session_id).number

        def make(model_id: str) -> TrainedModel:
            seed = derive(self._seed, "adapter", number, message.model_seq_id)
            lora = None if config is None else self._base.lora_settings(config, seed)
            return self._new_model(model_id, lora)

        return self._begin_model(message, make, {"type": "create_model"})

    def _create_from_checkpoint(self, message: messages.CreateFromCheckpoint) -> dict[str, Any]:
        self._see(message.session_id)
        checkpoint = self._checkpoint(message.path)

        def make(model_id: str) -> TrainedModel:
            lora = saved_lora(read_state(checkpoint, is_checked=True))
            model = self._new_model(model_id, lora)
            model.load(checkpoint, with_optimizer=message.optimizer)
            return model

        return self._begin_model(message, make, {"type": "load_weights", "path": message.path})

    def _new_model(self, model_id: str, lora: LoraSettings | None) -> TrainedModel:
        """Makes a model, unless it and those that there are could take too much memory when all of
        them are trained."""
        models = [served.lora for served in list(self._models.values())]
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
        self._check_base(message.base_model)
        model_id = f"{message.session_id}:train:{message.model_seq_id}"  # the SDK knows this form
        folder = self.store.run_folder(model_id)

        def begin() -> ServedModel:
            model = make(model_id)
            about = {
                "base_model": self._base.name,
                "model_owner": "local",
                "is_lora": model.lora is not None,
                "lora_rank": model.lora and model.lora.rank,
                "user_metadata": message.user_metadata,
            }
            self.store.begin_run(model_id, about, model.lora)
            ServedModel.begin(model, folder)
            return self._served(model_id, model)

        async def work() -> dict[str, Any]:
            if model_id not in self._models:  # it was killed before it answered
                self._models[model_id] = await self._in_thread(begin)
                self._journal.add("model", model_id, {})
            return answer | {"model_id": model_id}

        return self._start(f"{model_id}:0", work) | {"model_id": model_id}

    def _served(self, model_id: str, trained: TrainedModel | None = None) -> ServedModel:
        folder, open_record = self.store.run_folder(model_id), partial(self.store.record, model_id)
        return ServedModel(self._base, model_id, folder, self._futures, open_record, trained)

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
        lora = self._model(message.model_id).lora
        name, config = self._base.name, self._base.model.config
        data = {"arch": config.model_type, "model_name": name, "tokenizer_id": str(self._tokenizer)}
        return {
            "type": "get_info",
            "model_id": message.model_id,
            "model_data": data,
            "model_name": name,
            "is_lora": lora is not None,
            "lora_rank": lora and lora.rank,
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
        self._journal.drop_made(model_id)
        self._thread.submit(served.close)  # after the request under way
        self._thread.submit(remove_restart_files, served.folder)

    # Training: requests in the order of their model's.

    def _forward_backward(self, body: bytes) -> dict[str, Any]:
        message = parse_forward_backward(body)
        read = partial(read_loss_request, message)

        def work(served: ServedModel) -> bytes:
            result = served.trained.forward_backward(read, forward_only=message.forward_only)
            return forward_backward_output(result)

        changes_model = not message.forward_only
        return self._queue(
            message, self._threaded(work), changes_model=changes_model, num_bytes=len(body)
        )

    def _optim_step(self, message: messages.OptimStep) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            answer = {"metrics": served.trained.optim_step(message.adam_params)}
            if served.is_saving_due():
                served.save(message.seq_id, answer)
            return answer

        return self._queue(message, self._threaded(work))

    def _load_weights(self, message: messages.LoadWeights) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            checkpoint = self._checkpoint(message.path)
            served.trained.load(checkpoint, with_optimizer=message.optimizer)
            answer = {"path": message.path, "model_id": message.model_id, "type": "load_weights"}
            # At once, because the checkpoint that was read may be deleted.
            served.save(message.seq_id, answer)
            return answer

        return self._queue(message, self._threaded(work))

    def _save_weights(self, message: messages.SaveWeights) -> dict[str, Any]:
        def work(served: ServedModel) -> dict[str, Any]:
            run_id, request_id = message.model_id, f"{message.model_id}:{message.seq_id}"
            folder, path = self.store.new_checkpoint(
                run_id, "weights", message.path, request_id, overwrite=message.overwrite
            )
            served.trained.save(folder, request_id=request_id)
            return {"path": path, "type": "save_weights"}

        return self._queue(message, self._threaded(work), changes_model=False)

    def _save_for_sampler(self, message: messages.SaveForSampler) -> dict[str, Any]:
        answer = {"type": "save_weights_for_sampler"}
        name, number = message.path, message.sampling_session_seq_id

        def save(served: ServedModel) -> dict[str, Any]:
            run_id, request_id = message.model_id, f"{message.model_id}:{message.seq_id}"
            folder, path = self.store.new_checkpoint(
                run_id, "sampler_weights", str(name), request_id
            )
            served.trained.save_weights(folder, request_id=request_id)
            return answer | {"path": path}

        async def snapshot(served: ServedModel) -> dict[str, Any]:
            if number is None:
                raise RequestError("save_weights_for_sampler: path is missing")
            checkpoint = await self._in_thread(lambda: served.snapshot(message.seq_id))
            sampler_id = f"{message.model_id.partition(':')[0]}:sample:{number}"
            self._add_sampler(sampler_id, SamplingSession(checkpoint))
            return answer | {"sampling_session_id": sampler_id}

        work = snapshot if name is None else self._threaded(save)
        return self._queue(message, work, changes_model=False)

    def _queue(
        self, message: Any, work: ModelWork, *, changes_model: bool = True, num_bytes: int = 0
    ) -> dict[str, Any]:
        served = self._model(message.model_id)

        async def in_turn() -> bytes | dict[str, Any]:
            value = await work(served)
            self._journal.drop_requests(served.take_obsolete())
            return value

        request_id = served.queue.submit(
            message.seq_id, in_turn, changes_model=changes_model, num_bytes=num_bytes
        )
        return {"request_id": request_id, "model_id": message.model_id}

    def _threaded(self, work: Callable[[ServedModel], bytes | dict[str, Any]]) -> ModelWork:
        return lambda served: self._in_thread(lambda: work(served))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _start(self, request_id: str, work: Any) -> dict[str, Any]:
        self._futures.start(request_id, work)
        return {"request_id": request_id}

    # Sampling.

    def _create_sampling_session(self, message: messages.CreateSamplingSession) -> dict[str, Any]:
        self._see(message.session_id)
        sampler_id = f"{message.session_id}:sample:{message.sampling_session_seq_id}"
        self._add_sampler(sampler_id, self._sampling_session(message))
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def _add_sampler(self, sampler_id: str, sampling: SamplingSession) -> None:
        checkpoint = sampling.checkpoint and str(sampling.checkpoint.relative_to(self.store.root))
        about = {"checkpoint": checkpoint, "model_path": sampling.model_path}
        self._journal.add("sampler", sampler_id, about)
        self._sampling[sampler_id] = sampling

    def _sampling_session(
        self, message: messages.CreateSamplingSession | messages.SampleRequest
    ) -> SamplingSession:
        self._check_base(message.base_model)
        path = message.model_path
        return SamplingSession(None if path is None else self._checkpoint(path), path)

    def _checkpoint(self, path: str) -> Path:
        """Returns the latest checkpoint of a tinker:// path, which must be of this base."""
        checkpoint = find_checkpoint(self.store.folder(path))
        base = read_state(checkpoint, is_checked=True)["base_model"]
        if base != self._base.name:
            raise RequestError(
                f"{path} was trained from {base}, and {self._base.name} is served here"
            )
        return checkpoint

    def _sample(self, message: messages.SampleRequest) -> dict[str, Any]:
        sampler_id, seq_id = message.sampling_session_id, message.seq_id
        if sampler_id is None:
            sampling = self._sampling_session(message)
        else:
            sampling = _lookup(self._sampling, "sampler", sampler_id)
        if sampler_id is None or seq_id is None:  # nothing to tell a repetition by
            request_id = f":sample:{uuid.uuid4().hex}"
            seed = secrets.randbits(63)
        else:
            request_id = f"{sampler_id}:{seq_id}"
            session_id, _, number = sampler_id.split(":")
            seed = derive(self._seed, "sample", self._see(session_id).number, number, seq_id)

        async def work() -> bytes:
            return await self._samplers.sample(sampling.checkpoint, message, request_id, seed)

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
        state = read_state(self._checkpoint(message.tinker_path), is_checked=True)
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
