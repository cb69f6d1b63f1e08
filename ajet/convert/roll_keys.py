"""Tables of ROLL's keys: its defaults, and the key of ajet that means the same.

Not covered: keys whose values change (roll.py, roll_algorithm.py, roll_envs.py), keys without a
counterpart (roll_absent.py).
"""

from typing import Any

TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
ACTOR, ENGINE = "actor_train", "actor_infer"
TRAINING = "actor_train.training_args"
GENERATING = "actor_infer.generating_args"
PARALLEL = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"

DEFAULTS: dict[str, Any] = {
    "seed": 42,
    "max_steps": 500,
    "save_steps": 50,
    "eval_steps": 10,
    "rollout_batch_size": 128,
    "val_batch_size": 128,
    "adv_estimator": "gae",
    "gamma": 1.0,
    "lambd": 0.95,
    "pg_clip": 0.2,
    "loss_agg_mode": "seq-mean-token-mean",
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "init_kl_coef": 0.2,
    "kl_horizon": 10000,
    "whiten_advantages": False,
    "step_reward_gamma": 0.95,
    "max_grad_norm": 1.0,
    f"{TRAINING}.learning_rate": 5e-5,
    f"{TRAINING}.lr_scheduler_type": "linear",
    f"{TRAINING}.per_device_train_batch_size": 8,
    f"{TRAINING}.gradient_accumulation_steps": 1,
    "critic.training_args.learning_rate": 5e-5,
    "train_env_manager.num_env_groups": 128,
    "train_env_manager.group_size": 1,
    "val_env_manager.num_env_groups": 128,
    "val_env_manager.group_size": 1,
}

SAME = {
    "seed": "ajet.seed",
    "exp_name": "ajet.experiment_name",
    "pretrain": "ajet.model.path",
    "max_steps": f"{TRAINER}.total_training_steps",
    "save_steps": f"{TRAINER}.save_freq",
    "eval_steps": f"{TRAINER}.test_freq",
    "ppo_epochs": f"{TRAINER}.ppo_epochs",
    "use_kl_loss": f"{TRAINER}.use_kl_loss",
    "kl_loss_coef": f"{TRAINER}.kl_loss_coef",
    "max_grad_norm": f"{TRAINER}.optim.grad_clip",
    "num_nodes": f"{TRAINER}.nnodes",
    "num_gpus_per_node": f"{TRAINER}.n_gpus_per_node",
    f"{TRAINING}.learning_rate": f"{TRAINER}.optim.lr",
    f"{TRAINING}.weight_decay": f"{TRAINER}.optim.weight_decay",
    f"{TRAINING}.warmup_steps": f"{TRAINER}.optim.warmup_steps",
    "reward_clip": f"{ALGORITHM}.reward_clip",
    "advantage_clip": f"{ALGORITHM}.advantage_clip",
    "whiten_advantages": f"{ALGORITHM}.whiten_advantages",
    "entropy_loss_coef": f"{ALGORITHM}.entropy_coef",
    "render_save_dir": "ajet.environment.render_save_dir",
    "actor_infer.strategy_args.strategy_config.gpu_memory_utilization": (
        "verl.rollout.gpu_memory_utilization"
    ),
}

CRITIC = {
    "reward_pretrain": f"{TRAINER}.critic.path",
    "critic.training_args.learning_rate": f"{TRAINER}.critic.lr",
    "critic.training_args.weight_decay": f"{TRAINER}.critic.weight_decay",
    "critic_warmup": f"{TRAINER}.critic.warmup_steps",
}
