"""A YAML of a Trinity-RFT explorer or trainer becomes one of ajet; no key of it is lost."""

import io
import json

import pytest
from rich.console import Console

from ajet.backbones.debug.training import fit_debug
from ajet.convert import convert, yaml_text
from ajet.core.config import load_config
from ajet.core.config.nested import flatten
from ajet.core.errors import ConfigError
from tests.convert.test_convert import left_out, loaded, written

FORM = """
project: sums
name: first
checkpoint_root_dir: kept
mode: both
continue_from_checkpoint: false
algorithm:
  algorithm_type: grpo
  repeat_times: 4
  optimizer: {lr: 3e-6, lr_warmup_steps: 5, lr_scheduler_type: cosine}
  policy_loss_fn_args: {clip_range_low: 0.2, clip_range_high: 0.28}
  kl_loss_fn_args: {kl_coef: 0.01}
model: {model_path: some/model, max_prompt_tokens: 256, max_response_tokens: 512}
cluster: {node_num: 1, gpu_per_node: 2}
buffer:
  batch_size: 16
  train_batch_size: 32
  total_steps: 50
  explorer_input:
    taskset:
      name: sums
      storage_type: file
      path: sets/sums
      subset_name: main
      split: train
      format: {prompt_key: question, response_key: answer}
      rollout_args: {temperature: 0.8}
      task_selector: {selector_type: shuffle, seed: 7}
    eval_tasksets:
    - {name: held, path: sets/sums, subset_name: main, split: test, repeat_times: 2,
       format: {prompt_key: question, response_key: answer}, rollout_args: {temperature: 0.1}}
    default_workflow_type: math_workflow
    default_reward_fn_type: accuracy_reward
  trainer_input: {experience_buffer: {name: b, storage_type: queue}}
explorer:
  runner_per_model: 6
  max_timeout: 90
  eval_interval: 10
  eval_on_startup: false
  rollout_model: {engine_type: vllm, engine_num: 2, tensor_parallel_size: 1, enforce_eager: true}
trainer: {trainer_type: verl, save_interval: 50, grad_clip: 0.5, max_token_len_per_gpu: 9000}
synchronizer: {sync_method: checkpoint, sync_interval: 4, sync_offset: 2, sync_timeout: 1200}
monitor: {monitor_type: wandb}
"""
FORM_VALUES = {
    "ajet.project_name": "sums",
    "ajet.experiment_name": "first",
    "ajet.experiment_dir": "kept/sums/first",
    "ajet.backbone": "trinity",
    "ajet.seed": 7,
    "ajet.model.path": "some/model",
    "ajet.data.train_batch_size": 16,
    "ajet.data.shuffle": True,
    "ajet.data.max_prompt_length": 256,
    "ajet.data.max_response_length": 768,
    "ajet.rollout.name": "vllm",
    "ajet.rollout.num_repeat": 4,
    "ajet.rollout.n_vllm_engine": 2,
    "ajet.rollout.temperature": 0.8,
    "ajet.rollout.max_model_len": 768,
    "ajet.rollout.max_response_length_in_one_turn": 512,
    "ajet.rollout.max_env_worker": 12,
    "ajet.rollout.episode_timeout_s": 90.0,
    "ajet.rollout.failure_policy": "retry",
    "ajet.rollout.max_retries": 2,  # Trinity-RFT's default
    "ajet.rollout.val_kwargs.temperature": 0.1,
    "ajet.rollout.user_workflow": None,
    "ajet.task_reader.type": "dataset",
    "ajet.task_reader.dataset.training": "sets/sums/main",
    "ajet.task_reader.dataset.training_split": "train",
    "ajet.task_reader.dataset.validation_split": "test",
    "ajet.task_judge.judge_protocol": "math",
    "ajet.trainer_common.total_training_steps": 50,
    "ajet.trainer_common.mini_batch_num": 2,  # 16 tasks of 4 episodes, 32 to an update
    "ajet.trainer_common.val_pass_n": 2,
    "ajet.trainer_common.val_before_train": False,
    "ajet.trainer_common.test_freq": 10,
    "ajet.trainer_common.save_freq": 25,  # 50 updates
    "ajet.data.val_max_tasks": None,
    "ajet.trainer_common.resume": "disable",
    "ajet.trainer_common.logger": ["wandb"],
    "ajet.trainer_common.n_gpus_per_node": 2,
    "ajet.trainer_common.use_kl_loss": True,
    "ajet.trainer_common.kl_loss_type": "k2",
    "ajet.trainer_common.kl_loss_coef": 0.01,
    "ajet.trainer_common.optim.lr": 3e-6,
    "ajet.trainer_common.optim.weight_decay": 0.01,
    "ajet.trainer_common.optim.grad_clip": 0.5,
    "ajet.trainer_common.optim.warmup_steps": 5,
    "ajet.trainer_common.optim.lr_schedule": "cosine",
    "ajet.trainer_common.algorithm.adv_estimator": "grpo",
    "ajet.trainer_common.algorithm.policy_loss": "ppo",
    "ajet.trainer_common.algorithm.clip_high": 0.28,
    "ajet.trainer_common.algorithm.dual_clip": 3.0,
    "ajet.trainer_common.algorithm.old_logprobs": "sampler",
    "ajet.trainer_common.algorithm.loss_agg_mode": "token-mean",
    "trinity.mode": "both",
    "trinity.trainer.max_token_len_per_gpu": 9000,
    "trinity.synchronizer.sync_method": "checkpoint",
    "trinity.synchronizer.sync_interval": 4,
    "trinity.synchronizer.sync_offset": 2,
}


