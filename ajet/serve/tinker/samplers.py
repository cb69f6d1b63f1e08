"""The base model of a server, and sampling with it and with snapshots: an in-process engine for
each of the latest used, in the server's process or in several on Ray. Models are trained in the
server's process.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ajet import assembly
from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.config import AjetConfig, load_config
from ajet.core.inference.endpoint import SamplingParams, cut_at_stop
from ajet.core.model.precision import to_wide_dtype
from ajet.core.process.processor import num_processors
from ajet.core.seeding import derive
from ajet.core.update.layouts import make_layout
from ajet.core.update.settings import LoraSettings, UpdateSettings, tokens_per_pass
from ajet.core.workflow.gateway.request import RequestError
from ajet.engines.in_process import InProcessEngine
from ajet.engines.step_graph import cuda_graph_of
from ajet.serve.tinker.messages import SampleRequest
from ajet.serve.tinker.models import BaseModel, prompt_row, saved_lora
from ajet.serve.tinker.wire import NO_LOGPROB, PromptScores, sample_response

if TYPE_CHECKING:
    from ajet.cluster.actors import ActorPool
    from ajet.core.inference.chat_template import ChatTemplate

MAX_ENGINES = 4
"""Engines that are kept ready. Each may hold packed copies of the weights it samples with."""
ROWS_AT_ONCE = 256
"""Positions whose logits over the vocabulary exist at a time where the likeliest are wanted."""

MakeEngine = Callable[[nn.Module], InProcessEngine]


class Sampler:
    """A model that samples: modules with the weights, and an engine over them. Its weights never
    change, so a request samples all its tokens with one version."""

    def __init__(self, base: BaseModel, checkpoint: Path | None, make_engine: MakeEngine) -> None:
        """`checkpoint` None is the base."""
        self.num_in_flight = 0
        self._model = base.modules(checkpoint).eval()
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
                targets_B = targets[part].to(logprobs.device).unsqueeze(1)
                after = slice(at + 1, at + 1 + len(targets_B))
                logprobs_N[after] = logprobs.gather(1, targets_B).squeeze(1).float().cpu().numpy()
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
        self._decode, self._end_ids = decode, end_ids
        self._samplers: OrderedDict[Path | None, Sampler] = OrderedDict()
        self._is_building = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ajet-tinker-score")

    async def sample(
        self, checkpoint: Path | None, request: SampleRequest, request_id: str, seed: int
    ) -> bytes:
        """Returns the answer to an asample as a message. `seed` is for a request without one."""
        prompt_ids, num_top = request.prompt_ids, request.topk_prompt_logprobs
        self._base.check_tokens(np.array(prompt_ids, np.int64), "prompt")
        async with self._using(checkpoint) as sampler:
            scores = None
            if request.prompt_logprobs or num_top:
                loop = asyncio.get_running_loop()
                scores = await loop.run_in_executor(
                    self._thread, sampler.score, prompt_ids, num_top
                )
            calls = [
                (prompt_ids, self._params(request, number, seed), f"{request_id}/{number:06d}")
                for number in range(request.num_samples)
            ]
            replies = await sampler.engine.generate_together(calls)
        texts, _ = request.stops(self._end_ids)
        cuts = [cut_at_stop(reply, texts, self._decode) if texts else None for reply in replies]
        completions = [cut[0] if cut else reply for reply, cut in zip(replies, cuts, strict=True)]
        return sample_response(completions, scores, request.prompt_logprobs)

    def _params(self, request: SampleRequest, number: int, seed: int) -> SamplingParams:
        params, prompt_ids = request.sampling_params, request.prompt_ids
        room = self._base.max_context - len(prompt_ids)
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if not 1 <= max_tokens <= room:
            raise RequestError(
                f"max_tokens is {max_tokens}: after a prompt of {len(prompt_ids)} tokens there is "
                f"room for {room}"
            )
        texts, stop_ids = request.stops(self._end_ids)
        return SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            max_tokens=max_tokens,
            stop_token_ids=stop_ids,
            stop=texts,
            seed=derive(seed if params.seed is None else params.seed, "sample", number),
        )

    async def close(self) -> None:
        """Ends all engines; unfinished requests fail."""
        for sampler in self._samplers.values():
            await sampler.engine.close()
        self._thread.shutdown()

    @asynccontextmanager
    async def _using(self, checkpoint: Path | None) -> AsyncIterator[Sampler]:
        """Has a sampler, which is built if there is none; those not used for longest are closed."""
        async with self._is_building:
            sampler = self._samplers.get(checkpoint)
            if sampler is None:
                loop, make = asyncio.get_running_loop(), self._make_engine
                sampler = await loop.run_in_executor(
                    self._thread, Sampler, self._base, checkpoint, make
                )
                self._samplers[checkpoint] = sampler
            sampler.num_in_flight += 1
        self._samplers.move_to_end(checkpoint)
        try:
            yield sampler
        finally:
            sampler.num_in_flight -= 1
            idle = [key for key, held in self._samplers.items() if not held.num_in_flight]
            unneeded = idle[: max(0, len(self._samplers) - MAX_ENGINES)]
            # All are taken out before the first wait: another request must not find one of them.
            for held in [self._samplers.pop(key) for key in unneeded]:
                await held.engine.close()


CONFIG = Path(__file__).with_name("tinker.yaml")
"""The config of a server that is given a model alone."""
NO_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Never rendered for a client; a reply ends at the model's end tokens."""


