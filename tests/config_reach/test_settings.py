"""A key of the config changes exactly the settings that it is for: all settings objects are made
twice, from the defaults and with one key changed, and `SETTINGS` has what differs between them."""

import sys
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import pytest
import yaml

from ajet.backbones.disaggregated.explorer import ExplorerSettings
from ajet.cluster.placement import Node, ResourceRequest, place_processes
from ajet.cluster.weight_store import sync_method
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.router import RouterSettings
from ajet.core.judge import judge_spec
from ajet.core.judge.judge_client import judge_client
from ajet.core.learning.credit import make_kl_controller
from ajet.core.learning.learner import LearnerSettings
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.record.selection import selections
from ajet.core.rollout.batch import BatchSettings
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import CriticSettings, UpdateSettings
from ajet.environments.env_service.host import environment_host
from ajet.servers.serving import engine_name, server_python
from ajet.servers.settings import ServerSettings
from tests.fakes import installed

T, R = "ajet.trainer_common", "ajet.rollout"
A, V, C = f"{T}.algorithm", f"{R}.val_kwargs", "ajet.task_judge.client"
ON_GPUS = {"ajet.backbone": "verl", f"{T}.n_gpus_per_node": 8}
ON_VERL, ON_TRINITY = {"ajet.backbone": "verl"}, {"ajet.backbone": "trinity"}
HOST = {
    "ajet.task_reader.type": "env_service",
    "ajet.task_reader.env_service.env_url": "http://u",
    "ajet.task_reader.env_service.env_type": "e",
}
BASE = {"ajet.model.path": "m", "ajet.model.device": "cpu", f"{C}.base_url": "http://judge"}


def config_of(given: dict[str, Any]) -> AjetConfig:
    """The defaults, with these keys."""
    values: dict[str, Any] = {}
    for key, value in (BASE | given).items():
        *sections, name = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return AjetConfig.model_validate(values)


# --- what is made of a config --------------------------------------------------------------------


@pytest.fixture(autouse=True)
def sglang_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    installed(tmp_path, "sglang", "0.5.23")


def settings_of(config: AjetConfig) -> dict[str, Any]:
    """All settings objects of a config, field by field: ``update.lr``, ``limits.max_steps``."""
    asked = {"model_path": "m", "device": "cpu", "port": 1, "python": "p"}
    request = ResourceRequest.from_config(config)
    placed = place_processes(request, [Node("n", 8, 8)] * 2)
    made = {
        "update": UpdateSettings.from_config(config),
        "critic": CriticSettings.from_config(config),
        "sharding": ShardingSettings.from_config(config),
        "learner": LearnerSettings.from_config(config),
        "kl": vars(make_kl_controller(config.ajet.trainer_common.algorithm.kl_ctrl)),
        "limits": RolloutLimits.from_config(config),
        "batch": BatchSettings.from_config(config),
        "train": SamplingParams.from_config(config, "train"),
        "eval": SamplingParams.from_config(config, "eval"),
        "baseline": SamplingParams.from_config(config, "baseline"),
        "router": RouterSettings.from_config(config),
        "staleness": StalenessBound.from_config(config),
        "explorer": ExplorerSettings.from_config(config, 9),
        "server": ServerSettings.from_config(config, **asked),
        "server.python": server_python(config, engine="sglang", on_gpu=True),
        "engine": engine_name(config, on_gpu=True),
        "weights": sync_method(config, placed)[0],
        "request": request,
        "selections": selections(config),
        "plan.total_steps": BatchPlan(config, 96, 10).total_steps,
        "plan.validation_episodes": BatchPlan(config, 96, 10).validation_episodes,
        "judge": judge_spec(config.ajet.task_judge),
        "judge_client": vars(judge_client(config, "m")),
        "environment": vars(host) if (host := environment_host(config.ajet.task_reader)) else None,
        "name": config.experiment_name,
        "folder": str(config.run_folder),
    }
    return {key: value for name, each in made.items() for key, value in flat(name, each)}


