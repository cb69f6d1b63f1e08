"""The run's settings under verl's names, which an agent loop reads as `self.config`.

    self.config.actor_rollout_ref.rollout.response_length        ajet.data.max_response_length
    self.config.actor_rollout_ref.rollout.multi_turn.format      ajet.rollout.tool_parser
    self.config.my_section.size                                  a section of the user's config

As in verl the episodes of a process share one object, and a key that it lacks raises. Settings of
verl's trainer and engines are not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.core.config import AjetConfig

CHARACTERS_OF_A_TOKEN = 4
"""verl's limit of a tool's result counts characters, ajet's counts tokens."""
TYPED = ("ajet", "verl", "trinity")

_last: list[tuple[AjetConfig, DictConfig]] = []
"""The last config, and its settings for agents: every episode of a run asks for the same."""


def verl_config(config: AjetConfig) -> DictConfig:
    """Returns the settings that agents use, read-only."""
    if not _last or _last[0][0] is not config:
        _last[:] = [(config, _make(config))]
    return _last[0][1]


def _make(config: AjetConfig) -> DictConfig:
    from omegaconf import OmegaConf

    untyped = {name: value for name, value in config.to_dict().items() if name not in TYPED}
    ajet = config.ajet
    tree = untyped | {
        "actor_rollout_ref": {
            "model": {"path": ajet.model.path},
            "rollout": _rollout(config),
        },
        "algorithm": {"adv_estimator": ajet.trainer_common.algorithm.adv_estimator},
        "data": {
            "train_batch_size": ajet.data.train_batch_size,
            "max_prompt_length": ajet.data.max_prompt_length,
            "max_response_length": ajet.data.max_response_length,
            "apply_chat_template_kwargs": {},
            "mm_processor_kwargs": {},
        },
        "trainer": {
            "project_name": ajet.project_name,
            "experiment_name": ajet.experiment_name,
        },
    }
    merged = OmegaConf.create(tree)
    OmegaConf.set_struct(merged, True)
    OmegaConf.set_readonly(merged, True)
    return merged


def _rollout(config: AjetConfig) -> dict[str, Any]:
    rollout, turns = config.ajet.rollout, config.ajet.rollout.multi_turn
    return {
        "name": rollout.name,
        "mode": "async",
        "n": rollout.num_repeat,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "prompt_length": config.ajet.data.max_prompt_length,
        "response_length": config.ajet.data.max_response_length,
        "max_model_len": rollout.max_model_len,
        "calculate_log_probs": True,
        "val_kwargs": rollout.val_kwargs.model_dump(include={"temperature", "top_p", "top_k"}),
        "agent": {"agent_loop_config_path": rollout.agent.agent_loop_config_path},
        "multi_turn": {
            "enable": True,
            "format": rollout.tool_parser,
            "max_assistant_turns": turns.max_assistant_turns,
            "max_user_turns": turns.max_user_turns,
            "max_parallel_calls": turns.max_parallel_calls,
            "max_tool_response_length": turns.max_tool_response_length * CHARACTERS_OF_A_TOKEN,
            "tool_response_truncate_side": turns.tool_response_truncate_side,
            "tool_config_path": turns.tool_config_path,
            "interaction_config_path": turns.interaction_config_path,
        },
    }
