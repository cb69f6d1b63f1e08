"""Another system's config becomes one of ours that loads, and every key of it is answered for."""

import math
import sys
from pathlib import Path

import pytest

from ajet.cluster.placement import Node, ResourceRequest, place_processes
from ajet.compat.verl_reward import RewardFunctionJudge
from ajet.convert import Conversion, convert, yaml_text
from ajet.convert.command_line import override_value
from ajet.convert.roll import device_numbers
from ajet.convert.roll_envs import one_group
from ajet.convert.source import read_file
from ajet.core.config import AjetConfig, load_config
from ajet.core.config.nested import flatten
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from ajet.core.judge import make_judge

SOURCES = Path(__file__).parents[1] / "data" / "convert"
LAKE = SOURCES / "roll" / "lake" / "lake_grpo.yaml"
TOOLS = SOURCES / "verl" / "gsm8k_tool_agent.yaml"
PPO = SOURCES / "verl" / "ppo.yaml"
GRAPH = SOURCES / "chatlearn" / "train_agent.yaml"
GRPO = SOURCES / "chatlearn" / "grpo_fsdp.yaml"
MATH = SOURCES / "agentjet" / "math_agent.yaml"
VERL = Path(sys.prefix) / "references/verl/trainer/config/_generated_ppo_trainer.yaml"
ALL = [
    ("roll", LAKE), ("verl", TOOLS), ("verl", PPO), ("chatlearn", GRAPH), ("chatlearn", GRPO),
    ("agentjet", MATH),
]  # fmt: skip

LAKE_VALUES = {
    "ajet.seed": 7,
    "ajet.experiment_name": "lake_grpo",
    "ajet.experiment_dir": "./output/lake_grpo",
    "ajet.model.path": "Qwen/Qwen2.5-0.5B-Instruct",
    "ajet.task_reader.type": "environment",
    "ajet.data.train_batch_size": 32,  # 256 trajectories in groups of 8
    "ajet.rollout.num_repeat": 8,
    "ajet.rollout.group_size_redundancy": 1,
    "ajet.rollout.max_env_worker": 288,  # 32 groups of 8 and 1
    "ajet.rollout.max_model_len": 4096,
    "ajet.rollout.max_response_length_in_one_turn": 128,
    "ajet.rollout.temperature": 0.99,
    "ajet.rollout.top_p": 0.99,
    "ajet.rollout.top_k": 100,
    "ajet.rollout.val_kwargs.temperature": None,  # ROLL validates as it trains
    "ajet.trainer_common.total_training_steps": 200,
    "ajet.trainer_common.save_freq": 100,
    "ajet.trainer_common.test_freq": 10,
    "ajet.trainer_common.resume": "disable",
    "ajet.trainer_common.val_pass_n": 1,
    "ajet.trainer_common.mini_batch_num": 4,  # 2 rows, 8 times, on 8 GPUs in pairs: 64 of 256
    "ajet.trainer_common.optim.lr": 2e-6,
    "ajet.trainer_common.optim.warmup_steps": 10,
    "ajet.trainer_common.optim.lr_schedule": "cosine",
    "ajet.trainer_common.use_kl_loss": False,  # ROLL's default, ours is another
    "ajet.trainer_common.algorithm.adv_estimator": "grpo",
    "ajet.trainer_common.algorithm.normalize_std": True,
    "ajet.trainer_common.algorithm.whiten_advantages": True,
    "ajet.trainer_common.algorithm.advantage_clip": 0.2,
    "ajet.trainer_common.algorithm.clip_high": 0.2,
    "ajet.trainer_common.algorithm.dual_clip": 1.4,  # 1 + 2 * 0.2
    "ajet.trainer_common.algorithm.loss_agg_mode": "seq-mean-token-mean",
    "ajet.environment.render_save_dir": "./output/render",
    "ajet.environment.train_env_manager.tags": ["Lake", "LakeThink"],
    "ajet.environment.train_env_manager.num_groups_partition": [24, 8],
    "ajet.environment.train_env_manager.format_penalty": 0.0,  # which ROLL reads nowhere
    "ajet.environment.val_env_manager.num_env_groups": 64,
    "ajet.environment.val_env_manager.tags": ["Lake", "Boxes"],
    "ajet.environment.custom_envs.Lake.format_penalty": -0.01,
    "ajet.trainer_common.device_mapping": [0, 1, 2, 3, 4, 5, 6, 7],
    "ajet.trainer_common.fsdp_config.activation_checkpointing": True,
    "ajet.rollout.device_mapping": [0, 1, 2, 3, 4, 5, 6, 7],
    "ajet.rollout.n_vllm_engine": 8,
    "trinity.mode": "colocate",  # trainer and engines share their GPUs, and it is asynchronous
    "trinity.max_staleness": 1,
    "verl.rollout.gpu_memory_utilization": 0.8,
}
TOOLS_VALUES = {
    "ajet.model.path": "Qwen/Qwen2.5-3B-Instruct",
    "ajet.project_name": "gsm8k_tool_agent",
    "ajet.task_reader.type": "dataset",
    "ajet.task_reader.dataset.training": "~/data/gsm8k/train.parquet",
    "ajet.task_reader.dataset.validation": "~/data/gsm8k/test.parquet",
    "ajet.task_judge.judge_protocol": "math",
    "ajet.data.train_batch_size": 256,
    "ajet.data.max_prompt_length": 1024,
    "ajet.data.max_response_length": 2048,
    "ajet.rollout.user_workflow": "tool_agent",
    "ajet.rollout.name": "sglang",
    "ajet.rollout.num_repeat": 16,
    "ajet.rollout.temperature": 1.0,
    "ajet.rollout.max_model_len": 3072,
    "ajet.rollout.tool_parser": "hermes",
    "ajet.rollout.tensor_model_parallel_size": 2,
    "ajet.rollout.multi_turn.tool_config_path": "./tools.yaml",
    "ajet.rollout.multi_turn.max_assistant_turns": 5,
    "ajet.rollout.multi_turn.max_parallel_calls": 1,
    "ajet.rollout.multi_turn.max_tool_response_length": 64,  # 256 characters
    "ajet.trainer_common.mini_batch_num": 4,
    "ajet.trainer_common.optim.warmup_steps": 20,  # 5 steps of 4 mini-batches
    "ajet.trainer_common.optim.weight_decay": 0.01,
    "ajet.trainer_common.val_pass_n": 1,
    "ajet.trainer_common.val_before_train": False,
    "ajet.trainer_common.logger": ["console", "mlflow"],
    "ajet.trainer_common.use_kl_loss": True,
    "ajet.trainer_common.kl_loss_type": "low_var_kl",
    "ajet.trainer_common.fsdp_config.param_offload": False,
    "ajet.trainer_common.algorithm.adv_estimator": "grpo",
    "ajet.trainer_common.algorithm.clip_high": 0.28,
    "ajet.trainer_common.algorithm.dual_clip": 3.0,
    "ajet.trainer_common.algorithm.loss_agg_mode": "seq-mean-token-sum",
    "ajet.trainer_common.algorithm.dynamic_sampling.enable": True,
    "ajet.trainer_common.algorithm.dynamic_sampling.max_rounds": 3,
    "ajet.trainer_common.algorithm.rollout_correction.level": "token",
    "ajet.trainer_common.algorithm.rollout_correction.mode": "reject",
    "ajet.trainer_common.algorithm.rollout_correction.lower": 0.5,
    "ajet.trainer_common.algorithm.rollout_correction.upper": 5.0,
    "verl.rollout.gpu_memory_utilization": 0.5,
}
PPO_VALUES = {
    "ajet.experiment_name": "ppo_math",  # an interpolation
    "ajet.task_reader.type": "dataset",
    "ajet.task_reader.dataset.training": "data/math/train.jsonl",
    "ajet.task_reader.dataset.validation": "held_out/test.jsonl",
    "ajet.data.val_max_tasks": 64,
    "ajet.trainer_common.algorithm.adv_estimator": "gae",  # verl's default
    "ajet.trainer_common.algorithm.lam": 0.95,
    "ajet.trainer_common.algorithm.use_kl_in_reward": True,
    "ajet.trainer_common.algorithm.kl_ctrl.type": "adaptive",
    "ajet.trainer_common.algorithm.kl_ctrl.target_kl": 0.05,
    "ajet.trainer_common.algorithm.overlong.buffer_len": 256,
    "ajet.trainer_common.algorithm.overlong.penalty_factor": 0.5,
    "ajet.trainer_common.critic.path": "Qwen/Qwen2.5-0.5B-Instruct",
    "ajet.trainer_common.critic.cliprange_value": 0.4,
    "ajet.trainer_common.critic.mini_batch_num": 4,
    "ajet.trainer_common.critic.warmup_steps": 4,
    "ajet.trainer_common.ppo_epochs": 2,
    "ajet.trainer_common.mini_batch_num": 2,
    "ajet.trainer_common.lora.rank": 16,
    "ajet.trainer_common.lora.alpha": 32.0,
    "ajet.trainer_common.resume": "checkpoints/global_step_10",
    "ajet.trainer_common.val_before_train": True,
}
GRAPH_VALUES = {
    "ajet.experiment_name": "agent_math",
    "ajet.model.path": "Qwen/Qwen3-8B",
    "ajet.task_reader.dataset.training": "./dataset/MATH-lighteval/train_agent.json",
    "ajet.task_reader.dataset.validation": "./dataset/MATH-lighteval/test_agent.json",
    "ajet.data.train_batch_size": 128,  # 2048 answers, 16 to a prompt
    "ajet.data.max_prompt_length": 1024,
    "ajet.rollout.max_response_length_in_one_turn": 2048,  # of a call
    "ajet.rollout.name": "sglang",
    "ajet.rollout.num_repeat": 16,
    "ajet.rollout.val_kwargs.temperature": 0.6,
    "ajet.rollout.val_kwargs.top_k": 20,
    "ajet.trainer_common.total_training_steps": 200,
    "ajet.trainer_common.mini_batch_num": 2,
    "ajet.trainer_common.test_freq": 5,
    "ajet.trainer_common.save_freq": 50,  # the YAML's, which the script does not change
    "ajet.trainer_common.logger": ["wandb"],
    "ajet.trainer_common.optim.lr": 3e-6,
    "ajet.trainer_common.optim.betas": [0.9, 0.95],
    "ajet.trainer_common.use_kl_loss": True,
    "ajet.trainer_common.kl_loss_coef": 0.01,
    "ajet.trainer_common.algorithm.clip_high": 0.28,
    "ajet.trainer_common.algorithm.dual_clip": 3.0,
}
GRPO_VALUES = {
    "ajet.data.train_batch_size": 16,  # 512 answers, 32 to a prompt
    "ajet.trainer_common.mini_batch_num": 1,
    "ajet.trainer_common.use_kl_loss": False,  # kl_coef is 0
    "ajet.trainer_common.n_gpus_per_node": 2,
    "ajet.trainer_common.optim.lr": 2e-6,  # 2e-6 is a text in YAML 1.1
    "ajet.rollout.max_model_len": 2048,
}
MATH_VALUES = {
    "ajet.backbone": "verl",
    "ajet.data.train_batch_size": 264,
    "ajet.rollout.user_workflow": "workflow.py->MathAgentWorkflow",
    "ajet.rollout.n_vllm_engine": 2,
    "ajet.trainer_common.val_pass_n": 2,
    "ajet.trainer_common.lora.rank": 8,
    "ajet.trainer_common.lora.alpha": 16.0,
    "ajet.trainer_common.optim.warmup_steps": 3,
    "ajet.trainer_common.algorithm.clip_high": 0.2,
    "verl.rollout.gpu_memory_utilization": 0.85,
    "trinity.trainer.max_token_len_per_gpu": 13000,
}
PINNED = [
    ("roll", LAKE, LAKE_VALUES),
    ("verl", TOOLS, TOOLS_VALUES),
    ("verl", PPO, PPO_VALUES),
    ("chatlearn", GRAPH, GRAPH_VALUES),
    ("chatlearn", GRPO, GRPO_VALUES),
    ("agentjet", MATH, MATH_VALUES),
]