def load_base(config: AjetConfig) -> tuple[BaseModel, ChatTemplate]:
    """Loads the model, whose weights will not change, and its chat template with the tokenizer."""
    loaded = assembly.load_policy_model(config)
    trainer, rollout = config.ajet.trainer_common, config.ajet.rollout
    settings = UpdateSettings(
        max_tokens_per_micro_batch=tokens_per_pass(config),
        batch_layout=trainer.batch_layout,
        activation_checkpointing=trainer.fsdp_config.activation_checkpointing,
    )
    longest = getattr(loaded.model.config, "max_position_embeddings", None)
    max_context = min(rollout.max_model_len, longest or rollout.max_model_len)
    base = BaseModel(loaded.name, loaded.model.requires_grad_(False), settings, max_context)
    # Clients send tokens, so a base model without a chat template is served too.
    if not loaded.tokenizer.chat_template:
        loaded.tokenizer.chat_template = NO_TEMPLATE
    return base, assembly.make_template(loaded)


def saved_by_client(checkpoint: Path) -> tuple[AjetConfig, LoraSettings | None] | None:
    """Returns a config with the checkpoint's base model, and its adapter's settings; None if no
    client of Tinker's API saved it. The base's path may be relative to the current folder."""
    state = read_state(checkpoint)
    if "base_model" not in state:
        return None
    path = f"ajet.model.path={json.dumps(state['base_model'])}"
    return load_config(CONFIG, [path], backbone="debug"), saved_lora(state)


def make_samplers(config: AjetConfig, base: BaseModel, template: ChatTemplate) -> Samplers:
    rollout = config.ajet.rollout

    def make_engine(model: nn.Module) -> InProcessEngine:
        # Without stop tokens: each request has its, which may be none.
        return InProcessEngine(
            model,
            stop_token_ids=(),
            max_num_seqs=rollout.max_env_worker,
            max_model_len=base.max_context,
            deterministic=False,
            gathers=False,  # a request would wait 20 ms for others
            decode=template.text_of,
            make_graph=cuda_graph_of if rollout.cuda_graphs else None,
        )

    return Samplers(base, make_engine, template.text_of, template.stop_token_ids)


class SamplerProcess:
    """The class of a process: a base and its samplers. It reads a checkpoint from the run folder,
    which all nodes must see."""

    def __init__(self, config: AjetConfig, num_threads: int) -> None:
        assembly.prepare_torch(config, num_threads)
        self._samplers = make_samplers(config, *load_base(config))

    async def sample(
        self, checkpoint: Path | None, request: SampleRequest, request_id: str, seed: int
    ) -> bytes:
        return await self._samplers.sample(checkpoint, request, request_id, seed)


class RemoteSamplers:
    """Has the interface of `Samplers`."""

    def __init__(self, pool: ActorPool) -> None:
        self._pool = pool

    async def sample(
        self, checkpoint: Path | None, request: SampleRequest, request_id: str, seed: int
    ) -> bytes:
        return await self._pool.call("sample", checkpoint, request, request_id, seed)

    async def close(self) -> None:
        self._pool.close()


def start_samplers(config: AjetConfig) -> RemoteSamplers:
    """Starts `ajet.rollout.n_vllm_engine` processes that sample; with GPUs, each has one."""
    from ajet.cluster.actors import ActorPool

    num = config.ajet.rollout.n_vllm_engine or 1
    num_threads = max(1, num_processors() // (num + 1))  # one share is the server's
    num_gpus = int(torch.cuda.is_available() and config.ajet.model.device != "cpu")
    pool = ActorPool(
        SamplerProcess, (config, num_threads), num, num_gpus=num_gpus, name="sampler process"
    )
    return RemoteSamplers(pool)