def flat(name: str, value: Any):
    """A settings object as pairs of a dotted name and a plain value."""
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(f"{name}.{key.lstrip('_')}", inner)
    elif type(value).__module__.startswith("ajet"):  # no settings: a part with fields of its own
        yield from flat(name, vars(value))
    else:
        yield name, value


@dataclass(frozen=True)
class Row:
    """The key is set to `value` beside `given`; `changes` are all settings that then differ."""

    value: Any
    changes: dict[str, Any] | str  # or the names of those that get `value`
    given: dict[str, Any] = field(default_factory=dict)


GAE = {f"{A}.adv_estimator": "gae"}
LORA = {f"{T}.lora.rank": 4}
KL = {f"{A}.use_kl_in_reward": True}
ADAPTIVE = KL | {f"{A}.kl_ctrl.type": "adaptive"}
SCHEDULE = {f"{T}.optim.lr_schedule": "linear", f"{T}.total_training_steps": 7}
OPTIONS, SHAPING = "learner.estimator.options", "learner.estimator.shaping"
GROUPS = ("batch", "explorer.batch")
BUDGET = "update.max_tokens_per_micro_batch critic.max_tokens_per_micro_batch"


def batch(**changes):
    """The settings of a batch, which an explorer has too."""
    return {f"{name}.{key}": value for name in GROUPS for key, value in changes.items()}


SAME = [
    ("ajet.data", "limits", "max_prompt_length: 7", {}),
    (R, "train", "top_p: 0.5, top_k: 7", {}),
    (V, "eval", "top_p: 0.5, top_k: 7", {}),
    (f"{R}.multi_turn", "limits", "max_steps: 7", {}),
    (
        R,
        "limits",
        "episode_timeout_s: 7.0, max_wave_wait_s: 7.0, max_retries: 7, "
        "force_disable_toolcalls: true",
        {},
    ),
    ("ajet.context_tracker", "limits", "check_drift: all", {}),
    (R, "server", "deterministic: false", {}),
    (R, "server", "max_num_seqs: 7", ON_VERL),
    (f"{R}.agent", "request", "num_workers: 3", ON_VERL),
    (f"{R}.router", "router", "skew: 7, max_failed_checks: 7, health_interval_s: 0.5", ON_VERL),
    (f"{R}.server", "server", "python: /bin/sh", ON_VERL | {f"{R}.name": "sglang"}),
    ("verl.rollout", "server", "gpu_memory_utilization: 0.25", ON_VERL),
    ("trinity.rollout", "server", "gpu_memory_utilization: 0.25", ON_TRINITY),
    (T, "request", "n_trainer_ranks: 2", ON_VERL),
    (f"{T}.fsdp_config", "sharding", "keep_gathered: true, reshard_after_forward: false", ON_VERL),
    (
        A,
        OPTIONS,
        "normalize_std: false, pass_k: 3, gamma: 0.5, step_reward_gamma: 0.5, "
        "episode_reward_weight: 0.5, step_reward_weight: 0.5, step_baseline: none",
        {},
    ),
    (A, OPTIONS, "lam: 0.5", GAE),
    (f"{A}.reward_normalization", SHAPING, "grouping: tag", {}),
    (f"{A}.kl_ctrl", "kl", "horizon: 7", ADAPTIVE),
    (
        A,
        "update",
        "policy_loss: sapo, clip_low: 0.5, clip_high: 0.5, sapo_tau_pos: 0.5, sapo_tau_neg: "
        "0.5, entropy_coef: 0.5, dual_clip: 3.0, vespo_k_pos: 0.7, vespo_k_neg: 0.7, "
        "vespo_lambda_pos: 0.7, vespo_lambda_neg: 0.7, dppo_max_ratio: 0.7, cov_share: 0.7, "
        "clip_cov_low: 0.7, clip_cov_high: 0.7, kl_cov_coef: 0.7, off_policy_mask: 0.7, "
        "loss_agg_mode: seq-mean-token-sum, old_logprobs: trainer",
        {},
    ),
    (
        f"{A}.rollout_correction",
        "update.correction",
        "level: turn, mode: reject, upper: 3.0, lower: 0.5, combine: geometric_mean, "
        "normalize: true, count_rejected: false",
        {},
    ),
    (T, "update", "kl_loss_coef: 0.5, kl_loss_type: k2", {}),
    (f"{T}.optim", "update", "lr: 0.5, weight_decay: 0.5, grad_clip: 0.5, warmup_steps: 3", {}),
    (f"{T}.optim", "update", "lr_schedule: cosine", {f"{T}.total_training_steps": 7}),
    (f"{T}.optim", "update", "min_lr_ratio: 0.5", SCHEDULE),
    (f"{T}.lora", "update.lora", "alpha: 8.0", LORA),
    (
        f"{T}.critic",
        "critic",
        "lr: 0.5, grad_clip: 0.5, weight_decay: 0.5, cliprange_value: 0.25, ppo_epochs: 3, "
        "mini_batch_num: 3",
        GAE,
    ),
    ("trinity", "explorer", "partial_rollout: finish", ON_TRINITY),
    ("ajet.task_judge", "limits", "success_threshold: 0.25", {}),
    (
        C,
        "judge_client",
        "base_url: http://other, max_parallel: 3, timeout_s: 3.0, max_retries: 7",
        {},
    ),
    ("ajet.task_reader.env_service", "environment", "env_type: f", HOST),
]
"""Keys with the name of their setting: section, settings object, values, other keys."""