def loaded(result: Conversion, folder: Path) -> AjetConfig:
    """The written YAML, as a run reads it once its blanks are filled."""
    file = folder / "converted.yaml"
    file.write_text(yaml_text(result), encoding="utf-8")
    names = {"adv_estimator": "grpo", "policy_loss": "ppo"}
    filled = {key: names.get(key.rpartition(".")[2], 9000) for key in result.blanks}
    return load_config(file, [f"{key}={value}" for key, value in filled.items()])


def written(folder: Path, text: str, name: str = "source.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def left_out(result: Conversion) -> dict[str, str]:
    return {each.key: each.category for each in result.left_out}


@pytest.mark.parametrize(("system", "source", "values"), PINNED, ids=lambda each: str(each)[-20:])
def test_each_value_is_that_of_the_source(system, source, values, tmp_path):
    tree = flatten(loaded(convert(system, source), tmp_path).to_dict())
    assert {key: tree[key] for key in values} == values


UNKNOWN = [
    ("roll", LAKE, "zzz"),
    ("roll", LAKE, "actor_train.zzz"),
    ("roll", LAKE, "actor_train.training_args.learning_rat"),
    ("roll", LAKE, "actor_infer.generating_args.temprature"),
    ("roll", LAKE, "train_env_manager.zzz"),
    ("verl", PPO, "zzz"),
    ("verl", PPO, "data.zzz"),
    ("verl", PPO, "actor_rollout_ref.zzz"),
    ("verl", PPO, "actor_rollout_ref.model.zzz"),
    ("verl", PPO, "actor_rollout_ref.actor.clip_ration_high"),
    ("verl", PPO, "actor_rollout_ref.rollout.temprature"),
    ("verl", PPO, "actor_rollout_ref.rollout.multi_turn.zzz"),
    ("verl", PPO, "algorithm.adv_estimater"),
    ("verl", PPO, "critic.zzz"),
    ("verl", PPO, "trainer.zzz"),
    ("verl", TOOLS, "trainer.zzz"),
    ("chatlearn", GRAPH, "runtime_args.zzz"),
    ("chatlearn", GRAPH, "models.policy.zzz"),
    ("chatlearn", GRAPH, "models.policy_trainer.zzz"),
    ("chatlearn", GRAPH, "models.zzz.num_gpu"),
    ("agentjet", MATH, "ajet.zzz"),
    ("agentjet", MATH, "ajet.rollout.temprature"),
    ("agentjet", MATH, "trinity.trainer.zzz"),
]


@pytest.mark.parametrize(("system", "source", "key"), UNKNOWN, ids=lambda each: str(each)[-20:])
def test_a_key_that_nobody_knows_is_listed(system, source, key):
    result = convert(system, source, [f"+{key}=5"])
    assert left_out(result)[key] == "unknown"
    assert f"{key} = 5" in yaml_text(result).replace("\n#     ", " ")
    assert result.changes_the_algorithm


ALGORITHM = [
    ("roll", LAKE, "pg_variant=kimi15"),
    ("roll", LAKE, "adv_estimator=agentic_reinforce"),
    ("roll", LAKE, "actor_infer.generating_args.stop_strings=[x]"),
    ("roll", LAKE, "reward_normalization.method=asym_clip"),
    ("roll", LAKE, "adv_estimator=gigpo"),
    ("roll", LAKE, "loss_agg_mode=seq-mean-token-sum-norm"),
    ("roll", LAKE, "force_disable_old_logprobs_recompute=true"),
    ("roll", LAKE, "train_infer_correction={is_weight: {enabled: true, upper_bound: null}}"),
    ("roll", LAKE, "custom_envs.Lake.zzz=5"),
    ("roll", LAKE, "custom_envs.Lake.env_config.zzz=5"),
    ("roll", LAKE, "custom_envs.Boxes.env_config.dim_x=6"),
    ("roll", LAKE, "custom_envs.Lake.env_manager_cls=a.StepConcatEnvManager"),
    ("verl", PPO, "algorithm.adv_estimator=optimal_token_baseline"),
    ("verl", PPO, "algorithm.adv_estimator=gdpo"),
    ("verl", PPO, "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov"),
    ("verl", PPO, "actor_rollout_ref.actor.loss_agg_mode=token-sum"),
    ("verl", PPO, "actor_rollout_ref.actor.kl_loss_type=full"),
    ("roll", LAKE, "actor_train.pg_variant=topr"),
    ("roll", LAKE, "actor_train.worker_cls=mine.ActorWorker"),
    ("roll", LAKE, "actor_train.cispo_use_unified_mask=true"),
    ("verl", PPO, "algorithm.rollout_correction.rollout_rs=token_k4"),
    ("verl", PPO, "algorithm.rollout_correction.rollout_rs=token_k1"),  # without its threshold
    ("verl", PPO, "reward_model.enable=True"),
    ("verl", PPO, "distillation.enabled=True"),
    ("verl", PPO, "data.train_files=[a.parquet,b.parquet]"),
    ("chatlearn", GRAPH, "runtime_args.use_partial_rollout=True"),
    ("chatlearn", GRAPH, "models.policy.repetition_penalty=1.2"),
    ("chatlearn", GRPO, "models.policy_trainer.final_clip_ratio=2"),
    ("agentjet", MATH, "ajet.trainer_common.optim.lr_scheduler_type=cosine"),  # no number of steps
    ("verl", PPO, "actor_rollout_ref.actor.optim.lr_scheduler_type=wsd"),
    ("verl", PPO, "actor_rollout_ref.model.mtp.enable_train=True"),
    ("verl", PPO, "actor_rollout_ref.rollout.engine_kwargs.vllm.chat_template=mine.jinja"),
    ("agentjet", MATH, "actor_rollout_ref.actor.clip_ratio=0.1"),
]


@pytest.mark.parametrize(("system", "source", "override"), ALGORITHM, ids=lambda e: str(e)[-30:])
def test_what_changes_the_algorithm_is_said_to(system, source, override, tmp_path):
    result = convert(system, source, [override])
    key = override.partition("=")[0]
    category = {
        name: category for name, category in left_out(result).items() if key.startswith(name)
    }
    assert "algorithm" in category.values()
    loaded(result, tmp_path)


OFF = [
    ("roll", LAKE, "async_generation_ratio=0"),
    ("roll", LAKE, "ratio_type=token"),
    ("roll", LAKE, "actor_infer.generating_args.repetition_penalty=1.0"),
    ("verl", PPO, "reward_model.enable=False"),
    ("verl", PPO, "data.train_max_samples=-1"),
    ("verl", PPO, "actor_rollout_ref.model.lora_adapter_path=null"),
    ("chatlearn", GRAPH, "models.policy_trainer.diff_clip_ratio=10"),
    ("agentjet", MATH, "ajet.trainer_common.loss_extra_scale_ratio=1.0"),
]


@pytest.mark.parametrize(("system", "source", "override"), OFF, ids=lambda each: str(each)[-30:])
def test_what_is_off_needs_no_comment(system, source, override):
    result = convert(system, source, [override])
    assert override.partition("=")[0] not in left_out(result)


def test_a_value_that_our_tree_refuses_is_left_out_with_its_words(tmp_path):
    result = convert("verl", PPO, ["trainer.logger=[console,vemlp]", "data.max_prompt_length=0"])
    reasons = {each.key: each.reason for each in result.left_out}
    assert "'tensorboard', 'console'" in reasons["trainer.logger"]
    assert "greater than or equal to 1" in reasons["data.max_prompt_length"]
    assert loaded(result, tmp_path).ajet.data.max_prompt_length == 3000


def test_a_refused_value_takes_no_other_one_with_it(tmp_path):
    result = convert("verl", PPO, ["trainer.n_gpus_per_node=", "trainer.test_freq=often"])
    reasons = {each.key: each.reason for each in result.left_out if "should be" in each.reason}
    assert reasons.keys() == {"trainer.n_gpus_per_node", "trainer.test_freq"}
    assert loaded(result, tmp_path).ajet.trainer_common.nnodes == 1


def test_verls_variables_of_the_chat_template_are_ours(tmp_path):
    result = convert("verl", PPO, ["+data.apply_chat_template_kwargs.enable_thinking=false"])
    variables = {"enable_thinking": False}
    assert loaded(result, tmp_path).ajet.model.chat_template_kwargs == variables


@pytest.mark.parametrize(("mode", "replays"), [("disabled", False), ("R3", True), ("R2", None)])
def test_verls_router_replay_is_ours_where_it_is_the_engines(mode, replays):
    keys = [f"+actor_rollout_ref.actor.router_replay.mode={mode}"]
    keys += ["+actor_rollout_ref.rollout.enable_rollout_routing_replay=true"]
    result = convert("verl", PPO, keys)
    assert result.values.get("ajet.rollout.routing_replay") is replays
    is_left_out = "actor_rollout_ref.actor.router_replay.mode" in left_out(result)
    assert is_left_out is (replays is None)
    assert is_left_out is ("R2 replays the trainer's experts" in yaml_text(result))


def test_a_key_that_is_refused_here_is_left_out_with_the_reason():
    result = convert("agentjet", MATH)
    assert left_out(result)["ajet.trainer_common.checkpoint_base_dir"] == "machine"
    assert "--exp-dir" in yaml_text(result)


@pytest.mark.parametrize(("system", "source"), ALL, ids=lambda each: str(each)[-20:])
def test_all_that_is_written_is_known_to_us(system, source, tmp_path):
    result = convert(system, source)
    again = convert("agentjet", written(tmp_path, yaml_text(result)))
    assert {each.key for each in again.left_out} == set(result.blanks)


def test_an_agentjet_config_converts_to_itself(tmp_path):
    first = convert("agentjet", MATH)
    again = convert("agentjet", written(tmp_path, yaml_text(first)))
    assert (again.values, again.sections) == (first.values, first.sections)


def test_a_section_of_the_users_own_stays(tmp_path):
    config = loaded(convert("agentjet", MATH), tmp_path)
    assert config.user_sections() == {"frozen_lake": {"size": 4}}


def test_a_secret_is_not_shown():
    text = yaml_text(convert("roll", LAKE))
    assert "tracker_kwargs.api_key = ***" in text
    assert "not-to-be-shown" not in text


def test_the_environment_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "do-not-write")
    file = written(tmp_path, "trainer: {project_name: '${oc.env:MY_KEY}', experiment_name: '${trainer.project_name}'}")  # fmt: skip  # noqa: E501
    text = yaml_text(convert("verl", file))
    assert "trainer.project_name = ${oc.env:MY_KEY}" in text
    assert "do-not-write" not in text


