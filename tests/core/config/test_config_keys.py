"""Every key of AgentJet's default YAML is honoured, taken with a notice, or refused."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from ajet.core.config import AjetConfig, load_config, load_stages
from ajet.core.config.agentjet_keys import ABSENT
from ajet.core.config.compose import compose
from ajet.core.config.environment import CustomEnv
from ajet.core.config.rollout import RolloutConfig
from ajet.core.config.saved import saved_config
from ajet.core.config.section import Section
from ajet.core.errors import ConfigError
from ajet.core.user_code.plugins import plugins
from ajet.tool_parsers import PARSERS
from scripts import default_config

HONOURED = {
    "project_name": "p", "experiment_name": "e", "experiment_dir": "d", "backbone": "verl",
    "model.path": "m", "data.max_prompt_length": 7, "data.max_response_length": 7,
    "data.train_batch_size": 7, "rollout.user_workflow": "a.py->A",
    "rollout.force_disable_toolcalls": True, "rollout.max_env_worker": 7,
    "rollout.max_response_length_in_one_turn": 7, "rollout.max_model_len": 7,
    "rollout.multi_turn.max_steps": 7, "rollout.num_repeat": 7, "rollout.temperature": 0.5,
    "rollout.agent_modules": ["a.py"], "rollout.agent.agent_loop_config_path": "a.yaml",
    "rollout.multi_turn.system_prompt": "s",
    "rollout.multi_turn.tool_config_path": "t", "rollout.multi_turn.interaction_config_path": "i",
    "rollout.multi_turn.max_assistant_turns": 7, "rollout.multi_turn.max_user_turns": 7,
    "rollout.multi_turn.max_parallel_calls": 7, "rollout.multi_turn.max_tool_calls": 7,
    "rollout.multi_turn.max_tool_response_length": 7, "rollout.multi_turn.tool_timeout_s": 0.5,
    "rollout.multi_turn.tool_response_truncate_side": "left",
    "rollout.multi_turn.max_consecutive_invalid_calls": 7,
    "rollout.top_p": 0.5, "rollout.val_kwargs.temperature": 0.5, "rollout.val_kwargs.top_k": 7,
    "rollout.val_kwargs.top_p": 0.5, "rollout.val_kwargs.do_sample": False,
    "task_reader.type": "random_dummy",
    "task_reader.huggingface_dat_repo.dataset_path": "d",
    "task_reader.huggingface_dat_repo.training_split": "s",
    "task_reader.huggingface_dat_repo.validation_split": "s",
    "task_reader.jsonl_dataset_file.training.file_path": "f",
    "task_reader.jsonl_dataset_file.validation.file_path": "f",
    "task_judge.judge_protocol": "a->A", "task_judge.model_name": "m",
    "task_judge.alien_llm_response_length": 7, "task_judge.judge_type": "rubrics_auto_grader",
    "task_judge.client.base_url": "http://u", "task_judge.client.cache_path": "p",
    "task_judge.client.max_parallel": 7, "task_judge.client.requests_per_minute": 7,
    "task_judge.client.timeout_s": 7, "task_judge.client.max_retries": 7,
    "task_judge.llm.prompt": "p",
    "task_judge.llm.query_field": "q", "task_judge.llm.answer_field": "a",
    "task_judge.llm.reference_field": "r", "task_judge.llm.min_score": 0.5,
    "task_judge.llm.max_score": 7, "task_judge.llm.success_threshold": 0.5,
    "task_judge.llm.max_corrections": 7,
    "task_judge.rubrics_auto_grader.grader_mode": "listwise",
    "task_judge.rubrics_auto_grader.language": "zh",
    "task_judge.rubrics_auto_grader.query_specific_generate_number": 7,
    "task_judge.rubrics_auto_grader.enable_categorization": True,
    "task_judge.rubrics_auto_grader.categories_number": 7,
    "task_judge.rubrics_auto_grader.num_examples": 7,
    "task_judge.rubrics_auto_grader.grader_name": "n",
    "task_judge.rubrics_auto_grader.custom_evaluation_prompt": "p",
    "task_judge.rubrics_auto_grader.dataset_file.training.file_path": "f",
    "task_judge.rubrics_auto_grader.max_score": 9, "debug.debug_max_parallel": 7,
    "debug.debug_first_n_tasks": 7, "trainer_common.val_before_train": True,
    "trainer_common.val_pass_n": 7, "trainer_common.save_freq": 7, "trainer_common.test_freq": 7,
    "trainer_common.total_epochs": 7, "trainer_common.total_training_steps": 7,
    "trainer_common.logger": "console", "trainer_common.algorithm.adv_estimator": "rloo",
    "trainer_common.algorithm.use_kl_in_reward": True,
    "trainer_common.mini_batch_num": 7, "trainer_common.optim.lr": 0.5,
    "trainer_common.use_kl_loss": False, "trainer_common.kl_loss_coef": 0.5,
    "trainer_common.kl_loss_type": "k1",
    "interchange_server.interchange_server_port": 7,
    "rollout.enable_oversample": True, "rollout.group_size_redundancy": 7,
    "rollout.compute_madness_checklist": ["nonsense", "wrong_toolcall"],
    "rollout.max_num_seqs": 7, "rollout.name": "vllm",
    "rollout.agent_madness_termination": False, "rollout.agent_madness_reward": 0.5,
    "context_tracker.check_drift": "all", "context_tracker.detect_timeline_snap": True,
}  # fmt: skip
NOTICED = {
    "rollout.tensor_model_parallel_size": 7, "rollout.n_vllm_engine": 7,
    "trainer_common.nnodes": 7, "trainer_common.n_gpus_per_node": 7,
    "trainer_common.fsdp_config.param_offload": True,
    "trainer_common.ulysses_sequence_parallel_size": 7,
}  # fmt: skip
# Sections of a reader or judge that is not chosen: the keys are known, and do nothing.
DORMANT = [
    "task_reader.env_service.env_type=e", "task_reader.env_service.env_url=http://u",
    "task_reader.env_service.env_action_preference=text",
    "task_reader.env_service.training_split=s", "task_reader.env_service.validation_split=s",
    "task_reader.data_generation.document_reader.document_path=d",
    "task_reader.data_generation.document_reader.languages=[en]",
    "task_reader.data_generation.document_reader.chunk_size=7",
    "task_reader.data_generation.document_reader.split_by=paragraph",
    "task_reader.data_generation.document_reader.cache_enabled=false",
    "task_reader.data_generation.query_reader.type=random_dummy",
    "task_reader.data_generation.task_num=7", "task_reader.data_generation.llm_model=m",
    "task_reader.data_generation.base_url=http://u", "task_reader.data_generation.cache_dir=d",
    "task_reader.data_generation.llm_response_length=7",
    "task_reader.data_generation.num_workers=7",
    "task_reader.data_generation.sampling_params={temperature: 0.1}",
    "task_reader.data_generation.deduplication_filter.enabled=false",
    "task_reader.data_generation.deduplication_filter.params.similarity_threshold=0.5",
    "task_reader.data_generation.deduplication_filter.params.db_path=d",
    "task_reader.data_generation.deduplication_filter.params.model=m",
    "task_reader.data_generation.deduplication_filter.params.api_key=k",
    "task_reader.data_generation.deduplication_filter.params.base_url=http://u",
    "task_reader.tracing.base_url=u", "task_reader.tracing.train_output_path=p",
    "task_reader.tracing.filters=[{type: tool_use}]", "task_reader.tracing.project=p",
    "task_reader.tracing.validation_fraction=0.5",
    "task_judge.rubrics_auto_grader.grader_mode=listwise",
    "task_judge.rubrics_auto_grader.language=zh",
    "task_judge.rubrics_auto_grader.query_specific_generate_number=7",
    "task_judge.rubrics_auto_grader.enable_categorization=true",
    "task_judge.rubrics_auto_grader.categories_number=7",
    "task_judge.rubrics_auto_grader.grader_name=n", "task_judge.rubrics_auto_grader.query_field=q",
    "task_judge.rubrics_auto_grader.answer_field=a",
    "task_judge.rubrics_auto_grader.reference_field=r",
    "task_judge.rubrics_auto_grader.custom_evaluation_prompt=p",
    "task_judge.rubrics_auto_grader.min_score=0.5", "task_judge.rubrics_auto_grader.max_score=9",
    "task_judge.rubrics_auto_grader.rubrics=[short]",
]  # fmt: skip


@pytest.fixture
def yaml_path(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")
    return path


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(config: AjetConfig, key: str):
    value = config
    for name in ("ajet", *key.split(".")):
        value = getattr(value, name)
    return value


NEEDED_FOR = {
    "task_judge.client": ["ajet.task_judge.judge_protocol=own.py->Judge"],
    "task_judge.llm": ["ajet.task_judge.judge_protocol=llm"],
    "task_judge.rubrics_auto_grader": ["ajet.task_judge.judge_type=rubrics_auto_grader"],
    "trainer_common.val_pass_n": ["ajet.rollout.val_kwargs.temperature=0.5"],
}


def _chosen(key):
    """What makes the key, or the section of a reader or judge, count."""
    reader = next(
        (name for name in plugins("ajet.readers") if key.startswith(f"task_reader.{name}.")), None
    )
    if reader:
        return [f"ajet.task_reader.type={reader}"]
    needed = (over for part, over in NEEDED_FOR.items() if f"{key}.".startswith(f"{part}."))
    return next(needed, [])


@pytest.mark.parametrize("key", HONOURED)
def test_an_honoured_key_is_in_the_tree_without_a_notice(key, yaml_path):
    config = load_config(yaml_path, [*_chosen(key), f"ajet.{key}={_text(HONOURED[key])}"])
    value = _value(config, key)
    assert value == HONOURED[key] or value == [HONOURED[key]]
    assert not config.notices


@pytest.mark.parametrize("key", NOTICED)
def test_a_key_without_effect_is_taken_and_said(key, yaml_path):
    config = load_config(yaml_path, [f"ajet.{key}={_text(NOTICED[key])}"])
    (notice,) = config.notices
    assert notice.startswith(f"ignored by backbone debug: ajet.{key}=")


@pytest.mark.parametrize("key", ABSENT)
def test_a_dropped_key_gets_one_line_with_the_reason_unless_it_says_what_holds(key, yaml_path):
    absent = ABSENT[key]
    for value in absent.off:
        assert not load_config(yaml_path, [f"{key}={_text(value)}"]).notices
    with pytest.raises(ConfigError) if absent.refused else nullcontext() as error:
        (line,) = load_config(yaml_path, [f"{key}=other"]).notices
        assert line == f"ignored: {key}=other ({absent.reason})"
    if error is not None:
        line = str(error.value)
        assert line == f"{key}=other is refused: {absent.reason}; leave it out"


def test_an_old_run_folder_with_dropped_keys_opens(tmp_path):
    values = AjetConfig().to_dict()
    values["ajet"]["task_runner"] = {"wrapper_type": "asyncio-with-gc"}
    values["ajet"]["debug"]["debug_vllm_port"] = 18000
    values["ajet"]["rollout"]["val_kwargs"]["num_repeat"] = 1
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    opened = saved_config(file, yaml_path=file, project_dir=None)
    assert opened.to_dict() == AjetConfig().to_dict()


def test_a_stage_takes_a_dropped_key(yaml_path):
    stages = ["+ajet.stages={first: {debug: {debug_vllm_port: 7}}}"]
    (stage,) = load_stages(yaml_path, stages)
    assert "ajet.debug.debug_vllm_port=7" in stage.notices[0]


@pytest.mark.parametrize("override", DORMANT)
def test_a_key_of_a_reader_or_judge_that_is_not_chosen_is_known_and_said(override, yaml_path):
    (notice,) = load_config(yaml_path, [f"ajet.{override}"]).notices
    chosen = "reader.type is hugging" if "reader." in override else "judge.judge_type is customized"
    assert notice.startswith(f"ignored: ajet.{override.split('=')[0]}=")
    assert f"(ajet.task_{chosen}" in notice


@pytest.mark.parametrize(
    ("judge", "ignored"),
    [
        ("judge_protocol=math", ["client.max_parallel", "llm.prompt", "rubrics_auto_grader"]),
        ("judge_protocol=null", ["client.max_parallel", "llm.prompt", "rubrics_auto_grader"]),
        ("judge_protocol=llm_listwise", ["rubrics_auto_grader"]),
        ("judge_protocol=own.py->Judge", ["rubrics_auto_grader"]),
        ("judge_type=rubrics_auto_grader", ["judge_protocol", "llm.prompt"]),
    ],
)
def test_settings_that_the_chosen_judge_does_not_read_are_reported(judge, ignored, yaml_path):
    keys = ["client.max_parallel=7", "llm.prompt=p", "rubrics_auto_grader.language=zh"]
    given = ["judge_protocol=math", judge, *keys]
    notices = load_config(yaml_path, [f"ajet.task_judge.{text}" for text in given]).notices
    said = [notice.split("=")[0].removeprefix("ignored: ajet.task_judge.") for notice in notices]
    assert [key.removesuffix(".language") for key in said] == ignored


def test_criteria_are_texts_or_texts_with_a_weight(yaml_path):
    rubrics = "ajet.task_judge.rubrics_auto_grader.rubrics=[short, {text: right, weight: 3}]"
    chosen = NEEDED_FOR["task_judge.rubrics_auto_grader"]
    section = load_config(yaml_path, [*chosen, rubrics]).ajet.task_judge.rubrics_auto_grader
    assert [(c.text, c.weight) for c in section.rubrics] == [("short", 1.0), ("right", 3.0)]
    with pytest.raises(ConfigError, match="weight"):
        load_config(yaml_path, [*chosen, rubrics.replace("3", "0")])


@pytest.mark.parametrize(
    ("override", "problem"),
    [("min_score=1", "min_score 1 is not below max_score 1"), ("success_threshold=2", "outside")],
)
def test_a_scale_must_be_one(override, problem, yaml_path):
    with pytest.raises(ConfigError, match=problem):
        load_config(yaml_path, [f"ajet.task_judge.llm.{override}"])


@pytest.mark.parametrize("chosen", [*plugins("ajet.readers"), "own.py->Reader"])
def test_only_sections_of_built_in_readers_that_are_not_chosen_are_noticed(chosen, yaml_path):
    given = {
        "jsonl_dataset_file": "jsonl_dataset_file.training.file_path=f",
        "huggingface_dat_repo": "huggingface_dat_repo.dataset_path=d",
        "random_dummy": "random_dummy.num_training=7",
        "env_service": "env_service.env_url=http://u",
        "data_generation": "data_generation.task_num=7",
        "tracing": "tracing.base_url=u",
    }
    overrides = [f"ajet.task_reader.{text}" for text in given.values()]
    notices = load_config(yaml_path, [*overrides, f"ajet.task_reader.type={chosen}"]).notices
    ignored = set() if "->" in chosen else set(given) - {chosen}
    said = [notice for notice in notices if notice.startswith("ignored: ajet.task_reader.")]
    assert {notice.split(".")[2] for notice in said} == ignored


def test_a_notice_shows_no_secret(yaml_path):
    key = "ajet.task_reader.data_generation.deduplication_filter.params.api_key"
    (notice,) = load_config(yaml_path, [f"{key}=sk-123"]).notices
    assert "api_key=***" in notice and "sk-123" not in notice
    secret = "{type: deduplication, params: {model: m, api_key: sk-123}}"
    (notice,) = load_config(yaml_path, [f"ajet.task_reader.tracing.filters=[{secret}]"]).notices
    assert "sk-123" not in notice


def test_more_mini_batches_than_groups_are_noticed(yaml_path):
    size = "ajet.data.train_batch_size=4"
    assert not load_config(yaml_path, [size, "ajet.trainer_common.mini_batch_num=4"]).notices
    (notice,) = load_config(yaml_path, [size, "ajet.trainer_common.mini_batch_num=5"]).notices
    assert "mini_batch_num=5: a step has 4 groups" in notice and "4 mini-batches at most" in notice


@pytest.mark.parametrize(
    ("sampling", "default"),
    [("do_sample=false", 1), ("temperature=0.5", 4), ("temperature=null", 4)],
)
def test_a_greedy_validation_plays_a_task_once_and_says_where_repeats_would_be_alike(
    yaml_path, sampling, default
):
    sampling, repeats = f"ajet.rollout.val_kwargs.{sampling}", "ajet.trainer_common.val_pass_n"
    config = load_config(yaml_path, [sampling])
    assert config.validation_repeats == default and not config.notices
    config = load_config(yaml_path, [sampling, f"{repeats}=3"])
    assert config.validation_repeats == 3 and len(config.notices) == (default == 1)
    for notice in config.notices:
        assert "val_pass_n=3: validation is greedy, so the model answers alike in all 3" in notice
    assert not load_config(yaml_path, [sampling, f"{repeats}=1"]).notices


def test_every_tool_parser_that_is_built_can_be_named():
    (*names,) = get_args(RolloutConfig.model_fields["tool_parser"].annotation)
    assert names == ["auto", *PARSERS]


@pytest.mark.parametrize(
    ("overrides", "notices"),
    [
        (
            ["log_tool_format_check=true"],
            [
                "ignored: ajet.context_tracker.log_tool_format_check=True "
                "(it needs wrong_toolcall in ajet.rollout.compute_madness_checklist)"
            ],
        ),
        (
            ["log_tool_format_error_detail=true"],
            [
                "ignored: ajet.context_tracker.log_tool_format_error_detail=True "
                "(it needs ajet.context_tracker.log_tool_format_check=true)"
            ],
        ),
    ],
)
def test_a_log_of_tool_calls_that_nothing_checks_is_noticed(overrides, notices, yaml_path):
    asked = [f"ajet.context_tracker.{override}" for override in overrides]
    assert load_config(yaml_path, asked).notices == notices


def test_a_log_of_tool_calls_that_are_checked_is_honoured(yaml_path):
    asked = [
        "ajet.rollout.compute_madness_checklist=[wrong_toolcall]",
        "ajet.context_tracker.log_tool_format_check=true",
        "ajet.context_tracker.log_tool_format_error_detail=true",
    ]
    assert not load_config(yaml_path, asked).notices


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("qwen3-coder", "qwen3_coder"),
        ("gpt-oss", "gpt_oss"),
        ("llama3_json", "llama3"),
        ("glm45", "glm"),
        ("minimax-m2", "minimax_m2"),
        ("gemma4", "gemma"),
    ],
)
def test_other_spellings_of_a_tool_parser_are_taken(name, parser, yaml_path):
    config = load_config(yaml_path, [f"ajet.rollout.tool_parser={name}"])
    assert config.ajet.rollout.tool_parser == parser


def _sections(model: type[BaseModel], path: str):
    yield path, model
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _sections(inner, f"{path}.{name}")


SECTIONS = dict(_sections(AjetConfig, "config"))


@pytest.mark.parametrize("path", SECTIONS)
def test_every_field_says_in_a_sentence_what_it_is(path):
    for name, field in SECTIONS[path].model_fields.items():
        text = field.description or ""
        assert text[:1].strip() and text.endswith("."), f"{path}.{name}"


@pytest.mark.parametrize("name", default_config.FILES)
def test_the_default_yaml_is_written_from_the_tree(name):
    text = default_config.FILES[name].read_text()
    assert text == default_config.file_text(name), "python scripts/default_config.py --write"
    assert yaml.safe_load(text) == {name: AjetConfig().to_dict()[name]}


def test_the_default_yaml_has_the_keys_of_an_environment_in_a_comment():
    text = default_config.FILES["ajet"].read_text()
    comment = text.partition("    # Each entry of custom_envs")[2].partition("    custom_envs:")[0]
    entry = yaml.safe_load("\n".join(re.findall(r"(?m)^    #   (.*)$", comment)))
    assert list(entry) == list(CustomEnv.model_fields)
    assert CustomEnv(**entry) == CustomEnv(env_type=entry["env_type"])


RUNS = [path for path in sorted(Path("tutorial").rglob("*.yaml")) if "\najet:" in path.read_text()]


@pytest.mark.parametrize("path", RUNS, ids=str)
def test_every_shipped_yaml_loads(path):
    load_config(path, ["++ajet.model.path=m", "ajet.backbone=debug"])


def test_the_defaults_alone_are_the_tree(tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.write_text("ajet: {}\n")
    assert AjetConfig.model_validate(compose(empty, []).values) == AjetConfig()


@pytest.mark.parametrize(
    "key",
    [
        "task_judge.client.base_url",
        "distillation.base_url",
        "task_reader.env_service.env_url",
        "task_reader.data_generation.base_url",
        "task_reader.tracing.base_url",
    ],
)
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://h:abc", "is not an address"),
        ("http://[::1", "is not an address"),
        ("http://", "names no host"),
        ("http://h/v1\n", "a space or a line break"),
        ("http://me:secret@h/v1", "leave the login out"),
    ],
)
def test_an_address_that_is_none_is_one_line_without_its_login(key, address, said, yaml_path):
    with pytest.raises(ConfigError, match=said) as error:
        load_config(yaml_path, [f"ajet.{key}='{address}'"])
    _, found, told = str(error.value).rpartition(f"ajet.{key}: ")
    assert found and "\n" not in told and "secret" not in told


def test_retries_that_no_policy_makes_are_noticed(yaml_path):
    asked = ["ajet.rollout.max_retries=5"]
    assert load_config(yaml_path, asked).notices == [
        "ignored: ajet.rollout.max_retries=5 (ajet.rollout.failure_policy is mask)"
    ]
    assert not load_config(yaml_path, [*asked, "ajet.rollout.failure_policy=retry"]).notices


def test_a_judges_sampling_holds_no_other_part_of_the_request(yaml_path):
    with pytest.raises(ConfigError, match="stream is not a sampling parameter"):
        load_config(yaml_path, ["ajet.task_judge.llm.sampling={stream: true}"])