def converted(tmp_path, *overrides, text=FORM):
    return convert("trinity", written(tmp_path, text), overrides)


def test_trainer_steps_of_trinity_are_updates(tmp_path):
    result = converted(tmp_path, "trainer.total_steps=41")  # two of them are a step here
    assert result.values["ajet.trainer_common.total_training_steps"] == 21
    assert any("21 steps are a few more" in line for line in result.to_do)


def test_each_value_of_trinity_is_that_of_the_source(tmp_path):
    result = converted(tmp_path)
    tree = flatten(loaded(result, tmp_path).to_dict())
    assert {key: tree[key] for key in FORM_VALUES} == FORM_VALUES
    assert set(left_out(result).values()) == {"machine"}


@pytest.mark.parametrize(
    "key",
    [
        "zzz", "algorithm.zzz", "algorithm.optimizer.zzz", "model.zzz", "buffer.zzz",
        "buffer.explorer_input.zzz", "buffer.explorer_input.taskset.zzz",
        "buffer.explorer_input.taskset.format.zzz", "explorer.rollout_model.zzz",
        "trainer.zzz", "trainer.trainer_config.actor_rollout_ref.actor.zzz", "synchronizer.zzz",
        "data_processor.experience_pipeline.operators", "explorer.auxiliary_models",
        "buffer.explorer_input.taskset.workflow_args", "stages",
    ],
)  # fmt: skip
def test_a_key_of_trinity_without_a_counterpart_is_listed(key, tmp_path):
    listed = left_out(converted(tmp_path, f"+{key}=5"))
    assert listed.get(key) in ("unknown", "algorithm")


PARTS = {
    "ppo": ("gae", "ppo", True),
    "dapo": ("grpo", "ppo", False),
    "rloo": ("rloo", "ppo", True),
    "remax": ("remax", "ppo", True),
    "reinforceplusplus": ("reinforce_plus_plus", "ppo", True),
    "gspo": ("grpo", "gspo", True),
    "cispo": ("grpo", "cispo", True),
    "sapo": ("grpo", "sapo", True),
    "topr": ("reinforce", "topr", True),
}