def test_what_an_interpolation_does_not_find_is_said(tmp_path):
    file = written(tmp_path, "data: {train_batch_size: '${sizes.batch}', max_prompt_length: 9}")
    result = convert("verl", file)
    origin = "data.train_batch_size = ${sizes.batch}: not known"
    assert result.blanks["ajet.data.train_batch_size"] == origin
    assert result.values["ajet.data.max_prompt_length"] == 9


def test_what_refers_to_itself_is_said(tmp_path):
    file = written(tmp_path, "seed: '${max_steps}'\nmax_steps: '${seed}'\na: {b: '${a}'}")
    result = convert("roll", file)
    assert list(result.blanks) == ["ajet.seed", "ajet.trainer_common.total_training_steps"]
    assert left_out(result)["a.b"] == "unknown"


def test_a_variable_is_no_unknown_key(tmp_path):
    file = written(tmp_path, "tokens: 64\nlengths: {prompt: 9}\ndata: {max_response_length: '${tokens}', max_prompt_length: '${lengths.prompt}'}")  # fmt: skip  # noqa: E501
    result = convert("verl", file)
    assert not {"tokens", "lengths.prompt"} & set(left_out(result))
    assert result.values["ajet.data.max_response_length"] == 64


def test_a_file_that_defaults_name_and_that_is_not_there_is_said(tmp_path):
    file = written(tmp_path, "defaults: [ppo_trainer, my_cluster, _self_]\ndata: {max_prompt_length: 9}")  # fmt: skip  # noqa: E501
    missing = [each.value for each in convert("verl", file).left_out if each.key == "defaults"]
    assert missing == ["my_cluster"]


def test_defaults_lie_below_the_file_and_above_it_after_self(tmp_path):
    written(tmp_path, "a: 1\nb: 1", "below.yaml")
    written(tmp_path, "b: 3", "above.yaml")
    file = written(tmp_path, "defaults: [below, _self_, above]\na: 2\nb: 2")
    assert read_file(file, ()).values == {"a": 2, "b": 3}


