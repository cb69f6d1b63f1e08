"""The base model of a server, and samplers over it, as the config says: in the server's process, or
in several on Ray.

    TinkerService ─sample─> Samplers                              engines for checkpoints
    TinkerService ─sample─> RemoteSamplers ─> SamplerProcess 0    a base, and its Samplers
                                           ─> SamplerProcess 1

A process reads a checkpoint from the run folder, which all nodes must see. Models are trained in
the server's process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ajet import assembly
from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.config import AjetConfig, load_config
from ajet.core.process.processor import num_processors
from ajet.core.update.settings import LoraSettings, UpdateSettings, tokens_per_pass
from ajet.engines.in_process import InProcessEngine
from ajet.engines.step_graph import cuda_graph_of
from ajet.serve.tinker.messages import SampleRequest
from ajet.serve.tinker.models import BaseModel, saved_lora
from ajet.serve.tinker.samplers import Samplers

if TYPE_CHECKING:
    from torch import nn

    from ajet.cluster.actors import ActorPool
    from ajet.core.inference.chat_template import ChatTemplate

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
    """The class of a process: a base and its samplers."""

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
    import torch

    from ajet.cluster.actors import ActorPool

    num = config.ajet.rollout.n_vllm_engine or 1
    num_threads = max(1, num_processors() // (num + 1))  # one share is the server's
    num_gpus = int(torch.cuda.is_available() and config.ajet.model.device != "cpu")
    pool = ActorPool(
        SamplerProcess, (config, num_threads), num, num_gpus=num_gpus, name="sampler process"
    )
    return RemoteSamplers(pool)
