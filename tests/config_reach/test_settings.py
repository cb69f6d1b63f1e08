"""A key of the config changes exactly the settings that it is for: all settings objects are made
twice, from the defaults and with one key changed, and `TABLE` has what differs between them."""

import re
import sys
from dataclasses import fields, is_dataclass
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
from ajet.core.judge.judge import judge_client
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
SECTIONS = {"T": T, "R": R, "A": A, "V": V, "C": C}
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
        yield name, list(value) if isinstance(value, tuple) else value


LORA = {f"{T}.lora.rank": 4}
SCHEDULE = {f"{T}.optim.lr_schedule": "linear", f"{T}.total_training_steps": 7}
KL = {f"{A}.use_kl_in_reward": True}
WITH = {
    "verl": ON_VERL,
    "trinity": ON_TRINITY,
    "gpus": ON_GPUS,
    "host": HOST,
    "gae": {f"{A}.adv_estimator": "gae"},
    "lora": LORA,
    "kl": KL,
    "adaptive": KL | {f"{A}.kl_ctrl.type": "adaptive"},
    "schedule": SCHEDULE,
}
"""Keys that some rows need besides their own."""

TABLE = """\
ajet.data: max_prompt_length: 7 -> limits
R: top_p: 0.5, top_k: 7 -> train
V: top_p: 0.5, top_k: 7 -> eval
R.multi_turn: max_steps: 7 -> limits
R: episode_timeout_s: 7.0, max_wave_wait_s: 7.0, max_retries: 7, force_disable_toolcalls: true ->
    limits
ajet.context_tracker: check_drift: all -> limits
R: deterministic: false -> server
R: max_num_seqs: 7 (verl) -> server
R.agent: num_workers: 3 (verl) -> request
R.router: skew: 7, max_failed_checks: 7, health_interval_s: 0.5 (verl) -> router
R.server: python: /bin/sh (verl R.name=sglang) -> server
verl.rollout: gpu_memory_utilization: 0.25 (verl) -> server
trinity.rollout: gpu_memory_utilization: 0.25 (trinity) -> server
T: n_trainer_ranks: 2 (verl) -> request
T.fsdp_config: keep_gathered: true, reshard_after_forward: false (verl) -> sharding
A: normalize_std: false, pass_k: 3, gamma: 0.5, step_reward_gamma: 0.5, episode_reward_weight: 0.5,
    step_reward_weight: 0.5, step_baseline: none -> options
A: lam: 0.5 (gae) -> options
A.reward_normalization: grouping: tag -> shaping
A.kl_ctrl: horizon: 7 (adaptive) -> kl
A: policy_loss: sapo, clip_low: 0.5, clip_high: 0.5, sapo_tau_pos: 0.5, sapo_tau_neg: 0.5,
    entropy_coef: 0.5, dual_clip: 3.0, vespo_k_pos: 0.7, vespo_k_neg: 0.7, vespo_lambda_pos: 0.7,
    vespo_lambda_neg: 0.7, dppo_max_ratio: 0.7, cov_share: 0.7, clip_cov_low: 0.7, clip_cov_high:
    0.7, kl_cov_coef: 0.7, off_policy_mask: 0.7, loss_agg_mode: seq-mean-token-sum, old_logprobs:
    trainer -> update
A.rollout_correction: level: turn, mode: reject, upper: 3.0, lower: 0.5, combine: geometric_mean,
    normalize: true, count_rejected: false -> update.correction
T: kl_loss_coef: 0.5, kl_loss_type: k2 -> update
T.optim: lr: 0.5, weight_decay: 0.5, grad_clip: 0.5, warmup_steps: 3 -> update
T.optim: lr_schedule: cosine (T.total_training_steps=7) -> update
T.optim: min_lr_ratio: 0.5 (schedule) -> update
T.lora: alpha: 8.0 (lora) -> update.lora
T.critic: lr: 0.5, grad_clip: 0.5, weight_decay: 0.5, cliprange_value: 0.25, ppo_epochs: 3,
    mini_batch_num: 3 (gae) -> critic
trinity: partial_rollout: finish (trinity) -> explorer
ajet.task_judge: success_threshold: 0.25 -> limits
C: base_url: http://other, max_parallel: 3, timeout_s: 3.0, max_retries: 7 -> judge_client
ajet.task_reader.env_service: env_type: f (host) -> environment

ajet.experiment_name = e -> name folder=launcher_record/e
ajet.experiment_dir = d -> folder
ajet.seed = 5 (lora) -> server.seed update.lora.seed update.seed
ajet.model.dtype = float64 -> sharding.param_dtype server.dtype engine=in_process
ajet.data.train_batch_size = 8 -> batch.train_batch_size staleness.groups_per_step
    staleness.groups_ahead plan.total_steps=600
ajet.data.val_max_tasks = 3 -> plan.validation_episodes
ajet.data.max_response_length = 7 -> limits.max_response_length update.loss_scale_factor=7.0
    shaping.max_response_length
R.num_repeat = 7 -> batch.num_repeat
R.group_size_redundancy = 1 -> batch.redundancy selections=["redundancy"]
R.enable_oversample = true -> batch.oversampling=1.5 staleness.groups_per_step=48
    staleness.groups_ahead=48 selections=["oversampling"] plan.total_steps=100
R.submit_oversample_multiplier = 2.0 (R.enable_oversample=true) -> batch.oversampling
    staleness.groups_per_step=64 staleness.groups_ahead=64 plan.total_steps=75
A.dynamic_sampling.enable = true -> batch.max_rounds=4 selections=["dynamic_sampling"]
A.dynamic_sampling.max_rounds = 7 (A.dynamic_sampling.enable=true) -> batch.max_rounds
A.overlong.mask_truncated = true -> batch.mask_truncated selections=["overlong"]
ajet.distillation.kl_coef = 0.5 -> update.kl_teacher_coef
ajet.supervised.too_long = refuse (ajet.kind=supervised) -> batch.refuse_truncated=true
R.temperature = 0.5 -> update.temperature train.temperature
V.temperature = 0.3 -> eval.temperature plan.validation_episodes=40
R.max_response_length_in_one_turn = 7 -> train.max_tokens eval.max_tokens baseline.max_tokens
    limits.max_response_length_in_one_turn
R.max_env_worker = 7 -> limits.max_env_worker request.max_episodes server.max_num_seqs
R.max_model_len = 7 -> limits.max_model_len server.max_model_len
R.failure_policy = drop_group -> limits.failure_policy selections=["drop_group"]
R.max_failure_rate = 0.25 -> limits.max_failure_rate explorer.max_failure_rate
R.compute_madness_checklist = ["nonsense"] -> limits.malformed.checks=["nonsense"]
R.agent_madness_termination = false -> limits.malformed.ends_episode
R.agent_madness_reward = -0.5 -> limits.malformed.reward
R.name = vllm (verl) -> engine
R.tensor_model_parallel_size = 2 (gpus) -> server.tensor_parallel_size request.tensor_parallel
R.server.grammars = true -> server.grammars
R.n_vllm_engine = 2 (verl) -> request.n_engines
R.device_mapping = [1] (gpus) -> request.engine_devices=[1]
verl.rollout.sync_method = memory (gpus) -> weights
T.nnodes = 2 (verl) -> request.nnodes weights=nccl
T.n_gpus_per_node = 4 (verl) -> request.n_gpus_per_node weights=ipc
T.device_mapping = [1] (gpus) -> request.trainer_devices=[1]
T.ulysses_sequence_parallel_size = 2 (verl T.n_trainer_ranks=2) ->
    sharding.ulysses_sequence_parallel_size request.sequence_parallel
T.fsdp_config.param_offload = true (verl) -> sharding.cpu_offload
T.fsdp_config.activation_checkpointing = true -> update.activation_checkpointing
    critic.activation_checkpointing
T.fsdp_config.param_dtype = bfloat16 (verl) -> sharding.param_dtype server.dtype
A.adv_estimator = remax -> learner.estimator.name batch.has_baselines=true
A.reward_weights = {"r": 0.5} -> options.reward_weights.r=0.5
A.reward_normalization.method = mean_std -> shaping.normalize_std=true
A.reward_clip = 0.5 -> shaping.clip
A.advantage_clip = 0.5 -> learner.estimator.clip
A.whiten_advantages = true -> learner.estimator.whiten
A.overlong.buffer_len = 7 -> shaping.overlong_buffer
A.overlong.penalty_factor = 0.5 -> shaping.overlong_factor
A.use_kl_in_reward = true -> learner.kl_in_reward update.keep_reference
A.kl_ctrl.type = adaptive (kl) -> kl.target=0.1 kl.horizon=10000
A.kl_ctrl.kl_coef = 0.5 (kl) -> kl.coef
A.kl_ctrl.target_kl = 0.5 (adaptive) -> kl.target
A.rollout_correction.reject = {"token_k1": 0.5} -> update.correction.reject.token_k1=[-0.5, 0.5]
T.use_kl_loss = false -> update.kl_loss_coef=0.0
T.ppo_epochs = 3 (schedule) -> update.ppo_epochs update.total_steps=21
T.mini_batch_num = 3 (schedule) -> update.mini_batch_num update.total_steps=21
T.batch_layout = packed -> update.batch_layout critic.batch_layout
T.max_tokens_per_micro_batch = 99 -> update.max_tokens_per_micro_batch
    critic.max_tokens_per_micro_batch
verl.trainer.max_token_len_per_gpu = 99 (verl) -> update.max_tokens_per_micro_batch
    critic.max_tokens_per_micro_batch
trinity.trainer.max_token_len_per_gpu = 99 (trinity) -> update.max_tokens_per_micro_batch
    critic.max_tokens_per_micro_batch
T.optim.betas = [0.5, 0.75] -> update.betas=[0.5, 0.75] critic.betas=[0.5, 0.75]
T.lora.rank = 4 -> update.lora.rank update.lora.alpha=16.0 update.lora.targets=all-linear
    update.lora.seed=0 update.lora.adapters=[]
T.lora.target_modules = ["q_proj"] (lora) -> update.lora.targets=["q_proj"]
T.lora.adapters = ["pro", "con"] (lora) -> update.lora.adapters=["pro", "con"]
    server.adapters.rank=4 server.adapters.alpha=16.0 server.adapters.targets=all-linear
    server.adapters.seed=0 server.adapters.adapters=["pro", "con"]
T.critic.warmup_steps = 3 (gae) -> learner.critic_warmup_steps
T.total_epochs = 2 -> plan.total_steps=6
T.total_training_steps = 7 -> plan.total_steps update.total_steps
T.val_pass_n = 2 -> plan.validation_episodes=20
ajet.backbone = trinity -> update.correction.level=token request.colocated=false
    server.gpu_memory_utilization=0.85 weights=nccl
trinity.mode = train (trinity) -> request.generates=false weights=checkpoint
trinity.max_staleness = 3 (trinity) -> staleness.max_staleness staleness.groups_ahead=96
trinity.synchronizer.sync_method = checkpoint (trinity) -> weights
trinity.synchronizer.sync_style = trainer_driven (trinity) -> staleness.waits=false
trinity.synchronizer.sync_interval = 3 (trinity) -> staleness.max_staleness staleness.sync_interval
trinity.synchronizer.sync_offset = 2 (trinity) -> staleness.max_staleness staleness.groups_ahead=64
ajet.task_judge.judge_type = rubrics_auto_grader -> judge=rubrics_auto_grader-pointwise
ajet.task_judge.judge_protocol = math -> judge
ajet.task_judge.rubrics_auto_grader.grader_mode = listwise
    (ajet.task_judge.judge_type=rubrics_auto_grader) -> judge=rubrics_auto_grader-listwise
ajet.task_reader.env_service.env_url = http://v (host) -> environment.url
ajet.task_reader.env_service.env_action_preference = text (host) -> environment.action_preference
"""
"""A row `key = value (with) -> settings` lists all settings that change when the key is set. They
get this value, or the one after their `=`. A row `section: keys (with) -> object` has keys that
change only the setting of the same name. `T`, `R`, `A`, `V` and `C` stand for sections, `shaping`
and `options` for parts of the estimator's settings, and `batch` for an explorer's batch as well."""
ROW = re.compile(r"([\w.]+)(:| =) (.*?)(?: \(([^)]*)\))? -> (.*)")
ITEM = re.compile(r"([\w.]+)(?:=(\[.*?\]|\S+))?")