BROKEN = [
    ("a: [1", "not valid YAML"),
    ("- 1", "a config is a mapping"),
    ("rollout_batch_size: many", "rollout_batch_size: a number is expected, got 'many'"),
    ("custom_envs: 3", "custom_envs: a section is expected, got 3"),
    ("custom_envs: {Lake: {env_type: frozen_lake, env_config: 3}}", "a type that ROLL does not"),
    ("defaults: [source]", "this file includes itself"),
    ("defaults: 3", "defaults: a list is expected"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_broken_source_is_one_line(text, problem, tmp_path):
    with pytest.raises(ConfigError) as error:
        convert("roll", written(tmp_path, text))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


TRINITY = "buffer: {explorer_input: {}}"
FOREIGN = [
    ("roll", TRINITY, "ROLL: it looks like one of Trinity-RFT (it has buffer.explorer_input)"),
    ("verl", TRINITY, "verl: it looks like one of Trinity-RFT (it has buffer.explorer_input)"),
    ("chatlearn", "custom_envs: {}", "ChatLearn: it looks like one of ROLL (it has custom_envs)"),
    ("roll", "data: {train_files: a}", "ROLL: it looks like one of verl (it has data.train_files)"),
    ("verl", "runtime_args: {}", "verl: it looks like one of ChatLearn (it has runtime_args)"),
    ("verl", "ajet: {}", "verl: it looks like one of AgentJet (it has ajet)"),
    ("agentjet", "actor_train: {}", "AgentJet: it looks like one of ROLL (it has actor_train)"),
    ("agentjet", "colour: blue", "AgentJet: it has no section 'ajet:'"),
    ("trinity", "actor_rollout_ref: {}", "Trinity-RFT: it looks like one of verl"),
    *(
        (name, "colour: blue", f"{title}: ajet knows none of its keys")
        for name, title in (
            ("roll", "ROLL"), ("verl", "verl"), ("chatlearn", "ChatLearn"),
            ("trinity", "Trinity-RFT"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("system", "text", "problem"), FOREIGN)
def test_a_config_of_another_system_is_refused_with_its_name(system, text, problem, tmp_path):
    source = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        convert(system, source)
    assert str(error.value).startswith(f"{source}: not a config of {problem}")


@pytest.mark.parametrize("system", ["roll", "chatlearn", "agentjet", "trinity"])
def test_a_script_that_starts_another_system_is_refused_with_its_name(system):
    with pytest.raises(ConfigError, match=r"it starts verl: ajet convert --from verl "):
        convert(system, TOOLS.with_suffix(".sh"))


def test_agentjets_yaml_may_hold_sections_of_verl(tmp_path):
    source = written(tmp_path, "ajet: {model: {path: m}}\nactor_rollout_ref: {}\n")
    assert convert("agentjet", source).values["ajet.model.path"] == "m"


def test_an_empty_source_says_what_is_missing(tmp_path):
    result = convert("verl", written(tmp_path, ""))
    assert any("ajet.model.path" in text for text in result.to_do)
    assert any("ajet.task_reader" in text for text in result.to_do)


# ---- verl ----


def algorithm_of(folder, *overrides):
    result = convert("verl", PPO, overrides)
    return loaded(result, folder).ajet.trainer_common.algorithm, left_out(result)


IS = "algorithm.rollout_correction"
ALIEN, GRADER = "ajet.task_judge.alien_llm_model", "ajet.task_judge.rubrics_auto_grader.model_name"


@pytest.mark.parametrize(
    ("judge_type", "model", "others"),
    [("customized_protocol", "a", GRADER), ("rubrics_auto_grader", "b", ALIEN)],
)
def test_the_judging_model_of_agentjet_is_that_of_its_judge(judge_type, model, others, tmp_path):
    judge = f"judge_type: {judge_type}, alien_llm_model: a, rubrics_auto_grader: {{model_name: b}}"
    text = f"ajet: {{model: {{path: m}}, task_judge: {{judge_protocol: j.py->J, {judge}}}}}\n"
    result = convert("agentjet", written(tmp_path, text))
    assert result.values["ajet.task_judge.model_name"] == model
    assert left_out(result) == {others: "machine"}


BYPASS, ASYNC = f"{IS}.bypass_mode=true", "async_training.partial_rollout=true"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"


@pytest.mark.parametrize(
    ("overrides", "old", "level", "loss"),
    [
        ([], "trainer", "none", "clip_cov"),
        ([f"{IS}.bypass_mode=false"], "trainer", "none", "clip_cov"),
        ([f"{IS}.rollout_is=sequence"], "trainer", "sequence", "clip_cov"),
        # Up to verl 0.9 the workers train loss_mode, which the trainer changes for itself alone.
        ([BYPASS], "sampler", "none", "clip_cov"),
        ([BYPASS, f"{LOSS}=vanilla", f"{IS}.rollout_is=token"], "sampler", "none", "ppo"),
        ([BYPASS, f"{LOSS}=gspo", f"{IS}.rollout_is=token"], "sampler", "none", "gspo"),
        ([BYPASS, f"{LOSS}=bypass_mode"], "sampler", "none", "ppo"),
        ([BYPASS, f"{LOSS}=bypass_mode", f"{IS}.loss_type=reinforce"], "sampler", "none", "gpg"),
        ([ASYNC], "sampler", "none", "clip_cov"),
        ([ASYNC, f"{IS}.bypass_mode=false"], "trainer", "none", "clip_cov"),
    ],
)  # fmt: skip
def test_verls_old_policy_and_weights_stay_what_they_are(overrides, old, level, loss, tmp_path):
    algorithm, omitted = algorithm_of(tmp_path, *overrides)
    assert (algorithm.old_logprobs, algorithm.rollout_correction.level) == (old, level)
    assert algorithm.policy_loss == loss
    assert not [key for key, kind in omitted.items() if key.startswith(IS) and kind != "machine"]


@pytest.mark.parametrize(
    "weights",
    [[f"{IS}.rollout_is=sequence"],
     [f"{IS}.rollout_is=token", f"{IS}.rollout_is_threshold=0.5_2.0"],
     [f"{IS}.rollout_is=token", f"{IS}.rollout_is_threshold=0.9"]],
)  # fmt: skip
def test_a_loss_of_verls_bypass_mode_that_cannot_be_kept_is_said(weights, tmp_path):
    keys = [BYPASS, f"{LOSS}=bypass_mode", f"{IS}.loss_type=reinforce"]
    _, omitted = algorithm_of(tmp_path, *keys, *weights)
    assert omitted[f"{IS}.loss_type"] == "algorithm"


def test_a_loss_type_that_verl_may_not_train_is_a_thing_to_do(tmp_path):
    keys = [BYPASS, f"{LOSS}=vanilla", f"{IS}.loss_type=reinforce"]
    result = convert("verl", PPO, keys)
    assert result.values["ajet.trainer_common.algorithm.policy_loss"] == "gpg"
    assert any("see whether verl trained reinforce" in line for line in result.to_do)
    named = convert("verl", PPO, [*keys, f"{LOSS}=bypass_mode"])
    assert not any("reinforce" in line for line in named.to_do)


MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size=8"
KL_COEF = "algorithm.kl_ctrl.kl_coef=0.001"
KL_LOSS = "actor_rollout_ref.actor.use_kl_loss=true"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([KL_COEF], "use_kl_in_reward entropy_coeff clip_ratio_c"),
        ([MICRO, KL_LOSS], "entropy_coeff clip_ratio_c"),
        ([MICRO, KL_LOSS, "actor_rollout_ref.actor.entropy_coeff=0"], "clip_ratio_c"),
        ([KL_COEF, MICRO, "algorithm.use_kl_in_reward=false"], ""),  # a key of 0.3
        (["algorithm.kl_ctrl.kl_coef=0.0"], ""),
        ([], ""),
    ],
)
def test_defaults_that_verl_had_before_0_4_are_said(overrides, named, tmp_path):
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}\n")
    said = [line for line in convert("verl", source, overrides).to_do if "before 0.4" in line]
    names = ("use_kl_in_reward", "entropy_coeff", "clip_ratio_c")
    assert [name for name in names if any(f"{name}: " in line for line in said)] == named.split()


def test_the_one_bound_of_early_scripts_of_verl_counts_and_is_said(tmp_path):
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}\n")
    bounds = [f"ajet.trainer_common.algorithm.clip_{side}" for side in ("low", "high")]
    clip = "actor_rollout_ref.actor.clip_ratio"
    early = convert("verl", source, [f"{clip}=0.3"])
    assert [early.values.get(bound) for bound in bounds] == [0.3, 0.3]
    assert any(f"whether {clip} bounds" in line for line in early.to_do)
    later = convert("verl", source, [f"{clip}=0.3", f"{clip}_low=0.1"])  # high is 0.2 by default
    assert loaded(later, tmp_path).ajet.trainer_common.algorithm.clip_high == 0.2
    assert not any("bounds the ratio" in line for line in later.to_do)


@pytest.mark.parametrize(("norm", "scales"), [("mean_norm", False), ("mean_std_norm", True)])
def test_gigpo_of_verl_agent_keeps_its_discount_weight_scale_and_groups(norm, scales, tmp_path):
    overrides = [
        "algorithm.adv_estimator=gigpo", "algorithm.gamma=0.9", f"algorithm.gigpo.mode={norm}",
        "algorithm.gigpo.step_advantage_w=0.5", "env.rollout.n=6", "env.max_steps=12",
        "actor_rollout_ref.actor.invalid_action_penalty_coef=0.2",
    ]  # fmt: skip
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}\n")
    result = convert("verl", source, overrides)
    ajet = loaded(result, tmp_path).ajet
    algorithm = ajet.trainer_common.algorithm
    assert (algorithm.step_reward_gamma, algorithm.gamma) == (0.9, 1.0)
    assert (algorithm.step_reward_weight, algorithm.normalize_std) == (0.5, scales)
    assert (ajet.rollout.num_repeat, ajet.rollout.multi_turn.max_steps) == (6, 12)
    assert left_out(result)["algorithm.adv_estimator"] == "algorithm"
    assert any("takes 0.2 from the reward" in line for line in result.to_do)
    assert any("counts turns" in line for line in result.to_do)


