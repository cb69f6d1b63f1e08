"""Tables of ROLL's keys: its defaults, and the keys of ajet that mean the same. Other keys are
converted in roll.py, roll_algorithm.py and roll_envs.py, or have no counterpart (roll_absent.py).
"""

from operator import not_
from typing import Any

from ajet.convert.draft import Default, Row, defaults_of, resume_mode

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
ACTOR, ENGINE = "actor_train", "actor_infer"
TRAINING = "actor_train.training_args"
GENERATING = "actor_infer.generating_args"
PARALLEL = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"

TRACKERS = {"stdout": "console"}


def _resume(value: Any) -> str:
    """Returns our `resume`; besides true and false, ROLL takes a checkpoint."""
    return resume_mode(value) if isinstance(value, bool) else str(value)


KEYS: tuple[Row, ...] = (
    ("seed", "ajet.seed", Default(42)),
    ("exp_name", "ajet.experiment_name"),
    ("pretrain", "ajet.model.path"),
    ("resume_from_checkpoint", f"{TRAINER}.resume", _resume),
    ("track_with", f"{TRAINER}.logger", lambda name: [TRACKERS.get(name, name)]),
    ("max_steps", f"{TRAINER}.total_training_steps", Default(500)),
    ("save_steps", f"{TRAINER}.save_freq", Default(50)),
    ("eval_steps", f"{TRAINER}.test_freq", Default(10)),
    ("ppo_epochs", f"{TRAINER}.ppo_epochs"),
    ("use_kl_loss", f"{TRAINER}.use_kl_loss", Default(False)),
    ("kl_loss_coef", f"{TRAINER}.kl_loss_coef", Default(0.0)),
    ("max_grad_norm", f"{TRAINER}.optim.grad_clip", Default(1.0)),
    ("num_nodes", f"{TRAINER}.nnodes"),
    ("num_gpus_per_node", f"{TRAINER}.n_gpus_per_node"),
    (f"{TRAINING}.learning_rate", f"{TRAINER}.optim.lr", Default(5e-5)),
    (f"{TRAINING}.weight_decay", f"{TRAINER}.optim.weight_decay"),
    (f"{TRAINING}.warmup_steps", f"{TRAINER}.optim.warmup_steps"),
    ("reward_clip", f"{ALGORITHM}.reward_clip"),
    ("advantage_clip", f"{ALGORITHM}.advantage_clip"),
    ("whiten_advantages", f"{ALGORITHM}.whiten_advantages", Default(False)),
    ("entropy_loss_coef", f"{ALGORITHM}.entropy_coef"),
    ("render_save_dir", "ajet.environment.render_save_dir"),
    ("train_env_manager.group_size", "ajet.rollout.num_repeat", Default(1)),
    ("train_env_manager.group_size_redundancy", "ajet.rollout.group_size_redundancy"),
    ("val_env_manager.group_size", f"{TRAINER}.val_pass_n", Default(1)),
    (
        "actor_train.model_args.disable_gradient_checkpointing",
        f"{TRAINER}.fsdp_config.activation_checkpointing",
        not_,
    ),
    (
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",
        "verl.rollout.gpu_memory_utilization",
    ),
)

CRITIC: tuple[Row, ...] = (
    ("reward_pretrain", f"{TRAINER}.critic.path"),
    ("critic.training_args.learning_rate", f"{TRAINER}.critic.lr", Default(5e-5)),
    ("critic.training_args.weight_decay", f"{TRAINER}.critic.weight_decay"),
    ("critic_warmup", f"{TRAINER}.critic.warmup_steps"),
)

DEFAULTS: dict[str, Any] = defaults_of(KEYS, CRITIC) | {
    "rollout_batch_size": 128,
    "val_batch_size": 128,
    "adv_estimator": "gae",
    "gamma": 1.0,
    "lambd": 0.95,
    "pg_clip": 0.2,
    "loss_agg_mode": "seq-mean-token-mean",
    "init_kl_coef": 0.2,
    "kl_horizon": 10000,
    "step_reward_gamma": 0.95,
    f"{TRAINING}.lr_scheduler_type": "linear",
    f"{TRAINING}.per_device_train_batch_size": 8,
    f"{TRAINING}.gradient_accumulation_steps": 1,
    "train_env_manager.num_env_groups": 128,
    "val_env_manager.num_env_groups": 128,
}