SETTINGS: dict[str, Row] = {
    **{
        f"{section}.{name}": Row(value, f"{settings}.{name}", given)
        for section, settings, values, given in SAME
        for name, value in yaml.safe_load(f"{{{values}}}").items()
    },
    "ajet.experiment_name": Row("e", {"name": "e", "folder": "launcher_record/e"}),
    "ajet.experiment_dir": Row("d", "folder"),
    "ajet.seed": Row(5, "server.seed update.lora.seed update.seed", LORA),
    "ajet.model.dtype": Row(
        "float64",
        {"sharding.param_dtype": "float64", "server.dtype": "float64", "engine": "in_process"},
    ),
    # Batches.
    "ajet.data.train_batch_size": Row(
        8,
        batch(train_batch_size=8)
        | {"staleness.groups_per_step": 8, "staleness.groups_ahead": 8}
        | {"plan.total_steps": 600},
    ),
    "ajet.data.val_max_tasks": Row(3, "plan.validation_episodes"),
    "ajet.data.max_response_length": Row(
        7,
        {
            "limits.max_response_length": 7,
            "update.loss_scale_factor": 7.0,
            f"{SHAPING}.max_response_length": 7,
        },
    ),
    f"{R}.num_repeat": Row(7, batch(num_repeat=7)),
    f"{R}.group_size_redundancy": Row(1, batch(redundancy=1) | {"selections": ["redundancy"]}),
    f"{R}.enable_oversample": Row(
        True,
        batch(oversampling=1.5)
        | {"staleness.groups_per_step": 48, "staleness.groups_ahead": 48}
        | {"selections": ["oversampling"], "plan.total_steps": 100},
    ),
    f"{R}.submit_oversample_multiplier": Row(
        2.0,
        batch(oversampling=2.0)
        | {"staleness.groups_per_step": 64, "staleness.groups_ahead": 64}
        | {"plan.total_steps": 75},
        {f"{R}.enable_oversample": True},
    ),
    f"{A}.dynamic_sampling.enable": Row(
        True, batch(max_rounds=4) | {"selections": ["dynamic_sampling"]}
    ),
    f"{A}.dynamic_sampling.max_rounds": Row(
        7, batch(max_rounds=7), {f"{A}.dynamic_sampling.enable": True}
    ),
    f"{A}.overlong.mask_truncated": Row(
        True, batch(mask_truncated=True) | {"selections": ["overlong"]}
    ),
    "ajet.distillation.kl_coef": Row(0.5, "update.kl_teacher_coef"),
    "ajet.supervised.too_long": Row(
        "refuse", batch(refuse_truncated=True), {"ajet.kind": "supervised"}
    ),
    # Sampling.
    f"{R}.temperature": Row(0.5, "update.temperature train.temperature"),
    f"{V}.temperature": Row(0.3, {"eval.temperature": 0.3, "plan.validation_episodes": 40}),
    f"{R}.max_response_length_in_one_turn": Row(
        7,
        "train.max_tokens eval.max_tokens baseline.max_tokens"
        " limits.max_response_length_in_one_turn",
    ),
    # Episodes.
    f"{R}.max_env_worker": Row(7, "limits.max_env_worker request.max_episodes server.max_num_seqs"),
    f"{R}.max_model_len": Row(7, "limits.max_model_len server.max_model_len"),
    f"{R}.failure_policy": Row(
        "drop_group", {"limits.failure_policy": "drop_group", "selections": ["drop_group"]}
    ),
    f"{R}.max_failure_rate": Row(0.25, "limits.max_failure_rate explorer.max_failure_rate"),
    f"{R}.compute_madness_checklist": Row(["nonsense"], {"limits.malformed.checks": ("nonsense",)}),
    f"{R}.agent_madness_termination": Row(False, "limits.malformed.ends_episode"),
    f"{R}.agent_madness_reward": Row(-0.5, "limits.malformed.reward"),
    # Engines.
    f"{R}.name": Row("vllm", "engine", ON_VERL),
    f"{R}.tensor_model_parallel_size": Row(
        2, "server.tensor_parallel_size request.tensor_parallel", ON_GPUS
    ),
    f"{R}.n_vllm_engine": Row(2, "request.n_engines", ON_VERL),
    f"{R}.device_mapping": Row([1], {"request.engine_devices": (1,)}, ON_GPUS),
    "verl.rollout.sync_method": Row("memory", "weights", ON_GPUS),
    # Processes.
    f"{T}.nnodes": Row(2, {"request.nnodes": 2, "weights": "nccl"}, ON_VERL),
    f"{T}.n_gpus_per_node": Row(4, {"request.n_gpus_per_node": 4, "weights": "ipc"}, ON_VERL),
    f"{T}.device_mapping": Row([1], {"request.trainer_devices": (1,)}, ON_GPUS),
    f"{T}.ulysses_sequence_parallel_size": Row(
        2,
        "sharding.ulysses_sequence_parallel_size request.sequence_parallel",
        ON_VERL | {f"{T}.n_trainer_ranks": 2},
    ),
    f"{T}.fsdp_config.param_offload": Row(True, "sharding.cpu_offload", ON_VERL),
    f"{T}.fsdp_config.activation_checkpointing": Row(
        True, "update.activation_checkpointing critic.activation_checkpointing"
    ),
    f"{T}.fsdp_config.param_dtype": Row("bfloat16", "sharding.param_dtype server.dtype", ON_VERL),
    # Advantages.
    f"{A}.adv_estimator": Row(
        "remax",
        {"learner.estimator.name": "remax"} | {f"{name}.has_baselines": True for name in GROUPS},
    ),
    f"{A}.reward_weights": Row({"r": 0.5}, {f"{OPTIONS}.reward_weights.r": 0.5}),
    f"{A}.reward_normalization.method": Row("mean_std", {f"{SHAPING}.normalize_std": True}),
    f"{A}.reward_clip": Row(0.5, {f"{SHAPING}.clip": 0.5}),
    f"{A}.advantage_clip": Row(0.5, "learner.estimator.clip"),
    f"{A}.whiten_advantages": Row(True, "learner.estimator.whiten"),
    f"{A}.overlong.buffer_len": Row(7, {f"{SHAPING}.overlong_buffer": 7}),
    f"{A}.overlong.penalty_factor": Row(0.5, {f"{SHAPING}.overlong_factor": 0.5}),
    f"{A}.use_kl_in_reward": Row(True, "learner.kl_in_reward update.keep_reference"),
    f"{A}.kl_ctrl.type": Row("adaptive", {"kl.target": 0.1, "kl.horizon": 10000}, KL),
    f"{A}.kl_ctrl.kl_coef": Row(0.5, "kl.coef", KL),
    f"{A}.kl_ctrl.target_kl": Row(0.5, "kl.target", ADAPTIVE),
    # The update.
    f"{A}.rollout_correction.reject": Row(
        {"token_k1": 0.5}, {"update.correction.reject.token_k1": (-0.5, 0.5)}
    ),
    f"{T}.use_kl_loss": Row(False, {"update.kl_loss_coef": 0.0}),
    f"{T}.ppo_epochs": Row(3, {"update.ppo_epochs": 3, "update.total_steps": 21}, SCHEDULE),
    f"{T}.mini_batch_num": Row(3, {"update.mini_batch_num": 3, "update.total_steps": 21}, SCHEDULE),
    f"{T}.batch_layout": Row("packed", "update.batch_layout critic.batch_layout"),
    f"{T}.max_tokens_per_micro_batch": Row(99, BUDGET),
    "verl.trainer.max_token_len_per_gpu": Row(99, BUDGET, ON_VERL),
    "trinity.trainer.max_token_len_per_gpu": Row(99, BUDGET, ON_TRINITY),
    f"{T}.optim.betas": Row(
        [0.5, 0.75], {"update.betas": (0.5, 0.75), "critic.betas": (0.5, 0.75)}
    ),
    f"{T}.lora.rank": Row(
        4,
        {
            "update.lora.rank": 4,
            "update.lora.alpha": 16.0,
            "update.lora.targets": "all-linear",
            "update.lora.seed": 0,
            "update.lora.adapters": (),
        },
    ),
    f"{T}.lora.target_modules": Row(["q_proj"], {"update.lora.targets": ("q_proj",)}, LORA),
    f"{T}.lora.adapters": Row(
        ["pro", "con"],
        {
            "update.lora.adapters": ("pro", "con"),
            "server.adapters.rank": 4,
            "server.adapters.alpha": 16.0,
            "server.adapters.targets": "all-linear",
            "server.adapters.seed": 0,
            "server.adapters.adapters": ("pro", "con"),
        },
        LORA,
    ),
    f"{T}.critic.warmup_steps": Row(3, "learner.critic_warmup_steps", GAE),
    # The run.
    f"{T}.total_epochs": Row(2, {"plan.total_steps": 6}),
    f"{T}.total_training_steps": Row(7, "plan.total_steps update.total_steps"),
    f"{T}.val_pass_n": Row(2, {"plan.validation_episodes": 20}),
    # Backbone trinity.
    "ajet.backbone": Row(
        "trinity",
        {
            "update.correction.level": "token",
            "request.colocated": False,
            "server.gpu_memory_utilization": 0.85,
            "weights": "nccl",
        },
    ),
    "trinity.mode": Row("train", {"request.generates": False, "weights": "checkpoint"}, ON_TRINITY),
    "trinity.max_staleness": Row(
        3, {"staleness.max_staleness": 3, "staleness.groups_ahead": 96}, ON_TRINITY
    ),
    "trinity.synchronizer.sync_method": Row("checkpoint", "weights", ON_TRINITY),
    "trinity.synchronizer.sync_style": Row(
        "trainer_driven", {"staleness.waits": False}, ON_TRINITY
    ),
    "trinity.synchronizer.sync_interval": Row(
        3, "staleness.max_staleness staleness.sync_interval", ON_TRINITY
    ),
    "trinity.synchronizer.sync_offset": Row(
        2, {"staleness.max_staleness": 2, "staleness.groups_ahead": 64}, ON_TRINITY
    ),
    # The judge.
    "ajet.task_judge.judge_type": Row(
        "rubrics_auto_grader", {"judge": "rubrics_auto_grader-pointwise"}
    ),
    "ajet.task_judge.judge_protocol": Row("math", "judge"),
    "ajet.task_judge.rubrics_auto_grader.grader_mode": Row(
        "listwise",
        {"judge": "rubrics_auto_grader-listwise"},
        {"ajet.task_judge.judge_type": "rubrics_auto_grader"},
    ),
    # The environment service.
    "ajet.task_reader.env_service.env_url": Row("http://v", "environment.url", HOST),
    "ajet.task_reader.env_service.env_action_preference": Row(
        "text", "environment.action_preference", HOST
    ),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_key_changes_exactly_the_settings_that_it_is_for(key):
    row = SETTINGS[key]
    before = settings_of(config_of(row.given))
    after = settings_of(config_of(row.given | {key: row.value}))
    changes = row.changes
    if isinstance(changes, str):
        changes = dict.fromkeys(changes.split(), row.value)
    missing = object()
    assert {k: v for k, v in after.items() if before.get(k, missing) != v} == changes


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_validation_without_a_setting_of_its_own_samples_as_training_does(name):
    value = 7 if name == "top_k" else 0.5
    config = config_of({f"{R}.{name}": value, f"{V}.{name}": None})
    assert getattr(SamplingParams.from_config(config, "eval"), name) == value


def test_a_budget_of_a_backbone_is_had_by_each_rank_that_shares_a_sequence():
    given = {"verl.trainer.max_token_len_per_gpu": 99, f"{T}.ulysses_sequence_parallel_size": 2}
    settings = UpdateSettings.from_config(config_of(ON_VERL | given))
    assert settings.max_tokens_per_micro_batch == 198


@pytest.mark.parametrize(
    ("style", "waits", "interval", "ahead"),
    [
        ("fixed", True, 3, 32),
        ("explorer_driven", True, 3, 32),
        ("trainer_driven", False, 3, 32),
        ("fully_async", False, 1, 96),
    ],
)
def test_the_style_says_who_waits_and_how_often_weights_travel(style, waits, interval, ahead):
    sync = "trinity.synchronizer"
    given = ON_TRINITY | {f"{sync}.sync_interval": 3, f"{sync}.sync_style": style}
    bound = StalenessBound.from_config(config_of(given))
    assert bound == StalenessBound(3, 32, interval, ahead, waits)


def test_taking_turns_leaves_no_token_stale():
    given = ON_TRINITY | {"trinity.mode": "colocate"}
    assert StalenessBound.from_config(config_of(given)) == StalenessBound(0, 32)


def test_who_computes_on_the_cpu_asks_for_no_gpu():
    def gpus(device, asked):
        given = ON_VERL | {"ajet.model.device": device, f"{T}.n_gpus_per_node": asked}
        return ResourceRequest.from_config(config_of(given)).n_gpus_per_node

    assert [gpus("cpu", "auto"), gpus("auto", "auto"), gpus("cpu", 2)] == [0, "auto", 2]


def test_who_trains_and_who_generates_follows_from_the_mode():
    def roles(mode):
        needs = ResourceRequest.from_config(config_of(ON_TRINITY | {"trinity.mode": mode}))
        return needs.trains, needs.generates

    assert {mode: roles(mode) for mode in ("both", "train", "explore", "bench", "serve")} == {
        "both": (True, True),
        "train": (True, False),
        "explore": (False, True),
        "bench": (False, True),
        "serve": (False, True),
    }


def test_a_supervised_run_samples_where_it_validates_on_tasks():
    def samples(**given):
        return ResourceRequest.from_config(config_of(ON_VERL | given)).samples

    supervised = {"ajet.kind": "supervised"}
    assert samples() and not samples(**supervised)
    assert samples(**supervised | {"ajet.supervised.validation": "tasks"})


def test_a_baseline_is_greedy_whatever_the_sampling():
    given = {f"{R}.temperature": 0.5, f"{R}.top_p": 0.5, f"{R}.top_k": 7}
    drawn = SamplingParams.from_config(config_of(given), "baseline")
    assert (drawn.temperature, drawn.top_p, drawn.top_k) == (0.0, 1.0, -1)