def test_verl_agents_defaults_and_its_groups_without_gigpo(tmp_path):
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}\n")
    bare = convert("verl", source, ["algorithm.adv_estimator=gigpo"])
    assert loaded(bare, tmp_path).ajet.trainer_common.algorithm.normalize_std is False
    similar = convert(
        "verl", source, ["algorithm.adv_estimator=gigpo", "algorithm.gigpo.enable_similarity=true"]
    )
    assert left_out(similar)["algorithm.gigpo.enable_similarity"] == "algorithm"
    overrides = ["algorithm.adv_estimator=grpo", "algorithm.gamma=0.9", "env.rollout.n=6"]
    penalty = "actor_rollout_ref.actor.use_invalid_action_penalty=false"
    grouped = convert("verl", source, [*overrides, penalty])
    ajet = loaded(grouped, tmp_path).ajet
    assert (ajet.rollout.num_repeat, ajet.trainer_common.algorithm.gamma) == (6, 0.9)
    assert not any("action is invalid" in line for line in grouped.to_do)


def test_verls_asynchronous_trainer_has_no_other_batch_than_its_mini_batches(tmp_path):
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}\n")
    keys = ["async_training.require_batches=4", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]
    result = convert("verl", source, keys)
    assert result.values["ajet.data.train_batch_size"] == 32
    assert result.values["ajet.trainer_common.mini_batch_num"] == 4


@pytest.mark.parametrize("section", ["custom_reward_function", "reward.custom_reward_function"])
def test_a_reward_function_of_verls_judges_as_it_is(section, tmp_path):
    (tmp_path / "scores.py").write_text("def score(**given): return given\n")
    overrides = [f"{section}.path=scores.py", f"{section}.name=score"]
    source = written(tmp_path, "actor_rollout_ref: {model: {path: m}}\n")
    result = convert("verl", source, [*overrides, f"{section}.reward_kwargs.strict=true"])
    assert result.to_do == ["say where the tasks are: ajet.task_reader"]
    assert not result.changes_the_algorithm
    config = loaded(result, tmp_path)
    assert config.custom_reward_function.function == "scores.py->score"
    judge = make_judge(config)
    assert isinstance(judge, RewardFunctionJudge)


def test_verls_traces_go_to_mlflow_and_to_no_other_backend(tmp_path):
    backend = "actor_rollout_ref.rollout.trace.backend"
    result = convert("verl", PPO, [f"{backend}=mlflow"])
    assert loaded(result, tmp_path).ajet.trainer_common.traces == ["mlflow"]
    assert left_out(convert("verl", PPO, [f"{backend}=weave"]))[backend] == "machine"


@pytest.mark.parametrize(("with_kl", "category"), [("true", "algorithm"), ("false", "machine")])
def test_what_verls_kl_loss_and_sapo_do_otherwise_is_said_where_it_counts(
    with_kl, category, tmp_path
):
    actor = "actor_rollout_ref.actor"
    use_kl = f"{actor}.use_kl_loss={with_kl}"
    _, omitted = algorithm_of(tmp_path, use_kl, f"{actor}.kl_loss_type=k1")
    assert omitted[f"{actor}.kl_loss_type"] == category
    sapo = [f"{actor}.policy_loss.loss_mode=sapo", f"{actor}.loss_agg_mode=token-mean"]
    algorithm, omitted = algorithm_of(tmp_path, use_kl, *sapo)
    assert algorithm.loss_agg_mode == "seq-mean-token-mean"
    assert omitted[f"{actor}.loss_agg_mode"] == category


@pytest.mark.parametrize(("system", "source"), [("chatlearn", GRPO), ("agentjet", MATH)])
def test_the_others_old_policy_is_the_trainers_too(system, source, tmp_path):
    algorithm = loaded(convert(system, source), tmp_path).ajet.trainer_common.algorithm
    assert algorithm.old_logprobs == "trainer"


# ---- ROLL ----


NORMALIZATIONS = [
    ("grpo", "traj_group_id", "mean_std", {"adv_estimator": "grpo", "normalize_std": True}),
    ("grpo", "traj_group_id", "mean", {"adv_estimator": "grpo", "normalize_std": False}),
    ("grpo", "traj_group_id", "identity", {"adv_estimator": "reinforce"}),
    ("grpo", "batch", "mean_std", {"adv_estimator": "reinforce", "reward_normalization.grouping": "batch", "reward_normalization.method": "mean_std"}),  # noqa: E501
    ("reinforce", "tags", "mean", {"adv_estimator": "reinforce", "reward_normalization.grouping": "tag"}),  # noqa: E501
    ("gigpo", "traj_group_id", "mean", {"adv_estimator": "gigpo", "normalize_std": False, "step_reward_gamma": 0.95}),  # noqa: E501
    ("step_reinforce", "traj_group_id", "identity", {"adv_estimator": "step_reinforce", "step_baseline": "none", "step_reward_gamma": 0.95}),  # noqa: E501
    ("step_reinforce", "batch", "mean", {"adv_estimator": "step_reinforce", "step_baseline": "others", "reward_normalization.grouping": "none"}),  # noqa: E501
    ("gae", "batch", "identity", {"adv_estimator": "gae", "lam": 0.95, "reward_normalization.grouping": "none"}),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("name", "grouping", "method", "wanted"), NORMALIZATIONS)
def test_rolls_estimators_are_what_they_compute(name, grouping, method, wanted, tmp_path):
    overrides = [f"adv_estimator={name}"]
    overrides += [f"reward_normalization.{key}={value}" for key, value in
                  (("grouping", grouping), ("method", method))]  # fmt: skip
    config = loaded(convert("roll", LAKE, overrides), tmp_path)
    tree = flatten(config.ajet.trainer_common.algorithm.model_dump())
    assert {key: tree[key] for key in wanted} == wanted


@pytest.mark.parametrize(("method", "is_said"), [("identity", False), ("mean", True)])
def test_a_normalization_of_rolls_steps_is_said(method, is_said):
    overrides = ["adv_estimator=step_reinforce", f"reward_normalization.method={method}"]
    found = left_out(convert("roll", LAKE, overrides))
    assert found.get("reward_normalization") == ("algorithm" if is_said else None)


def test_rolls_newer_names_of_the_normalization_are_read(tmp_path):
    newer = ["reward_normalization={norm_mean_type: group, norm_std_type: group}"]
    algorithm = loaded(convert("roll", LAKE, newer), tmp_path).ajet.trainer_common.algorithm
    assert (algorithm.adv_estimator, algorithm.normalize_std) == ("grpo", True)
    mixed = ["reward_normalization={norm_mean_type: batch, norm_std_type: group}"]
    assert left_out(convert("roll", LAKE, mixed))["reward_normalization"] == "algorithm"


def test_an_environment_of_rolls_becomes_one_of_ours(tmp_path):
    envs = loaded(convert("roll", LAKE), tmp_path).ajet.environment.custom_envs
    lake = envs["Lake"]
    assert (lake.env_type, lake.max_steps, lake.max_tokens_per_step) == ("frozen_lake", 10, 64)
    assert lake.env_manager_cls == "traj_env_agent"
    assert lake.env_config == {"is_slippery": False}
    assert lake.agent_template == "Turn {turn_idx}, {actions_left} actions left.\n{observation}\n"
    assert envs["LakeThink"].action_pattern == r"<think>(?:.*?)</think>\s*<answer>(.*?)</answer>"
    assert envs["Boxes"].env_config == {
        "dim_room": [6, 6],
        "num_boxes": 1,
        "search_depth": 300,
        "grid_lookup": {0: "#", 1: "_"},
    }


