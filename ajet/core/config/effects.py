"""Says what it means that a key differs between two starts of one run.

nothing      the same training, up to the rounding of differently composed batches
length       the run becomes longer or shorter
experiment   any other key, sections of the user's own included
"""

from enum import StrEnum

from ajet.core.config.section import NoEffect, leaves
from ajet.core.config.tree import AjetConfig

CHANGES_LENGTH = ("ajet.trainer_common.total_epochs", "ajet.trainer_common.total_training_steps")
NO_EFFECT_BY_SECTION = {
    "ajet": (
        "project_name", "not_secret", "experiment_name", "experiment_dir", "debug",
        "interchange_server",
    ),
    "ajet.rollout": (
        "router", "server", "max_env_worker", "tensor_model_parallel_size", "n_vllm_engine",
        "device_mapping", "agent", "max_num_seqs",
    ),
    "ajet.distillation": ("timeout_s", "max_retries", "max_parallel"),
    "ajet.task_judge.client": ("cache_path", "max_parallel", "requests_per_minute"),
    "ajet.context_tracker": (
        "check_drift", "log_tool_format_check", "log_tool_format_error_detail",
        "detect_timeline_snap",
    ),
    "ajet.serve": ("host", "port", "heartbeat_s", "learn"),
    "ajet.trainer_common": (
        "val_before_train", "val_pass_n", "test_freq", "save_freq", "resume", "accept_changes",
        "save_in_background",
        "max_checkpoints_to_keep", "logger", "traces", "sampler_gap", "batch_layout",
        "max_tokens_per_micro_batch", "torch_threads", "nnodes", "n_gpus_per_node",
        "n_trainer_ranks", "device_mapping", "ulysses_sequence_parallel_size",
    ),
    "ajet.trainer_common.fsdp_config": (
        "param_offload", "activation_checkpointing", "reshard_after_forward", "keep_gathered",
    ),
}  # fmt: skip
CHANGES_NOTHING = (
    *(f"{section}.{name}" for section, names in NO_EFFECT_BY_SECTION.items() for name in names),
    "ajet.model.device",
    "ajet.environment.render_save_dir", "ajet.environment.max_rendered_episodes",
    "ajet.environment.train_env_manager.max_env_num_per_worker",
    "ajet.environment.val_env_manager.max_env_num_per_worker",
    "verl", "trinity.trainer", "trinity.rollout", "trinity.synchronizer.sync_method",
    "trinity.buffer.url", "trinity.buffer.capacity",
)  # fmt: skip
"""Dotted names of keys and sections."""


class Effect(StrEnum):
    NOTHING = "nothing"
    LENGTH = "length"
    EXPERIMENT = "experiment"


def effect_of(key: str) -> Effect:
    """Returns what a change of this key, or of one below it, means."""
    for effect, names in ((Effect.LENGTH, CHANGES_LENGTH), (Effect.NOTHING, CHANGES_NOTHING)):
        if any(f"{key}.".startswith(f"{name}.") for name in names):
            return effect
    return Effect.EXPERIMENT


def keys_without_effect(config: AjetConfig) -> set[str]:
    """Returns the keys that this backbone accepts and does not read."""
    backbone = config.ajet.backbone
    return {
        leaf.path
        for root in ("ajet", "verl", "trinity")
        for leaf in leaves(getattr(config, root), root)
        for marker in leaf.field.metadata
        if isinstance(marker, NoEffect) and backbone in marker.on
    }
