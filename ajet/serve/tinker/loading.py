"""The base model of a server, and samplers over it, as the config says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet import assembly
from ajet.core.update.settings import UpdateSettings, tokens_per_pass
from ajet.engines.in_process import InProcessEngine
from ajet.engines.step_graph import cuda_graph_of
from ajet.serve.tinker.models import BaseModel
from ajet.serve.tinker.samplers import Samplers

if TYPE_CHECKING:
    from torch import nn

    from ajet.core.config import AjetConfig
    from ajet.core.inference.chat_template import ChatTemplate

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
