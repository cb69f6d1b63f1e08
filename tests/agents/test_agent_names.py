"""A row's `agent_name`, from the config's modules to the preflight."""

import json

import pytest
from typer.testing import CliRunner

from ajet import Task, assembly
from ajet.agents.single_turn import SingleTurnAgent
from ajet.agents.tool_agent import ToolAgent
from ajet.cli.launcher import app
from ajet.cli.preflight import check_agents, check_classes
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.record.run_folder import RunFolder
from ajet.core.workflow import registry
from ajet.core.workflow.registry import WorkflowFactory

AGENTS = """
from ajet import Workflow, WorkflowOutput, register

@register("referee")
class Referee(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(reward=1.0)
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_WORKFLOWS", {})
    (tmp_path / "agents.py").write_text(AGENTS)

    def make(**rollout):
        ajet = {"model": {"path": "m"}, "rollout": rollout}
        (tmp_path / "run.yaml").write_text(json.dumps({"ajet": ajet}))
        return load_config(tmp_path / "run.yaml")

    return make


def row(name=None):
    return Task("t0", "q", metadata={"agent_name": name} if name else {})


def test_with_nothing_named_a_task_is_asked_once(config):
    made = config()
    check_classes(made)
    assert WorkflowFactory.from_config(made).class_for(row()) is SingleTurnAgent
    assert assembly.user_files(made, WorkflowFactory.from_config(made)) == []


def test_a_module_of_the_config_registers_agents_that_rows_name(config):
    made = config(agent_modules=["agents.py"], user_workflow="tool_agent")
    choose = WorkflowFactory.from_config(made)
    check_agents(made, choose, [row("referee"), row()])
    assert choose.class_for(row("referee")).__name__ == "Referee"
    assert choose.class_for(row()) is ToolAgent
    assert [file.name for file in assembly.user_files(made, choose)] == ["agents.py"]


def test_an_unknown_name_is_one_line_before_a_launch(config):
    with pytest.raises(ConfigError, match=r"task t0: .* 'refree'; did you mean 'referee'\?"):
        made = config(agent_modules=["agents.py"])
        check_agents(made, WorkflowFactory.from_config(made), [row("refree")])


def test_training_finds_an_unknown_name_before_it_loads_a_model(config, tmp_path):
    config()
    (tmp_path / "rows.jsonl").write_text('{"question": "q", "agent_name": "refree"}\n')
    reader = "ajet.task_reader."
    overrides = [f"{reader}type=jsonl_dataset_file"]
    overrides += [f"{reader}jsonl_dataset_file.training.file_path={tmp_path}/rows.jsonl"]
    command = ["--conf", str(tmp_path / "run.yaml"), "--exp-dir", str(tmp_path), *overrides]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "no workflow is registered as agent_name 'refree'" in result.stderr


def test_the_requirements_of_an_agent_that_only_a_row_names_are_checked(config):
    made = config(multi_turn={"tool_config_path": "no.yaml"})
    check_classes(made)
    workflows = WorkflowFactory.from_config(made)
    check_agents(made, workflows, [row()])
    with pytest.raises(ConfigError, match=r"no\.yaml: no such file"):
        check_agents(made, workflows, [row("tool_agent")])


def test_the_code_beside_the_tools_file_is_kept_with_the_run_and_the_file_itself_is_not(
    config, tmp_path
):
    (tmp_path / "tools.yaml").write_text("tools:\n  - mcp: {url: u, headers: {key: secret}}\n")
    made = config(multi_turn={"tool_config_path": "tools.yaml"})
    files = assembly.user_files(made, WorkflowFactory.from_config(made))
    folder = RunFolder(tmp_path / "run")
    assert folder.save_code(files) == []
    assert [path.name for path in folder.code.rglob("*.*")] == ["agents.py"]


def test_a_module_that_fails_says_where(config, tmp_path):
    (tmp_path / "agents.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"agent_modules: 'agents.py': .*agents\.py:1: ZeroDiv"):
        WorkflowFactory.from_config(config(agent_modules=["agents.py"]))