@pytest.mark.parametrize("kind", PARTS)
def test_an_algorithm_type_is_its_estimator_loss_and_kl(kind, tmp_path):
    result = converted(tmp_path, f"algorithm.algorithm_type={kind}")
    trainer = loaded(result, tmp_path).ajet.trainer_common
    algorithm = trainer.algorithm
    found = (algorithm.adv_estimator, algorithm.policy_loss, trainer.use_kl_loss)
    assert found == PARTS[kind]
    assert ("algorithm.algorithm_type" in left_out(result)) == (kind in ("cispo", "sapo", "topr"))


def test_a_loss_has_trinitys_own_bounds_where_none_are_written(tmp_path):
    text = FORM.replace("policy_loss_fn_args: {clip_range_low: 0.2, clip_range_high: 0.28}", "x: 1")

    def bounds(kind, *keys):
        result = converted(tmp_path, f"algorithm.algorithm_type={kind}", *keys, text=text)
        algorithm = loaded(result, tmp_path).ajet.trainer_common.algorithm
        return algorithm.clip_low, algorithm.clip_high, algorithm.loss_agg_mode

    assert bounds("grpo") == (0.2, 0.2, "token-mean")
    assert bounds("grpo", "+algorithm.policy_loss_fn_args.clip_range=0.1")[:2] == (0.1, 0.1)
    assert bounds("gspo") == (3e-4, 4e-4, "seq-mean-token-mean")
    assert bounds("cispo")[:2] == (1.0, 0.28)


@pytest.mark.parametrize(
    "kind", ["dpo", "opmd", "raft", "mix", "mix_chord", "rec", "asymre", "sppo"]
)
def test_an_algorithm_that_ajet_lacks_is_named_and_left_blank(kind, tmp_path):
    result = converted(tmp_path, f"algorithm.algorithm_type={kind}")
    assert left_out(result)["algorithm.algorithm_type"] == "algorithm"
    (tmp_path / "mine.yaml").write_text(yaml_text(result))
    with pytest.raises(ConfigError, match=r"adv_estimator is left blank"):
        load_config(tmp_path / "mine.yaml")


def test_a_limit_that_trinity_takes_from_the_model_is_a_blank(tmp_path):
    text = FORM.replace(", max_prompt_tokens: 256, max_response_tokens: 512", "")
    blanks = converted(tmp_path, text=text).blanks
    assert blanks.keys() == {"ajet.data.max_response_length", "ajet.rollout.max_model_len"}
    engine = converted(tmp_path, "+explorer.rollout_model.max_model_len=900", text=text)
    assert engine.values["ajet.rollout.max_model_len"] == 900


def test_a_workflow_and_a_reward_of_the_users_are_written_and_refused_until_they_are_files(
    tmp_path,
):
    names = "buffer.explorer_input.default_"
    result = converted(
        tmp_path, f"{names}workflow_type=my_flow", f"{names}reward_fn_type=my_reward"
    )
    assert result.values["ajet.rollout.user_workflow"] == "my_flow"
    assert result.values["ajet.task_judge.judge_protocol"] == "my_reward"
    assert any("my_flow" in text for text in result.to_do)
    assert any("my_reward" in text for text in result.to_do)


SUPERVISED = """
mode: train
algorithm: {algorithm_type: sft, optimizer: {lr: 1e-5}}
model: {model_path: m, max_model_len: 600}
buffer:
  train_batch_size: 8
  total_epochs: 2
  trainer_input:
    experience_buffer: {name: s, storage_type: file, path: sets/chat, split: train,
                        format: {prompt_type: messages, messages_key: messages}}
trainer: {save_interval: 10}
"""


def test_trinitys_sft_is_a_supervised_run_of_its_rows(tmp_path):
    result = converted(tmp_path, text=SUPERVISED)
    config = loaded(result, tmp_path)
    dataset = config.ajet.task_reader.dataset
    assert (config.ajet.kind, config.ajet.data.train_batch_size) == ("supervised", 8)
    assert (dataset.training, dataset.validation_split) == ("sets/chat", None)
    assert config.ajet.trainer_common.total_epochs == 2
    assert result.to_do == []


