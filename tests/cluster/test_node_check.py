"""What is asked of the nodes of a run, and what is said of those that cannot take part."""

import sys
from dataclasses import replace

import pytest

pytest.importorskip("ray")

from ray.cloudpickle import cloudpickle

from ajet.cluster import node_check
from ajet.cluster.node_check import (
    check_nodes,
    describe_difference,
    describe_versions,
    require_run_folder,
    shared_inputs,
    version_reader,
)
from ajet.cluster.placement import Node, Placement, Process
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from tests.e2e.toy_run import ToyRun

HERE = Node("10.0.0.1", 4.0, 0, "a")
THERE = Node("10.0.0.2", 4.0, 0, "b", is_remote=True, sees_run_folder=False)


def on_both(role):
    return Process(role, 0, 0), Process(role, 1, 1)


BOTH = Placement((HERE, THERE), on_both("trainer"), on_both("engine"), on_both("worker"))


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    """The config of a toy run with these overrides, from its folder."""
    ToyRun(tmp_path)
    monkeypatch.chdir(tmp_path)
    return lambda *overrides, backbone="verl": load_config(
        "toy.yaml", list(overrides), backbone=backbone
    )


def test_a_run_on_the_drivers_machine_asks_nobody(config_of, tmp_path):
    alone = replace(BOTH, nodes=(HERE,))
    assert check_nodes(alone, config_of(), tmp_path, options=None) is alone


def test_code_and_files_are_compared_and_the_data_is_not(config_of, tmp_path):
    (tmp_path / "helper.py").write_text("")
    workflow = (tmp_path / "workflow.py").read_text()
    (tmp_path / "workflow.py").write_text(f"import helper\n{workflow}")
    (tmp_path / "tools.yaml").write_text("tools: []\n")
    config = config_of("ajet.rollout.multi_turn.tool_config_path=tools.yaml")
    assert set(shared_inputs(config)) == {
        "workflow.py",
        "helper.py",
        "ajet.rollout.multi_turn.tool_config_path",
    }


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"a.py": "1", "b.py": "2"}, None),
        ({"a.py": "1"}, "no b.py"),
        ({"a.py": "1", "b.py": "3"}, "another b.py"),
        ({"a.py": "1", "b.py": "2", "c.py": "4"}, "c.py, which is not here"),
        ({"c.py": "1", "d.py": "1", "e.py": "1"}, "no a.py, no b.py, c.py, which is not here"),
    ],
)
def test_missing_or_different_files_of_a_node_are_named(there, said):
    found = describe_difference({"a.py": "1", "b.py": "2"}, there)
    assert found is None if said is None else found is not None and found.startswith(said)


def test_versions_that_differ_are_named_with_both():
    here = {"Python": "3.11.2", "ajet": "0.1", "torch": "2.13.0"}
    said = describe_versions(here, {"Python": "3.11.2", "torch": "2.12.0"})
    assert said == "ajet is missing (here 0.1), torch 2.12.0 (here 2.13.0)"


def test_a_node_without_ajet_can_say_so(monkeypatch):
    """What is sent is the function's code, and not the name of a module that the node lacks."""
    sent = cloudpickle.dumps(version_reader())
    for name in [each for each in sys.modules if each.partition(".")[0] == "ajet"]:
        monkeypatch.setitem(sys.modules, name, None)
    found = cloudpickle.loads(sent)()
    assert "Python" in found and "ajet's files" not in found


def test_the_versions_of_one_machine_are_equal():
    assert version_reader()() == version_reader()()
    assert len(version_reader()()["ajet's files"]) == 8


def test_a_node_without_the_run_folder_trains_samples_and_plays(config_of):
    require_run_folder(config_of(), BOTH)
    require_run_folder(config_of(backbone="trinity"), BOTH)


RUBRICS = (
    "ajet.task_judge.judge_type=rubrics_auto_grader",
    "ajet.task_judge.model_name=m",
)


@pytest.mark.parametrize(
    ("backbone", "overrides", "purpose"),
    [
        ("verl", ["verl.rollout.sync_method=checkpoint"], "the trainer writes weights for the"),
        ("trinity", ["trinity.synchronizer.sync_method=checkpoint"], "the trainer writes weights"),
        ("trinity", ["trinity.mode=explore"], "the trainer writes weights for the engines"),
        ("verl", RUBRICS, "judges keep the rubrics that they make"),
        ("verl", ["ajet.environment.render_save_dir=frames"], "pictures of episodes are written"),
    ],
)
def test_settings_that_need_the_run_folder_are_refused_for_a_node_without_it(
    config_of, backbone, overrides, purpose
):
    with pytest.raises(ConfigError) as error:
        require_run_folder(config_of(*overrides, backbone=backbone), BOTH)
    line = str(error.value)
    assert line.startswith("node 10.0.0.2 does not see the run folder /") and "\n" not in line
    assert f"where {purpose}" in line and error.value.code.name == "RUN_FOLDER_NOT_SHARED"


def test_servers_find_their_model_in_the_run_folder(config_of, monkeypatch):
    monkeypatch.setattr(node_check, "engine_name", lambda config, on_gpu: "vllm")
    with pytest.raises(ConfigError, match="inference servers read the model that they start from"):
        require_run_folder(config_of(), BOTH)


def test_checkpoints_need_the_run_folder_where_trainer_rank_0_is(config_of):
    elsewhere = replace(BOTH, trainer=BOTH.trainer[1:])
    with pytest.raises(ConfigError, match=r"node 10\.0\.0\.2 does not see .* rank 0 writes"):
        require_run_folder(config_of(), elsewhere)
