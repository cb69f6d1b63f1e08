"""A YAML in the form of AgentJet's tutorials loads as it is; what has no counterpart is said."""

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError

FROZEN_LAKE = """
ajet:
  project_name: example_frozenlake
  task_reader: {type: random_dummy}
  task_judge: {judge_protocol: null}
  model: {path: m}
  rollout:
    agentscope_workflow: tutorial.example_frozenlake.frozenlake->FrozenLakeWorkflow
    agentscope_disable_toolcalls: True
    mode: async
    gpu_memory_utilization: 0.7
  context_tracker:
    alien_llm_model: qwen3
    timeline_merging_policy: {timeline_compare_level: text_and_image}
  trainer_common:
    val_only: False
    val_max_num_task_each_validation: null
    loss_extra_scale_ratio: 1.0
    optim: {optimizer: AdamW, lr_warmup_steps: -1, lr_scheduler_type: constant, num_cycles: 0.5}
  lora: {lora_rank: 8, lora_alpha: 16, target_modules: all-linear, load_format: auto}
  enable_swarm_mode: False
  enable_interchange_server: False
  swarm_mode_sample_collection_method: rollout_until_finish_enough_tasks
frozen_lake: {frozen_lake_size: 4, is_slippery: False}
hydra:
  searchpath: [file://ajet/default_config]
defaults: [verl_default, trinity_default, ajet_default, _self_]
"""
RUBRICS = """
ajet:
  model: {path: m}
  task_judge:
    judge_type: rubrics_auto_grader
    rubrics_auto_grader:
      success_threshold: 0.7
      sampling_mode: all_samples
      generate_number: 3
      max_epochs: 2
      max_retries: 3
      aggregation_mode: keep_all
      num_reference_samples: 20
      jsonl_dataset_file: {training: {file_path: rubrics_train.jsonl}}
"""
TRACING = """
ajet:
  model: {path: m}
  task_reader:
    type: tracing
    feedback_tracing:
      base_url: ./database.sqlite
      train_output_path: ./tasks.jsonl
      alien_llm_model: qwen3
      alien_llm_response_length: 2048
      filters:
        - {type: llm_evaluate, enabled: %s, params: {custom_rubrics: x, max_thread: 16}}
        - {type: deduplication, enabled: true, params: {similarity_threshold: 0.8}}
"""


@pytest.fixture
def load(tmp_path):
    def load(text, *overrides):
        (tmp_path / "run.yaml").write_text(text)
        return load_config(tmp_path / "run.yaml", overrides)

    return load


def unexpected(config) -> set[str]:
    """The keys that notices name."""
    return {line.partition(": ")[2].partition("=")[0] for line in config.notices}


def test_a_tutorials_keys_are_taken_under_their_present_names(load):
    config = load(FROZEN_LAKE)
    rollout, trainer = config.ajet.rollout, config.ajet.trainer_common
    assert rollout.user_workflow == "tutorial.example_frozenlake.frozenlake->FrozenLakeWorkflow"
    assert rollout.force_disable_toolcalls is True
    assert (trainer.lora.rank, trainer.lora.alpha) == (8, 16)
    assert config.verl.rollout.gpu_memory_utilization == 0.7
    assert config.frozen_lake.frozen_lake_size == 4
    expected = {
        "ajet.context_tracker.alien_llm_model",
        "ajet.context_tracker.timeline_merging_policy.timeline_compare_level",
        "ajet.swarm_mode_sample_collection_method",
        "verl.rollout.gpu_memory_utilization",
    }
    assert unexpected(config) == expected, config.notices


def test_the_rubrics_have_their_numbers_and_the_rest_is_said(load):
    config = load(RUBRICS)
    rubrics = config.ajet.task_judge.rubrics_auto_grader
    assert (rubrics.query_specific_generate_number, rubrics.num_examples) == (3, 20)
    assert rubrics.dataset_file.training.file_path == "rubrics_train.jsonl"
    section = "ajet.task_judge.rubrics_auto_grader"
    ignored = {f"{section}.{key}" for key in ("sampling_mode", "max_epochs", "max_retries")}
    assert unexpected(config) == ignored


