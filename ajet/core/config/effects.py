"""Says what it means that a key differs between two starts of one run.

nothing      the same training, up to the rounding of differently composed batches
length       the run becomes longer or shorter
experiment   any other key, sections of the user's own included
"""

from enum import StrEnum

from ajet.core.config.section import NoEffect, leaves
from ajet.core.config.tree import AjetConfig

CHANGES_LENGTH = ("ajet.trainer_common.total_epochs", "ajet.trainer_common.total_training_steps")
CHANGES_NOTHING = (
    "ajet.project_name",
    "ajet.not_secret",
    "ajet.experiment_name",
    "ajet.experiment_dir",
    "ajet.model.device",
    "ajet.rollout.router",
    "ajet.rollout.server",
    "ajet.rollout.max_env_worker",
    "ajet.rollout.tensor_model_parallel_size",
    "ajet.rollout.n_vllm_engine",
    "ajet.rollout.device_mapping",
    "ajet.rollout.agent",
    "ajet.rollout.max_num_seqs",
    "ajet.environment.render_save_dir",
    "ajet.environment.max_rendered_episodes",
    "ajet.environment.train_env_manager.max_env_num_per_worker",
    "ajet.environment.val_env_manager.max_env_num_per_worker",
    "ajet.distillation.timeout_s",
    "ajet.distillation.max_retries",
    "ajet.distillation.max_parallel",
    "ajet.task_judge.client.cache_path",
    "ajet.task_judge.client.max_parallel",
    "ajet.task_judge.client.requests_per_minute",
    "ajet.context_tracker.check_drift",
    "ajet.context_tracker.log_tool_format_check",
    "ajet.context_tracker.log_tool_format_error_detail",
    "ajet.context_tracker.detect_timeline_snap",
    "ajet.debug",
    "ajet.interchange_server",
    "ajet.serve.host",
    "ajet.serve.port",
    "ajet.serve.heartbeat_s",
    "ajet.serve.learn",
    "ajet.trainer_common.val_before_train",
    "ajet.trainer_common.val_pass_n",
    "ajet.trainer_common.test_freq",
    "ajet.trainer_common.save_freq",
    "ajet.trainer_common.resume",
    "ajet.trainer_common.accept_changes",
    "ajet.trainer_common.max_checkpoints_to_keep",
    "ajet.trainer_common.logger",
    "ajet.trainer_common.traces",
    "ajet.trainer_common.sampler_gap",
    "ajet.trainer_common.batch_layout",
    "ajet.trainer_common.max_tokens_per_micro_batch",
    "ajet.trainer_common.torch_threads",
    "ajet.trainer_common.nnodes",
    "ajet.trainer_common.n_gpus_per_node",
    "ajet.trainer_common.n_trainer_ranks",
    "ajet.trainer_common.device_mapping",
    "ajet.trainer_common.fsdp_config.param_offload",
    "ajet.trainer_common.fsdp_config.activation_checkpointing",
    "ajet.trainer_common.fsdp_config.reshard_after_forward",
    "ajet.trainer_common.fsdp_config.keep_gathered",
    "ajet.trainer_common.ulysses_sequence_parallel_size",
    "verl",
    "trinity.trainer",
    "trinity.rollout",
    "trinity.synchronizer.sync_method",
    "trinity.buffer.url",
    "trinity.buffer.capacity",
)
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