def test_a_kl_of_no_weight_is_none(tmp_path):
    trainer = loaded(converted(tmp_path, "algorithm.kl_loss_fn_args.kl_coef=0.0"), tmp_path)
    assert trainer.ajet.trainer_common.use_kl_loss is False


def test_names_and_places_of_earlier_versions_are_taken(tmp_path):
    optimizer = "optimizer: {lr: 3e-6, lr_warmup_steps: 5, lr_scheduler_type: cosine}"
    text = FORM.replace(optimizer, "x: 1")
    result = converted(
        tmp_path,
        "+trainer.trainer_config.actor_rollout_ref.actor.optim.lr=2e-6",
        "+synchronizer.sync_style=dynamic_by_explorer",
        text=text,
    )
    config = loaded(result, tmp_path)
    assert config.ajet.trainer_common.optim.lr == 2e-6
    assert config.trinity.synchronizer.sync_style == "explorer_driven"
    assert any("earlier versions" in each for each in result.to_do)


@pytest.mark.parametrize("mode", ["explore", "train", "bench"])
def test_a_half_of_trinity_keeps_its_mode(mode, tmp_path):
    result = converted(tmp_path, f"mode={mode}")
    assert result.values["trinity.mode"] == mode
    assert any("two commands" in text for text in result.to_do) == (mode != "bench")


def test_a_converted_yaml_of_trinity_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [
        "algorithm.algorithm_type=gspo", "algorithm.repeat_times=2",
        "algorithm.optimizer.lr=1e-3", "algorithm.optimizer.lr_warmup_steps=0",
        "model.model_path=embedded:math", "model.max_prompt_tokens=400",
        "model.max_response_tokens=48", "buffer.batch_size=2", "buffer.train_batch_size=4",
        "buffer.total_steps=2", "buffer.explorer_input.taskset.path=embedded:arithmetic",
        "~buffer.explorer_input.taskset.subset_name", "buffer.explorer_input.eval_tasksets=[]",
        "explorer.rollout_model.engine_type=null", "monitor.monitor_type=tensorboard",
    ]  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml_text(converted(tmp_path, *given)))
    config = load_config("mine.yaml", ["ajet.trainer_common.torch_threads=1"], backbone="debug")
    fit_debug(config, Console(file=io.StringIO()))
    summary = json.loads((tmp_path / "kept" / "sums" / "first" / "summary.json").read_text())
    assert summary["steps"] == 2


def test_a_list_of_task_sets_is_the_origin_of_its_values(tmp_path):
    text = FORM.replace("    taskset:\n      name", "    tasksets:\n    - name")
    text = text.replace("\n      task_selector: {selector_type: shuffle, seed: 7}", "")
    result = converted(tmp_path, text=text)
    assert result.values["ajet.task_reader.dataset.training"] == "sets/sums/main"
    assert result.origins["ajet.rollout.temperature"] == "buffer.explorer_input.tasksets"
    assert result.origins["ajet.data.shuffle"].endswith("Trinity-RFT's default")


def test_an_early_file_names_its_type_and_repeats_elsewhere(tmp_path):
    text = FORM.replace("  algorithm_type: grpo\n  repeat_times: 4\n", "")
    text = text.replace("{temperature: 0.8}", "{temperature: 0.8, n: 6, stop: [x]}")
    result = converted(tmp_path, text=f"algorithm_type: grpo\n{text}")
    assert result.values["ajet.trainer_common.algorithm.adv_estimator"] == "grpo"
    assert result.values["ajet.rollout.num_repeat"] == 6
    assert left_out(result)["buffer.explorer_input.taskset.rollout_args.stop"] == "algorithm"


TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
NO_ARGS = FORM.replace("policy_loss_fn_args: {clip_range_low: 0.2, clip_range_high: 0.28}", "x: 1")