def test_a_filter_that_asks_a_model_is_refused_with_a_reason_unless_it_is_off(load):
    config = load(TRACING % "false")
    assert config.ajet.task_reader.tracing.train_output_path == "./tasks.jsonl"
    section = "ajet.task_reader.feedback_tracing"
    assert unexpected(config) == {
        f"{section}.alien_llm_model",
        f"{section}.alien_llm_response_length",
    }
    with pytest.raises(ConfigError, match="filter by score or feedback") as error:
        load(TRACING % "true")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "override",
    [
        "+ajet.rollout.mode=sync",
        "+ajet.enable_swarm_mode=true",
        "+ajet.trainer_common.val_only=true",
        "+ajet.trainer_common.loss_extra_scale_ratio=2.0",
        "+ajet.trainer_common.optim.optimizer=SGD",
        "+ajet.trainer_common.optim.lr_warmup_steps=5",
    ],
)
def test_what_would_change_the_experiment_is_refused_with_a_reason(load, override):
    key = override.removeprefix("+").partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key}=.* is refused: .*; leave it out"):
        load("ajet: {model: {path: m}}", override)


def test_a_key_under_both_names_with_two_values_is_an_error(load):
    both = "ajet: {model: {path: m}, lora: {lora_rank: 4}, trainer_common: {lora: {rank: 8}}}"
    with pytest.raises(ConfigError, match="are one key with two values: 4, 8"):
        load(both)


FORMER = """
astuner:
  model: {path: m}
  rollout: {agentscope_workflow: flow.py->Flow}
  task_judge: {judge_protocol: "%s.task_judge.env_service_as_judge->EnvServiceJudge"}
hydra: {searchpath: ["file://astuner/default_config"]}
defaults: [verl_default, trinity_default, %s, _self_]
"""


@pytest.mark.parametrize("package", ["astuner", "agentscope_tuner"])
@pytest.mark.parametrize("defaults", ["astuner_default", "astune_default"])
def test_the_former_name_of_the_section_is_read_as_the_present_one(load, package, defaults):
    config = load(FORMER % (package, defaults), "ajet.seed=3")
    assert (config.ajet.model.path, config.ajet.seed) == ("m", 3)
    assert config.ajet.rollout.user_workflow == "flow.py->Flow"
    assert config.ajet.task_judge.judge_protocol == "env_service"
    assert not config.user_sections()
    assert not config.notices


def test_a_section_under_its_former_and_its_present_name_is_one_line(load):
    with pytest.raises(ConfigError, match="astuner: is the former name of ajet:, which is there"):
        load("ajet: {model: {path: m}}\nastuner: {seed: 1}")


def test_a_mistake_in_a_section_of_the_former_name_is_one_line(load):
    with pytest.raises(ConfigError, match=r"ajet\.rollout\.temprature") as error:
        load("astuner: {model: {path: m}, rollout: {temprature: 1}}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "model", "ignored"),
    [
        (("judge_protocol=llm", "llm.model_name=a"), "a", []),
        (("judge_protocol=llm_listwise", "llm.model_name=a", "alien_llm_model=b"), "a", ["alien"]),
        (("judge_type=rubrics_auto_grader", "rubrics_auto_grader.model_name=a"), "a", []),
        (("judge_type=rubrics_auto_grader", "alien_llm_model=b"), None, ["alien"]),
        (("judge_protocol=judge.py->Judge", "alien_llm_model=a"), "a", []),
        (("alien_llm_model=a", "llm.model_name=b"), "a", ["llm.model_name"]),
        (("judge_protocol=llm", "model_name=a"), "a", []),
    ],
)
def test_the_former_key_of_the_judges_model_is_the_one_of_its_judge(
    load, overrides, model, ignored
):
    config = load("ajet: {model: {path: m}}\n", *(f"ajet.task_judge.{each}" for each in overrides))
    assert config.ajet.task_judge.model_name == config.ajet.task_judge.alien_llm_model == model
    notices = [notice for notice in config.notices if "another judge's" in notice]
    assert len(notices) == len(ignored)
    assert all(name in notice for name, notice in zip(ignored, notices, strict=True))


def test_two_values_of_the_judges_model_are_refused(load):
    with pytest.raises(ConfigError, match="are one key with two values: a, b"):
        load(
            "ajet: {model: {path: m}, task_judge: {judge_protocol: llm, model_name: b}}\n",
            "ajet.task_judge.llm.model_name=a",
        )
