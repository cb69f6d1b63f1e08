"""A YAML and overrides become one tree, and every mistake is one line that says where."""

import copy
import pickle
from pathlib import Path

import pytest

from ajet.core.config import load_config, load_stages
from ajet.core.config.compose import PACKAGED
from ajet.core.config.overrides import override_value
from ajet.core.errors import ConfigError

MINIMAL = "ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n"
BOILERPLATE = """
hydra:
  searchpath:
    - file://ajet/default_config
    - file://ajet/default_config/verl         # verl only
    - file://ajet/default_config/trinity      # trinity only

defaults:
  - verl_default # verl inherit 1/1
  - trinity_default # trinity inherit 1/1
  - ajet_default
  - _self_
"""
TUTORIAL = """
ajet:
  project_name: math_agent
  task_reader:
    type: huggingface_dat_repo
    huggingface_dat_repo:
      dataset_path: 'gsm8k/main'
      training_split: "train"
      validation_split: "test"
  data:
    train_batch_size: 264
    max_prompt_length: 3000
    max_response_length: 10000
  model:
    path: Qwen/Qwen2.5-14B-Instruct
  rollout:
    user_workflow: workflow.py->MathAgentWorkflow
    temperature: 0.7
    max_env_worker: 64
    num_repeat: 4
    agent_madness_reward: 0.0
    tensor_model_parallel_size: 1
    max_num_seqs: 40
    multi_turn:
      max_sample_per_task: 4
    compute_madness_checklist:
      - "nonsense"
      - "wrong_toolcall"
    max_response_length_in_one_turn: 1024
    max_model_len: 13000
  task_judge:
    judge_protocol: tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge
  trainer_common:
    save_freq: 99999
    test_freq: 99999
    total_epochs: 99999
    trinity_only__n_vllm_engine: 2

trinity:
  trainer:
    max_token_len_per_gpu: 13000
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def error_of(path: Path, *overrides: str, **options) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(path, overrides, **options)
    return str(error.value)


def test_the_tutorials_yaml_loads_from_a_foreign_folder(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = write(tmp_path, TUTORIAL + BOILERPLATE, "math_agent.yaml")
    config = load_config(path, ["ajet.model.path=embedded:math"])
    assert config.ajet.model.path == "embedded:math"
    assert config.ajet.rollout.n_vllm_engine == 2  # from trainer_common.trinity_only__n_vllm_engine
    assert config.trinity.trainer.max_token_len_per_gpu == 13000
    assert config.experiment_name == "math_agent"
    assert config.run_folder == Path("launcher_record/math_agent")
    assert len(config.notices) == 3  # the three keys that one process has no use for


@pytest.mark.parametrize("chosen", ["override hydra/job_logging", "override /hydra/help"])
def test_a_yaml_may_choose_among_hydras_own_settings_which_are_not_read(tmp_path, chosen):
    defaults = f"defaults: [ajet_default, _self_, {{{chosen}: default}}]\n"
    assert load_config(write(tmp_path, defaults + MINIMAL)).ajet.model.path is not None


def test_the_boilerplate_changes_nothing(tmp_path):
    plain = load_config(write(tmp_path, TUTORIAL, "a.yaml"))
    dressed = load_config(write(tmp_path, TUTORIAL + BOILERPLATE, "b.yaml"))
    assert plain.to_dict() == dressed.to_dict()


def test_a_users_own_defaults_are_found_beside_the_yaml_and_in_its_search_path(tmp_path):
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", "ajet:\n  seed: 7\n", "team.yaml")
    write(tmp_path, "ajet:\n  rollout: {num_repeat: 9}\n", "base.yaml")
    boilerplate = "hydra: {searchpath: [file://shared]}\n"
    path = write(tmp_path, boilerplate + "defaults: [ajet_default, base, team, _self_]\n" + MINIMAL)
    config = load_config(path)
    assert (config.ajet.seed, config.ajet.rollout.num_repeat) == (7, 9)


def test_a_file_of_the_projects_defaults_is_parsed_once_and_every_composition_has_its_own(tmp_path):
    from ajet.core.config.packaged_defaults import PackagedDefaults

    write(tmp_path, "ajet: {seed: 7}\n", "base.yaml")
    source = PackagedDefaults("test", f"ajet://{tmp_path}")
    first = source.load_config("base").config
    first.ajet.seed = 8
    write(tmp_path, "ajet: {seed: 9}\n", "base.yaml")
    assert source.load_config("base").config == {"ajet": {"seed": 7}}


def test_a_yaml_with_stages_is_composed_once(tmp_path):
    from omegaconf import OmegaConf

    path = write(tmp_path, MINIMAL + "  seed: ${seen:}\n  stages: {one: {}, two: {}}\n")
    seen = []
    OmegaConf.register_new_resolver("seen", lambda: seen.append(1) or len(seen))
    try:
        assert [stage.ajet.seed for stage in load_stages(path)] == [1, 1]
    finally:
        OmegaConf.clear_resolver("seen")


def test_a_missing_entry_of_defaults_says_where_it_was_looked_for(tmp_path):
    looked = f"looked in {tmp_path}, {PACKAGED[0]} and the folders of hydra.searchpath"
    path = write(tmp_path, "defaults: [nope_default, _self_]\n" + MINIMAL)
    assert error_of(path) == f"{path}: defaults: there is no nope_default.yaml; {looked}"
    write(tmp_path, "defaults: [nowhere]\n", "base.yaml")
    path = write(tmp_path, "defaults: [base, _self_]\n" + MINIMAL)
    assert error_of(path) == f"{path}: defaults: there is no nowhere.yaml; {looked}"


def test_defaults_that_do_not_name_the_yaml_itself_come_before_it(tmp_path, recwarn):
    write(tmp_path, "ajet: {seed: 7, rollout: {num_repeat: 9}}\n", "base.yaml")
    path = write(tmp_path, "defaults: [ajet_default, base]\n" + MINIMAL + "  seed: 3\n")
    config = load_config(path)
    assert (config.ajet.seed, config.ajet.rollout.num_repeat) == (3, 9)
    assert not [str(warning.message) for warning in recwarn]


def test_a_file_that_is_no_text_is_one_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe")
    says = f"{path}: not a text file in UTF-8: invalid start byte at byte 0; save it in UTF-8"
    assert error_of(path) == says


def test_overrides_come_in_hydras_forms(tmp_path):
    path = write(tmp_path, MINIMAL + "frozen_lake: {size: 4, slippery: true}\n")
    overrides = ["ajet.seed=3", "+mine.x=[1,2]", "~frozen_lake.slippery", "frozen_lake.size=8"]
    config = load_config(path, [*overrides, "ajet.rollout.user_workflow=flow.py->Agent"])
    assert config.ajet.seed == 3
    assert config.ajet.rollout.user_workflow == "flow.py->Agent"
    assert config.user_sections() == {"frozen_lake": {"size": 8}, "mine": {"x": [1, 2]}}


def test_a_users_own_section_is_reached_by_attributes(tmp_path):
    path = write(tmp_path, MINIMAL + "frozen_lake: {size: 4, maps: [{seed: 1}]}\n")
    config = load_config(path)
    assert config.frozen_lake.size == 4 and config.frozen_lake.maps[0].seed == 1
    assert config.frozen_lake["size"] == config.frozen_lake.get("size") == 4
    with pytest.raises(AttributeError, match="no key 'siez'; did you mean 'size'"):
        _ = config.frozen_lake.siez


def test_the_tree_is_frozen_and_travels(tmp_path):
    config = load_config(write(tmp_path, MINIMAL + "mine: {x: 1}\n"))
    with pytest.raises(ValueError, match="frozen"):
        config.ajet.seed = 1
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert twin == config and twin.mine.x == 1 and twin.experiment_name == "run"


METHODS = ["items", "copy", "keys", "values", "get", "pop", "update", "setdefault", "clear"]


def test_a_key_named_like_a_method_of_a_mapping_is_reached_by_attributes(tmp_path):
    lines = "".join(f"  {name}: {place}\n" for place, name in enumerate(METHODS))
    config = load_config(write(tmp_path, MINIMAL + f"shop:\n{lines}other: {{x: 1}}\n"))
    expected = {name: place for place, name in enumerate(METHODS)}
    assert {name: getattr(config.shop, name) for name in METHODS} == expected
    assert config.shop == dict(config.shop) == {**config.shop} == expected
    assert list(config.other.items()) == [("x", 1)] and config.other.get("y", 2) == 2
    assert config.to_dict()["shop"] == expected
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert twin == config and twin.shop.items == 0 and type(twin.shop) is type(config.shop)


def test_a_misspelt_section_of_the_users_own_gets_a_hint(tmp_path):
    config = load_config(write(tmp_path, MINIMAL + "frozen_lake: {size: 4, 3: x}\n"))
    with pytest.raises(AttributeError, match="no section 'frozen_lak'; did you mean 'frozen_lake"):
        _ = config.frozen_lak
    with pytest.raises(AttributeError, match="no section 'x'; it has ajet, verl, trinity, frozen"):
        _ = config.x
    with pytest.raises(AttributeError, match="no key 'x'; it has size, 3"):
        _ = config.frozen_lake.x
    assert not hasattr(config, "__len__") and getattr(config, "nope", 7) == 7


def test_exp_dir_and_a_run_folder_are_two_answers(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert error_of(path, "ajet.experiment_dir=/a/b", exp_dir="d") == (
        "override 'ajet.experiment_dir=/a/b': ajet.experiment_dir names the run folder, and "
        "--exp-dir d gives another: leave one of them out"
    )
    assert load_config(path, ["ajet.experiment_dir=auto"], exp_dir="d").run_folder == Path("d/run")


def test_a_project_folder_that_is_not_there_is_an_error(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert error_of(path, project_dir="no/where") == "--project-dir no/where: no such folder"
    assert "no such folder" in error_of(path, project_dir=path)


def test_exp_dir_holds_the_run_folder(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert load_config(path, exp_dir="saved_experiments").run_folder == Path(
        "saved_experiments/run"
    )
    named = load_config(path, ["ajet.experiment_name=one"], exp_dir="d")
    assert named.run_folder == Path("d/one")
    assert load_config(path, ["ajet.experiment_dir=/a/b"]).run_folder == Path("/a/b")


def test_interpolations_are_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("AJET_TEST_SEED", "5")
    text = MINIMAL + "  seed: ${oc.decode:${oc.env:AJET_TEST_SEED}}\nmine: {s: '${ajet.seed}'}\n"
    config = load_config(write(tmp_path, text))
    assert config.ajet.seed == config.mine.s == 5


MISTAKES = [
    ("ajet:\n  rolout: {}\n", "run.yaml:2: ajet.rolout: no such key; did you mean 'rollout'?"),
    (
        "ajet:\n  rollout:\n    temprature: 1\n",
        "run.yaml:3: ajet.rollout.temprature: no such key; did you mean 'temperature'?",
    ),
    (
        "ajet:\n  rollout:\n    num_repeat: four\n",
        "run.yaml:3: ajet.rollout.num_repeat: integer is expected, got 'four'",
    ),
    (
        "ajet:\n  rollout:\n    num_repeat: true\n",
        "run.yaml:3: ajet.rollout.num_repeat: integer is expected, got True",
    ),
    (
        "ajet:\n  rollout:\n    num_repeat: 0\n",
        "run.yaml:3: ajet.rollout.num_repeat: greater than or equal to 1 is expected, got 0",
    ),
    ("ajet:\n  rollout: 3\n", "run.yaml:2: ajet.rollout: a section is expected here, got 3"),
    (
        "ajet:\n  environment:\n    custom_envs:\n      A: {env_type: b, max_step: 3}\n",
        "run.yaml:4: ajet.environment.custom_envs.A.max_step: no such key; did you mean 'max_steps'?",  # noqa: E501
    ),
    ("ajt: {}\n", "run.yaml:1: ajt: no such section; did you mean 'ajet'?"),
    (
        "model: {path: m}\n",
        "run.yaml:1: model: stands at the top level; write it under 'ajet:' as ajet.model",
    ),
    (
        "buffer: {explorer_input: {}}\n",
        "run.yaml: looks like a config of Trinity-RFT (it has buffer.explorer_input); convert it: "
        "ajet convert --from trinity run.yaml --out mine.yaml",
    ),
    (
        "ajet:\n  model: {path: {{MODEL}}}\n  data: {train_batch_size: {{ N }}}\n",
        "run.yaml: a template: fill in its placeholders, {{MODEL}}, {{N}}",
    ),
    (
        "ajet:\n  model:\n    path: {{models}}/small\n",
        "run.yaml: a template: fill in its placeholders, {{models}}",
    ),
    (
        "ajet:\n  model: {path: '{{A}}'}\n  seed: '{{B}}'\n  x: ['{{C}}', '{{D}}']\n",
        "run.yaml: a template: fill in its placeholders, {{A}}, {{B}}, {{C}} and 1 more",
    ),
    (
        "ajet: {execute_test: true, execute_testing_lambda: f}\n",
        "ajet.execute_test=True and ajet.execute_testing_lambda=f are refused: a run does not run "
        "the project's tests; leave them out",
    ),
    (
        "ajet: {}\nactor_rollout_ref: {}\n",
        "run.yaml:2: actor_rollout_ref: is verl's own key; set ajet.rollout, "
        "ajet.trainer_common or verl instead",
    ),
    ("notices: {}\n", "run.yaml:1: notices: is a reserved name; rename this section of yours"),
    (
        "ajet:\n  task_reader:\n    jsonl_dataset_file: {training: {file_path: t.jsonl}}\n",
        "run.yaml:2: ajet.task_reader: type is huggingface_dat_repo, whose dataset_path is "
        "missing; to read jsonl_dataset_file.training.file_path (t.jsonl), write type: "
        "jsonl_dataset_file",
    ),
    (
        "ajet:\n  trainer_common:\n    optim: {betas: [1.5, 0.9]}\n",
        "run.yaml:3: ajet.trainer_common.optim.betas: less than 1 is expected, got 1.5",
    ),
    (
        "ajet:\n  trainer_common:\n    optim:\n      betas: [0.9]\n",
        "run.yaml:4: ajet.trainer_common.optim.betas: list should have at least 2 items after "
        "validation, not 1, got [0.9]",
    ),
    (
        "ajet:\n  trainer_common:\n    optim: {lr: .inf}\n",
        "run.yaml:3: ajet.trainer_common.optim.lr: a finite number is expected, got inf",
    ),
    (
        "ajet:\n  rollout:\n    agent_madness_reward: .nan\n",
        "run.yaml:3: ajet.rollout.agent_madness_reward: a finite number is expected, got nan",
    ),
    (
        "ajet:\n  rollout: {tool_parser: qwen}\n",
        "run.yaml:2: ajet.rollout.tool_parser: 'auto', 'hermes', 'qwen3_coder', 'llama3', "
        "'mistral', 'deepseek', 'gpt_oss', 'glm', 'kimi_k2', 'minimax_m2', 'json', 'nemotron' or "
        "'gemma' "
        "is expected, got 'qwen'",
    ),
    ("defaults: 3\n", "run.yaml: defaults: a list is expected, got 3"),
    ("defaults: base\n", "run.yaml: defaults: a list is expected, got 'base'"),
    ("defaults: [3]\n", "run.yaml: Unsupported type in defaults : int"),
    ("hydra: 3\n", "run.yaml: hydra: a section is expected here, got 3"),
    ("hydra: {searchpath: x}\n", "run.yaml: hydra.searchpath: a list is expected, got 'x'"),
    (
        "hydra: {searchpath: [x]}\n",
        "run.yaml: hydra.searchpath: 'x': write file://folder or pkg://module",
    ),
    (
        "ajet: &a {model: *a}\n",
        "run.yaml: not valid YAML: an anchor (&name) refers to itself, or it nests too deeply",
    ),
    ("ajet: {}\nx: a\0b\n", "run.yaml:2: not valid YAML: the character #x00 is not allowed"),
    ("ajet: {}\nnull: 3\n", "run.yaml: not valid YAML: Incompatible key type 'NoneType'"),
    ("3\n", "run.yaml: a config is a mapping with a section 'ajet:'"),
    (
        "ajet: {model: {path: '${nope.x}'}}\n",
        "run.yaml:1: ajet.model.path: ${nope.x} names no key; write a key of the config, or the "
        "value",
    ),
    (
        "a: ${b}\nb: ${a}\n",
        "run.yaml: a: Recursive interpolation detected",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[m[:50] for _, m in MISTAKES])
def test_a_mistake_in_the_yaml_is_one_line_with_its_place(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text)
    assert error_of(Path("run.yaml")) == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mine.x=1", "mine: no such key; to add it, write +mine.x=1"),
        ("ajt.seed=1", "ajt: no such section; did you mean 'ajet'?"),
        ("+ajt.seed=1", "ajt: no such section; did you mean 'ajet'?"),
        ("seed=1", "seed: stands at the top level; write it under 'ajet:' as ajet.seed"),
        ("lak.size=1", "lak: no such key; did you mean 'lake'? To add it, write +lak.size=1"),
        ("lake.siz=1", "lake.siz: no such key; did you mean 'size'? To add it, write +lake.siz=1"),
        ("lake.size.x=1", "lake.size is not a section: it is 4"),
        ("~lake.siz", "lake.siz: no such key; did you mean 'size'?"),
        ("ajet@x=1", "write a key of the tree as ajet.…=value"),
        ("ajet/seed=1", "write a key of the tree as ajet.…=value"),
    ],
)
def test_an_override_of_an_unknown_key_gets_the_advice_of_the_yaml(tmp_path, override, message):
    path = write(tmp_path, MINIMAL + "lake: {size: 4}\n")
    assert error_of(path, override) == f"override {override!r}: {message}"


def test_an_unknown_key_is_told_before_an_interpolation_that_leads_nowhere(tmp_path):
    path = write(tmp_path, MINIMAL + "lake: {size: '${not.there}'}\n")
    assert "lake.siz: no such key; did you mean 'size'?" in error_of(path, "lake.siz=1")
    assert "lake.size: ${not.there} names no key" in error_of(path)


def test_a_value_at_the_top_level_with_the_name_of_a_key_is_noticed(tmp_path):
    path = write(tmp_path, MINIMAL + "num_repeat: 8\nmine: 3\nlake: {num_repeat: 2}\n")
    config = load_config(path)
    line = MINIMAL.count("\n") + 1
    assert config.notices == [
        f"{path}:{line}: num_repeat: only your own code reads it at the top level; did you mean "
        "'ajet.rollout.num_repeat'?"
    ]
    assert config.num_repeat == 8


NO_KEYS = ["=3", "@foo=3", ".a=3", "a..b=3", "ajet.=3", "+=3", "~", "++", "a b=3", "a[0]=3", "-x=1"]


@pytest.mark.parametrize("override", NO_KEYS)
def test_an_override_without_a_key_is_one_line(tmp_path, override):
    message = error_of(write(tmp_path, MINIMAL), override)
    assert message == f"override {override!r}: write key=value, for example ajet.seed=1"


@pytest.mark.parametrize("override", ["hydra=3", "hydra.run.dir=x", "+hydra.x=1", "hydra/job=x"])
def test_hydras_own_settings_are_refused_in_an_override(tmp_path, override):
    assert "Hydra's own settings cannot be overridden" in error_of(
        write(tmp_path, MINIMAL), override
    )


def test_hydras_own_settings_in_the_yaml_are_noticed_but_for_the_search_path(tmp_path):
    boilerplate = "hydra: {searchpath: [file://x], run: {dir: y}, job: {name: z}}\n"
    notices = load_config(write(tmp_path, MINIMAL + boilerplate)).notices
    assert [notice.split(" (")[0] for notice in notices] == [
        "ignored: hydra.run",
        "ignored: hydra.job",
    ]


@pytest.mark.parametrize("value", ["7", "007", "1e5", "true", "3.50", "a=b", "x y"])
def test_a_key_that_takes_text_takes_what_looks_like_a_number(tmp_path, value):
    path = write(tmp_path, MINIMAL)
    overrides = [f"ajet.experiment_name={value}", f"++ajet.model.path={value}"]
    config = load_config(path, overrides)
    assert (config.ajet.experiment_name, config.ajet.model.path) == (value, value)
    assert "ajet.model.path is missing" in error_of(path, "ajet.model.path=null")
    assert "string is expected, got [1]" in error_of(path, "ajet.experiment_name=[1]")


def test_several_mistakes_are_told_at_once(tmp_path):
    text = "ajet:\n  sed: 1\n  rollout: {num_repeat: x, top_p: 2, top_k: y, tempratur: 1, nam: 1}\n"
    path = write(tmp_path, text)
    head, *lines = error_of(path).splitlines()
    assert head == "6 mistakes in the config:"
    assert lines[0] == f"  {path}:3: ajet.rollout.num_repeat: integer is expected, got 'x'"
    assert all(line.startswith(f"  {path}:") for line in lines[:5])
    assert len(lines) == 6 and lines[-1] == "  … and 1 more"


def test_a_key_under_both_spellings_with_two_values_is_an_error(tmp_path):
    text = MINIMAL + "  trainer_common: {trinity_only__n_vllm_engine: 3}\n"
    path = write(tmp_path, text)
    assert load_config(path).ajet.rollout.n_vllm_engine == 3
    assert "one key with two values: 3, 2" in error_of(path, "ajet.rollout.n_vllm_engine=2")


def test_do_sample_may_not_contradict_the_temperature(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert "contradicts temperature" in error_of(path, "ajet.rollout.val_kwargs.do_sample=true")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ajet:\n  num_repeat: 8\n", "did you mean 'rollout.num_repeat'?"),
        ("ajet:\n  data: {num_repeat: 8}\n", "did you mean 'ajet.rollout.num_repeat'?"),
        ("ajet:\n  rollout: {temprature: 1}\n", "did you mean 'temperature'?"),
    ],
)
def test_a_key_in_the_wrong_section_is_told_where_it_belongs(tmp_path, text, message):
    assert message in error_of(write(tmp_path, text))


def test_a_list_for_a_section_is_told_by_key_and_line(tmp_path):
    path = write(tmp_path, "ajet:\n  trainer_common:\n    optim: {betas: {a: 1}}\n")
    assert f"{path}:3: ajet.trainer_common.optim.betas: a list is expected" in error_of(path)
    path = write(tmp_path, MINIMAL)
    expected = "override 'ajet.rollout=[a]': a list is given for a section, or a section for a list"
    assert error_of(path, "ajet.rollout=[a]") == expected


@pytest.mark.parametrize(
    "value", [r"C:\me\s.py->S", "a\\\\b->c", "x->\\", r"it's\->", "a\\'->b", r"{\d+}"]
)
def test_text_outside_of_hydras_grammar_keeps_its_backslashes(value):
    assert override_value(f"ajet.experiment_name={value}") == ("ajet.experiment_name", value)