def environment_of(tmp_path, text, *overrides, tag="Lake"):
    """The one environment of a source that says little else, converted, loaded, and the result."""
    source = written(tmp_path, f"sequence_length: 9\npretrain: m\ncustom_envs: {{{tag}: {text}}}")
    result = convert("roll", source, overrides)
    return loaded(result, tmp_path).ajet.environment.custom_envs[tag], result


def test_rolls_other_vocabulary_of_sokoban_is_played_in_training_and_validation(tmp_path):
    config = "{grid_lookup: {0: W, 1: '.', 5: A}, grid_vocab: {W: wall, '.': empty, A: player}}"
    custom, result = environment_of(
        tmp_path, f"{{env_type: sokoban, env_config: {config}}}", "+val_env_manager.tags=[Lake]"
    )
    game = environment_maker(
        custom.env_type, custom.env_config | {"dim_room": [6, 6], "num_boxes": 1}, (), "here"
    )()
    shown, _ = game.reset(seed=1, options={"split": "validation"})
    assert set("W.A") <= set(shown) and not set("#_P") & set(shown)
    assert "W is wall, . is empty, A is player" in game.instruction
    assert result.values["ajet.environment.val_env_manager.tags"] == ["Lake"]
    assert not [key for key in left_out(result) if "grid" in key]


def test_the_place_of_rolls_instruction_is_a_line_of_the_head(tmp_path):
    def told(text):
        _, result = environment_of(tmp_path, text)
        return [each for each in result.to_do if "before the first observation" in each]

    assert len(told("{env_type: frozen_lake}")) == 1
    assert not told("{env_type: frozen_lake, env_manager_cls: a.StepEnvManager}")
    assert not told("{env_type: 'rg:spell_backward'}")


@pytest.mark.parametrize("env_type", ["frozen_lake", "sokoban", "webshop"])
def test_an_environment_of_rolls_can_be_made_with_rolls_defaults(env_type, tmp_path):
    config = "{render_mode: text, special_token_list: [], format_penalty: -0.1, max_steps: 8}"
    custom, _ = environment_of(tmp_path, f"{{env_type: {env_type}, env_config: {config}}}")
    made = environment_maker(custom.env_type, custom.env_config, (), "here")()
    observation, _ = made.reset(seed=1, options={"split": "train"})
    assert observation
    assert (custom.max_steps, custom.format_penalty) == (8, -0.1)


def test_ice_is_slippery_where_rolls_config_does_not_say(tmp_path):
    assert environment_of(tmp_path, "{env_type: frozen_lake}")[0].env_config == {
        "is_slippery": True
    }


def test_a_model_is_told_the_rules_where_roll_tells_them(tmp_path):
    lake = "{env_type: frozen_lake, agent_system_template: Play., env_config: {%s}}"
    own = "env_instruction: 'Go {now}.'"
    assert (
        environment_of(tmp_path, lake % "")[0].agent_system_template == "Play.\n{env_instruction}"
    )
    told = environment_of(tmp_path, lake % own)[0].agent_system_template
    assert told == "Play.\nGo {{now}}.\n{env_instruction}"
    step = lake.replace("{env", "{env_manager_cls: a.StepEnvManager, agent_template: '%s', env", 1)
    there, _ = environment_of(tmp_path, step % ("{env_instruction}|{current_step}", own))
    assert there.agent_system_template == "Play."
    assert there.agent_template == "Go {{now}}.\n{env_instruction}|{turn_idx}"
    assert environment_of(tmp_path, step % ("x", own))[0].agent_system_template == "Play."


def test_rolls_window_counts_the_step_that_is_being_taken(tmp_path):
    step = "{env_type: frozen_lake, env_manager_cls: a.StepEnvManager%s}"
    assert environment_of(tmp_path, step % ", history_length: 5")[0].history_length == 4
    assert environment_of(tmp_path, step % "")[0].history_length == 0
    result = environment_of(tmp_path, step % ", history_length: 0")[1]
    assert left_out(result)["custom_envs.Lake.history_length"] == "algorithm"


def test_the_smaller_of_rolls_two_limits_is_ours(tmp_path):
    boxes = (
        "{env_type: sokoban, max_steps: %s, max_tokens_per_step: 64, env_config: {max_steps: 40}}"
    )
    tokens = "actor_infer.generating_args.max_new_tokens=32"
    short, _ = environment_of(tmp_path, boxes % 9, f"+{tokens}")
    assert (short.max_steps, short.max_tokens_per_step) == (9, 32)
    long, result = environment_of(tmp_path, boxes % 90)
    assert (long.max_steps, long.max_tokens_per_step) == (40, 64)
    assert result.values["ajet.rollout.multi_turn.max_steps"] == 40  # ours lets it play so long


def test_the_step_managers_placeholders_are_renamed(tmp_path):
    overrides = [
        "custom_envs.Lake.env_manager_cls=roll.pipeline.agentic.env_manager.step_env_manager.StepEnvManager",
        "custom_envs.Lake.agent_template='{current_step}: {current_observation} {history}'",
    ]
    source = written(tmp_path, "sequence_length: 9\npretrain: m\ncustom_envs: {Lake: {env_type: frozen_lake}}")  # fmt: skip  # noqa: E501
    lake = loaded(convert("roll", source, overrides), tmp_path).ajet.environment.custom_envs["Lake"]
    assert lake.env_manager_cls == "step_env_agent"
    assert lake.agent_template == "{turn_idx}: {observation} {history}"


def test_the_kl_is_in_rolls_reward_only_when_it_is_added(tmp_path):
    off = loaded(convert("roll", LAKE, ["init_kl_coef=0.3"]), tmp_path)
    assert not off.ajet.trainer_common.algorithm.use_kl_in_reward
    overrides = ["init_kl_coef=0.3", "add_token_level_kl=true", "target_kl=0.2"]
    algorithm = loaded(convert("roll", LAKE, overrides), tmp_path).ajet.trainer_common.algorithm
    assert algorithm.use_kl_in_reward
    assert (algorithm.kl_ctrl.type, algorithm.kl_ctrl.kl_coef) == ("adaptive", 0.3)


def test_rolls_correction_keeps_its_level_and_bound(tmp_path):
    weight = "{enabled: true, weight_type: segment, upper_bound: 1.5}"
    overrides = [f"train_infer_correction={{is_weight: {weight}}}"]
    correction = loaded(
        convert("roll", LAKE, overrides), tmp_path
    ).ajet.trainer_common.algorithm.rollout_correction
    assert (correction.level, correction.mode, correction.upper) == ("turn", "truncate", 1.5)
    assert correction.combine == "geometric_mean"


@pytest.mark.parametrize(
    ("mapping", "count"),
    [("list(range(0,8))", 8), ("list(range(4))", 4), ("[0, 2,3]", 3), ([1, 2], 2), (None, None),
     ("list(range(0,2)) + list(range(4,8,2))", 4), ("devices()", None)],
)  # fmt: skip
def test_devices_are_counted_without_eval(mapping, count):
    numbers = device_numbers(mapping)
    assert (numbers and len(numbers)) == count


def test_rolls_roles_keep_their_devices(tmp_path):
    overrides = [
        "actor_train.device_mapping=list(range(0,4))",
        "actor_infer.device_mapping=list(range(4,8))",
        "reference.device_mapping=[0,1,2,3]",
        "actor_infer.strategy_args.strategy_config.tensor_parallel_size=2",
        "actor_train.model_args.disable_gradient_checkpointing=true",
        "actor_train.model_args.ulysses_size=2",
    ]
    result = convert("roll", LAKE, overrides)
    assert any("separate GPUs" in text for text in result.to_do)
    assert not [key for key in left_out(result) if key.endswith("device_mapping")]
    (tmp_path / "converted.yaml").write_text(yaml_text(result))
    config = load_config(tmp_path / "converted.yaml", backbone="trinity")
    assert config.ajet.trainer_common.fsdp_config.activation_checkpointing is False
    assert config.ajet.trainer_common.ulysses_sequence_parallel_size == 2
    assert config.trinity.mode == "both"
    placement = place_processes(ResourceRequest.from_config(config), [Node("here", 64, 8)])
    assert [rank.gpus for rank in placement.trainer] == [(0,), (1,), (2,), (3,)]
    assert [engine.gpus for engine in placement.engines] == [(4, 5), (6, 7)]