def test_gigpo_has_trinitys_own_defaults_and_its_states_are_said(tmp_path):
    result = converted(tmp_path, "algorithm.algorithm_type=gigpo")
    algorithm = loaded(result, tmp_path).ajet.trainer_common.algorithm
    settings = (algorithm.normalize_std, algorithm.step_reward_gamma, algorithm.step_reward_weight)
    assert settings == (False, 1.0, 1.0)
    assert left_out(result)["algorithm.algorithm_type"] == "algorithm"
    given = "+algorithm.advantage_fn_args={fnorm: std, gamma: 0.9, omega: 0.5}"
    values = converted(tmp_path, "algorithm.algorithm_type=gigpo", given).values
    assert values[f"{ALGORITHM}.step_reward_gamma"] == 0.9
    assert values[f"{ALGORITHM}.step_reward_weight"] == 0.5


def test_a_kl_loss_without_a_gradient_is_said(tmp_path):
    result = converted(tmp_path, "+algorithm.kl_loss_fn=k1")
    assert left_out(result)["algorithm.kl_loss_fn"] == "algorithm"
    assert "algorithm.kl_loss_fn" not in left_out(converted(tmp_path, "+algorithm.kl_loss_fn=k2"))


ARGS_MODE = "+algorithm.policy_loss_fn_args.loss_agg_mode=seq-mean-token-sum"
SHARED_MODE = "+algorithm.loss_agg_mode=seq-mean-token-sum"


@pytest.mark.parametrize(
    ("kind", "overrides", "text", "mode", "is_said"),
    [
        ("grpo", [ARGS_MODE], FORM, "seq-mean-token-sum", True),  # 0.6 takes token-mean
        ("grpo", [ARGS_MODE, SHARED_MODE], FORM, "seq-mean-token-sum", False),
        ("grpo", [SHARED_MODE], NO_ARGS, "seq-mean-token-sum", False),
        ("grpo", [SHARED_MODE], FORM, "token-mean", True),  # PPO's own, for lack of one there
        ("gspo", [], FORM, "seq-mean-token-mean", True),  # the KL is a mean of tokens
    ],
)
def test_means_of_trinity_that_differ_are_said(kind, overrides, text, mode, is_said, tmp_path):
    result = converted(tmp_path, f"algorithm.algorithm_type={kind}", *overrides, text=text)
    assert loaded(result, tmp_path).ajet.trainer_common.algorithm.loss_agg_mode == mode
    assert any("all losses are averaged by" in line for line in result.to_do) == is_said


def test_settings_that_moved_within_trinity_are_taken(tmp_path):
    result = converted(
        tmp_path,
        "~buffer.explorer_input.taskset.task_selector",
        "+buffer.explorer_input.taskset.data_selector={selector_type: shuffle, seed: 9}",
        "+algorithm.optimizer.clip_grad=0.2",
        "+algorithm.bypass_old_logprobs=false",
        "+trainer.param_offload=true",
        "buffer.explorer_input.taskset.rollout_args.temperature=null",
        "+model.lora_configs=[{lora_rank: 4, exclude_modules: head}]",
    )
    ajet = loaded(result, tmp_path).ajet
    assert (ajet.seed, ajet.data.shuffle, ajet.rollout.temperature) == (9, True, 1.0)
    assert ajet.trainer_common.optim.grad_clip == 0.2
    assert ajet.trainer_common.optim.min_lr_ratio == 0.01  # its default, with a schedule
    assert ajet.trainer_common.algorithm.old_logprobs == "trainer"
    assert ajet.trainer_common.fsdp_config.param_offload is True
    assert left_out(result)["model.lora_configs"] == "algorithm"
    assert set(left_out(converted(tmp_path, "+trainer.critic_warmup=2")).values()) == {
        "algorithm", "machine",
    }  # fmt: skip


def test_a_folder_is_not_named_by_the_known_part_of_its_name(tmp_path):
    result = converted(tmp_path, "name=${oc.env:NAME}")
    assert "ajet.experiment_dir" not in result.values | result.blanks