def key_of(name: str) -> str:
    short, dot, rest = name.partition(".")
    return SECTIONS.get(short, short) + dot + rest


def settings_named(name: str) -> list[str]:
    """The settings that a name of the table stands for."""
    if name.startswith(("shaping.", "options.")):
        return [f"learner.estimator.{name}"]
    return [name, f"explorer.{name}"] if name.startswith("batch.") else [name]


def rows():
    """Yields each key with its value, the keys that it needs, and the settings that then differ."""
    for line in TABLE.replace("\n    ", " ").splitlines():
        if not line:
            continue
        match = ROW.fullmatch(line)
        assert match is not None, line
        key, sign, value, words, names = match.groups()
        needed = {}
        for word in (words or "").split():
            name, _, text = word.partition("=")
            needed |= WITH[name] if name in WITH else {key_of(name): yaml.safe_load(text)}
        if sign == ":":
            for name, setting in yaml.safe_load(f"{{{value}}}").items():
                yield f"{key_of(key)}.{name}", setting, needed, {f"{names}.{name}": setting}
        else:
            value = yaml.safe_load(value)
            changes = {
                name: yaml.safe_load(text) if text else value for name, text in ITEM.findall(names)
            }
            yield key_of(key), value, needed, changes


@pytest.mark.parametrize(
    ("key", "value", "needed", "changes"), [pytest.param(*row, id=row[0]) for row in rows()]
)
def test_a_key_changes_exactly_the_settings_that_it_is_for(key, value, needed, changes):
    before = settings_of(config_of(needed))
    after = settings_of(config_of(needed | {key: value}))
    expected = {full: new for name, new in changes.items() for full in settings_named(name)}
    missing = object()
    assert {k: v for k, v in after.items() if before.get(k, missing) != v} == expected


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_validation_samples_as_training_does_where_its_setting_is_null(name):
    value = 7 if name == "top_k" else 0.5
    config = config_of({f"{R}.{name}": value, f"{V}.{name}": None})
    assert getattr(SamplingParams.from_config(config, "eval"), name) == value


def test_ranks_that_share_a_sequence_add_up_their_token_budgets():
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
def test_the_sync_style_sets_who_waits_and_how_often_weights_travel(style, waits, interval, ahead):
    sync = "trinity.synchronizer"
    given = ON_TRINITY | {f"{sync}.sync_interval": 3, f"{sync}.sync_style": style}
    bound = StalenessBound.from_config(config_of(given))
    assert bound == StalenessBound(3, 32, interval, ahead, waits)


def test_no_token_is_stale_where_trainer_and_engines_take_turns():
    given = ON_TRINITY | {"trinity.mode": "colocate"}
    assert StalenessBound.from_config(config_of(given)) == StalenessBound(0, 32)


def test_the_mode_sets_whether_a_run_trains_and_generates():
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


def test_a_supervised_run_samples_only_if_it_validates_on_tasks():
    def samples(**given):
        return ResourceRequest.from_config(config_of(ON_VERL | given)).samples

    supervised = {"ajet.kind": "supervised"}
    assert samples() and not samples(**supervised)
    assert samples(**supervised | {"ajet.supervised.validation": "tasks"})