def test_a_role_of_rolls_that_has_no_devices_of_its_own_here_is_listed():
    result = convert("roll", LAKE, ["reference.device_mapping=[6,7]"])
    assert left_out(result)["reference.device_mapping"] == "machine"


VERL_ASYNC = [
    "data.train_batch_size=0", "data.gen_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "async_training.require_batches=4", "async_training.trigger_parameter_sync_step=4",
    "async_training.staleness_threshold=0.5", "async_training.partial_rollout=True",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=False",
    "+actor_rollout_ref.actor.fsdp_config.dtype=bfloat16",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.checkpoint.async_save=True",
]  # fmt: skip


@pytest.mark.parametrize(
    ("pools", "nodes", "gpus", "engines"),
    [((1, 4, 1, 4), 1, 8, 2), ((2, 8, 1, 8), 3, 8, 4), ((1, 8, 2, 8), 3, 8, 8)],
)
def test_verls_asynchronous_trainer_keeps_its_devices_and_batches(
    pools, nodes, gpus, engines, tmp_path
):
    names = (
        "trainer.nnodes", "trainer.n_gpus_per_node", "rollout.nnodes", "rollout.n_gpus_per_node"
    )  # fmt: skip
    told = [f"+{name}={value}" for name, value in zip(names, pools, strict=True)]
    result = convert("verl", PPO, [*VERL_ASYNC, *told])
    ajet, trinity = (config := loaded(result, tmp_path)).ajet, config.trinity
    trainer = ajet.trainer_common
    assert (trainer.nnodes, trainer.n_gpus_per_node) == (nodes, gpus)
    assert ajet.rollout.n_vllm_engine == engines
    assert (ajet.data.train_batch_size, trainer.mini_batch_num) == (128, 4)
    assert (trinity.synchronizer.sync_interval, trinity.max_staleness) == (4, 5)
    assert trinity.partial_rollout == "continue"
    assert trainer.fsdp_config.param_dtype == "bfloat16"
    assert trainer.fsdp_config.reshard_after_forward is False
    assert trainer.fsdp_config.activation_checkpointing is True
    assert trainer.save_in_background is True
    assert trainer.ulysses_sequence_parallel_size == 2
    assert not [key for key in left_out(result) if key.startswith(("async_training", "rollout."))]


def test_verls_pools_of_unlike_nodes_are_listed():
    pools = ["trainer.n_gpus_per_node=8", "+rollout.nnodes=1", "+rollout.n_gpus_per_node=4"]
    assert left_out(convert("verl", PPO, pools))["rollout.nnodes"] == "machine"


def test_the_action_is_the_patterns_only_group():
    assert one_group(r"<answer>(.*?)</answer>") == r"<answer>(.*?)</answer>"
    assert one_group(r"\((a)\) (b)") == r"\((?:a)\) (b)"
    assert one_group("(") == "("


# ---- command lines ----


@pytest.mark.parametrize(("system", "path"), [("verl", TOOLS), ("chatlearn", GRAPH)])
def test_a_script_is_converted_as_the_yaml_of_its_values(system, path):
    script, expected = convert(system, path.with_suffix(".sh")), convert(system, path)
    assert script.values == expected.values
    assert list(script.blanks) == list(expected.blanks)
    assert left_out(script) == left_out(expected) and script.to_do == expected.to_do


def test_a_name_with_the_time_in_it_is_listed_and_not_guessed():
    result = convert("verl", TOOLS)
    each = next(each for each in result.left_out if each.key == "trainer.experiment_name")
    assert (each.value, each.category) == ("qwen-${now:%F}", "unknown")
    assert "ajet.experiment_name" not in result.values


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("True", True), ("null", None), ("[a,b]", ["a", "b"]), ("'x y'", "x y"),
     ("/a/b.parquet", "/a/b.parquet"), ("a->b", "a->b"), ("0.5_5.0", "0.5_5.0"),
     ("[~/a.parquet, ~/b.parquet]", ["~/a.parquet", "~/b.parquet"]), ("~/a", "~/a")],
)  # fmt: skip
def test_an_override_has_hydras_value(text, value):
    assert override_value("a.b", text) == value


def test_a_script_that_starts_nothing_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"no command here calls verl;"):
        convert("verl", written(tmp_path, "echo hello", "run.sh"))


def test_agentjet_is_started_by_a_yaml(tmp_path):
    with pytest.raises(ConfigError, match=r"a config of AgentJet ends in \.yaml"):
        convert("agentjet", written(tmp_path, "ajet --conf x", "run.sh"))


def test_a_text_that_looks_like_an_interpolation_stays_text(tmp_path):
    file = written(tmp_path, "ajet: {model: {path: m}, rollout: {multi_turn: {system_prompt: 'say \\${name}'}}}")  # fmt: skip  # noqa: E501
    config = loaded(convert("agentjet", file), tmp_path)
    assert config.ajet.rollout.multi_turn.system_prompt == "say ${name}"


def test_a_script_names_its_config_by_folder_and_name():
    result = convert("roll", LAKE.parent / "run.sh")
    assert result.values == convert("roll", LAKE).values


@pytest.mark.skipif(not VERL.is_file(), reason="verl is not in .venv/references")
def test_no_key_of_verls_own_config_is_unknown():
    result = convert("verl", VERL)
    assert not result.of("unknown")
    assert list(result.blanks) == ["ajet.rollout.name"]  # to be set, in verl too
    assert not result.of("algorithm")


def test_a_lower_bound_that_no_ratio_reaches_is_none(tmp_path):
    low = "actor_rollout_ref.actor.clip_ratio_low=10"
    cispo = "actor_rollout_ref.actor.policy_loss.loss_mode=cispo"
    algorithm, omitted = algorithm_of(tmp_path, cispo, low)
    assert (algorithm.policy_loss, algorithm.clip_low) == ("cispo", 1.0)
    assert low.partition("=")[0] not in omitted


def test_what_verl_rejects_and_compares_is_converted(tmp_path):
    rejection = [
        f"{IS}.rollout_rs='token_k3,seq_mean_k1'",
        f"{IS}.rollout_rs_threshold='0.1,0.5_2'",
    ]
    algorithm, omitted = algorithm_of(tmp_path, *rejection)
    correction = algorithm.rollout_correction
    assert correction.reject == {
        "token_k3": 0.1,
        "seq_mean_k1": pytest.approx([-math.log(2), math.log(2)]),
    }
    assert not correction.count_rejected
    rewards = ["algorithm.gdpo_reward_keys=[correct,form]", "algorithm.gdpo_reward_weights=[1,0.5]"]
    result = convert("verl", TOOLS, ["algorithm.adv_estimator=gdpo", *rewards])
    algorithm = loaded(result, tmp_path).ajet.trainer_common.algorithm
    assert algorithm.adv_estimator == "gdpo"
    assert algorithm.reward_weights == {"correct": 1.0, "form": 0.5}
    algorithm, omitted = algorithm_of(tmp_path, "algorithm.adv_estimator=grpo_passk")
    assert algorithm.adv_estimator == "pass_at_k" and "algorithm.adv_estimator" not in omitted
    _, omitted = algorithm_of(tmp_path, BYPASS, *rejection)
    assert omitted[f"{IS}.rollout_rs"] == "algorithm"


def test_the_tokens_that_a_loss_of_verls_chooses_are_those_of_another_batch(tmp_path):
    algorithm, omitted = algorithm_of(tmp_path)
    assert (algorithm.policy_loss, algorithm.clip_cov_high) == ("clip_cov", 5.0)
    assert omitted["actor_rollout_ref.actor.policy_loss.loss_mode"] == "algorithm"
    kl_cov = "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov"
    assert algorithm_of(tmp_path, kl_cov)[0].kl_cov_coef == 0.1  # verl's default


DATASET = "ajet.task_reader.dataset"


def files_of(folder, train, held_out="['~/math/test.parquet']"):
    files = f"data: {{train_files: {train}, val_files: {held_out}}}"
    return convert("verl", written(folder, files, "run.yaml"))


def test_chatlearns_values_that_depend_on_an_unknown_one_are_blank(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(
        """
        runtime_args: {sample_per_episode: "${oc.env:S}", train_global_batch_size: 64}
        models:
          policy_trainer: {kl_coef: "${oc.env:KL}"}
          policy:
            max_prompt_tokens_length: ${oc.env:P}
            max_response_tokens_length: 64
            seq_length: 2048
        """
    )
    result = convert("chatlearn", path)
    assert set(result.blanks) == {
        "ajet.data.train_batch_size",
        "ajet.trainer_common.mini_batch_num",
        "ajet.trainer_common.use_kl_loss",
        "ajet.trainer_common.kl_loss_coef",
        "ajet.data.max_prompt_length",
        "ajet.rollout.max_model_len",
    }
    assert result.values["ajet.data.max_response_length"] == 64


def test_chatlearns_batch_is_a_blank_where_the_file_has_none(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text("runtime_args: {train_global_batch_size: 64, num_episode: 2}")
    result = convert("chatlearn", path)
    blanks = ["ajet.data.train_batch_size", "ajet.trainer_common.mini_batch_num"]
    assert list(result.blanks) == blanks
    path.write_text(yaml_text(result))
    with pytest.raises(ConfigError, match=r"ajet\.data\.train_batch_size"):
        load_config(path)


def test_several_training_files_of_several_folders_are_left_out_with_what_to_do(tmp_path):
    result = files_of(tmp_path, "['~/gsm8k/train.parquet', '~/math/train.parquet']")
    reasons = {each.key: each.reason for each in result.of("algorithm")}
    assert reasons["data.train_files"] == (
        "a split is one file, or files of one folder: copy them into one as train-0.parquet to "
        f"train-1.parquet, and name it at {DATASET}.training"
    )
    assert "say where the tasks are: ajet.task_reader" in result.to_do
    assert f"{DATASET}.training" not in result.values
    assert result.values[f"{DATASET}.validation"] == "~/math/test.parquet"


def test_several_training_files_of_one_folder_are_its_split(tmp_path):
    train = "['~/math/train-0.parquet', '~/math/train-1.parquet']"
    result = files_of(tmp_path, train)
    assert result.values[f"{DATASET}.training"] == "~/math"
    assert result.values.get(f"{DATASET}.training_split", "train") == "train"  # ajet's default
    assert result.values[f"{DATASET}.validation"] == "~/math/test.parquet"
    assert any("has no more files whose names begin with 'train'" in each for each in result.to_do)
    assert not result.of("algorithm")


def test_several_held_out_files_are_not_dropped_in_silence(tmp_path):
    result = files_of(tmp_path, "~/math/train.parquet", "['~/a/test.parquet', '~/b/test.parquet']")
    assert result.values[f"{DATASET}.training"] == "~/math/train.parquet"
    assert left_out(result)["data.val_files"] == "algorithm"
    assert result.values[f"{DATASET}.validation_split"] is None


def test_verls_early_keys_are_what_later_versions_call_them(tmp_path):
    result = convert(
        "verl",
        written(tmp_path, "data: {seed: 1}"),
        [
            "actor_rollout_ref.actor.use_token_level_loss=False",
            "custom_reward_function.overlong_buffer={enable:True,len:64,penalty_factor:0.5}",
        ],
    )
    algorithm = "ajet.trainer_common.algorithm"
    assert result.values[f"{algorithm}.loss_agg_mode"] == "seq-mean-token-mean"
    assert result.values[f"{algorithm}.overlong.buffer_len"] == 64
    assert result.values[f"{algorithm}.overlong.penalty_factor"] == 0.5


@pytest.mark.parametrize("section", ["reward_model", "reward"])
def test_a_reward_manager_that_shapes_the_reward_changes_the_algorithm(section, tmp_path):
    manager = f"{section}.reward_manager" + (".name" if section == "reward" else "")
    keys = [f"{manager}=mine", f"{section}.reward_kwargs.weights.length=0.1"]
    lost = left_out(convert("verl", written(tmp_path, "data: {seed: 1}"), keys))
    assert lost == dict.fromkeys((key.partition("=")[0] for key in keys), "algorithm")
    assert not left_out(convert("verl", written(tmp_path, "data: {seed: 1}"), [f"{manager}=dapo"]))


@pytest.mark.parametrize("key", ["rewards: {math: {tag: x}}", "num_return_sequences_in_group: 8"])
def test_a_config_of_another_of_rolls_pipelines_is_refused(key, tmp_path):
    file = written(tmp_path, f"rollout_batch_size: 64\nadv_estimator: reinforce\n{key}\n")
    with pytest.raises(ConfigError, match=r"a key of another pipeline"):
        convert("roll", file)


@pytest.mark.parametrize(
    ("key", "value", "category"),
    [
        ("optim.lr_decay_style", "cosine", "algorithm"),
        ("optim.lr_decay_style", "constant", None),
        ("optim.override_optimizer_config.eps", "1e-5", "algorithm"),
        ("optim.override_optimizer_config.optimizer_cpu_offload", "True", "machine"),
    ],
)
def test_megatrons_schedule_and_optimizer_change_the_algorithm(key, value, category, tmp_path):
    key = f"actor_rollout_ref.actor.{key}"
    result = convert("verl", written(tmp_path, "data: {seed: 1}"), [f"{key}={value}"])
    assert left_out(result).get(key) == category


@pytest.mark.parametrize(
    ("settings", "adapters", "category"),
    [
        ("rank: 8", (8, 32.0), None),
        ("rank: 8, alpha: 24, target_modules: [linear_qkv]", (8, 24.0), "algorithm"),
        ("rank: 0, alpha: 24, target_modules: [linear_qkv]", (None, None), None),
    ],
)
def test_megatrons_adapters_are_ours(settings, adapters, category, tmp_path):
    source = f"actor_rollout_ref: {{model: {{path: m, lora: {{{settings}}}}}}}"
    result = convert("verl", written(tmp_path, source))
    lora = [result.values.get(f"ajet.trainer_common.lora.{name}") for name in ("rank", "alpha")]
    assert tuple(lora) == adapters
    assert left_out(result).get("actor_rollout_ref.model.lora.target_modules") == category


def test_a_changed_config_of_the_model_changes_the_algorithm(tmp_path):
    section = "actor_rollout_ref.model.override_config"
    keys = [f"+{section}.attention_dropout=0.", f"+{section}.attn_implementation=sdpa"]
    keys.append(f"+{section}.model_config.max_position_embeddings=9000")
    lost = left_out(convert("verl", written(tmp_path, "data: {seed: 1}"), keys))
    assert lost == {
        f"{section}.attn_implementation": "machine",
        f"{section}.model_config.max_position_embeddings": "algorithm",
    }


def test_chatlearns_megatron_reads_its_own_checkpoint_and_the_engines_the_model(tmp_path):
    keys = ["models.policy_trainer.load=a/mcore", "models.policy.load=a/model"]
    for backend, path in (("fsdp", "a/mcore"), ("megatron", "a/model")):
        source = written(tmp_path, f"runtime_args: {{train_backend: {backend}}}")
        result = convert("chatlearn", source, keys)
        assert result.values["ajet.model.path"] == path
        lost = "models.policy_trainer.load" if backend == "megatron" else "models.policy.load"
        assert left_out(result)[lost] == "machine"


@pytest.mark.parametrize(
    ("system", "text", "target"),
    [
        ("verl", "algorithm: {adv_estimator: mine}", "adv_estimator"),
        ("verl", "actor_rollout_ref: {actor: {policy_loss: {loss_mode: mine}}}", "policy_loss"),
        ("roll", "adv_estimator: mine", "adv_estimator"),
        ("roll", "pg_variant: mine", "policy_loss"),
        ("trinity", "algorithm: {algorithm_type: grpo, advantage_fn: mine}", "adv_estimator"),
        ("trinity", "algorithm: {algorithm_type: grpo, policy_loss_fn: mine}", "policy_loss"),
    ],
)
def test_an_algorithm_without_a_counterpart_is_a_blank_and_no_other_one(
    system, text, target, tmp_path
):
    result = convert(system, written(tmp_path, text))
    target = f"ajet.trainer_common.algorithm.{target}"
    assert target in result.blanks and target not in result.values
    assert f"{target}: there is no mine here: choose one" in result.to_do


def test_a_number_that_is_false_is_zero_as_in_python():
    result = convert("verl", PPO, ["trainer.test_freq=False", "trainer.save_freq=False"])
    assert result.values["ajet.trainer_common.test_freq"] == 0
    assert result.values["ajet.trainer_common.save_freq"] == 0


@pytest.mark.parametrize("key", ["trainer.test_freq", "rollout.test_freq"])
def test_verls_asynchronous_trainer_validates_every_so_many_synchronizations(key, tmp_path):
    result = convert("verl", written(tmp_path, "data: {seed: 1}"), [*VERL_ASYNC, f"{key}=5"])
    assert result.values["ajet.trainer_common.test_freq"] == 20  # an interval of 4 updates
    assert key not in left_out(result)
