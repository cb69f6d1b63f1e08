"""`ajet check` over judges that ask a model: it finds their mistakes, and asks nothing."""

import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from tests.cli.chat_server import ChatServer

FLOW = """
from ajet import GroupJudge, Workflow, WorkflowOutput

class Flow(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput()

class Whole(GroupJudge):
    def compute_group_rewards(self, workflow_tasks, workflow_outputs): pass

class Mute(GroupJudge):
    def compute_reward(self, workflow_task, workflow_output): pass
"""
YAML = """
ajet:
  model: {path: a-model-that-is-not-there}
  rollout: {user_workflow: flow.py->Flow}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}}
"""
KEY = "ajet.task_judge"
RUBRICS = f"{KEY}.judge_type=rubrics_auto_grader"
LLM = (f"{KEY}.judge_protocol=llm", f"{KEY}.model_name=m")


@pytest.fixture
def project(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("AJET_JUDGE_API_KEY", "AJET_ENDPOINT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run.yaml").write_text(YAML)
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "train.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    return tmp_path


def check(*overrides):
    return CliRunner().invoke(app, ["check", "--conf", "run.yaml", *overrides], terminal_width=200)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (LLM, "llm"),
        ((RUBRICS,), "rubrics_auto_grader-pointwise"),
        (
            (RUBRICS, f"{KEY}.rubrics_auto_grader.grader_mode=listwise"),
            "rubrics_auto_grader-listwise",
        ),
        ((f"{KEY}.judge_protocol=flow.py->Whole",), "flow.py->Whole"),
    ],
)
def test_a_judge_is_made_and_named_and_asks_nothing(overrides, name, project):
    with ChatServer() as server:
        result = check(*overrides, f"{KEY}.client.base_url={server.url}")
    assert result.exit_code == 0, result.output
    assert f"judge {name}" in " ".join(result.stdout.split())
    assert server.requests == [] and not Path("launcher_record").exists()


def unused_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_at_which_nothing_answers_is_one_line(project, monkeypatch):
    address = unused_address()
    line = f"{KEY}.client.base_url: nothing answers at {address} (Connection refused): start"
    assert line in check(*LLM, f"{KEY}.client.base_url={address}").stdout
    # What the run does not read is not tried: the section of another judge.
    assert "nothing answers" not in check(f"{KEY}.client.base_url={address}").stdout
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    assert line in check(*LLM).stdout
    with ChatServer() as server:
        result = check(*LLM, f"{KEY}.client.base_url={server.url}")
    assert "nothing answers" not in result.stdout


def test_the_address_of_an_environment_is_tried(project):
    address = unused_address()
    options = ("ajet.rollout.user_workflow=nemo_gym_agent", f"+nemo_gym.url={address}")
    result = check(*options)
    assert f"nemo_gym.url: nothing answers at {address} (" in result.stdout, result.output


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (LLM, "model m: no address and no key for OpenAI's: give base_url"),
        (LLM[:1], "ajet.task_judge.model_name is missing"),
        (
            (*LLM, f"{KEY}.client.base_url=here"),
            "client.base_url: 'here': an address begins with http",
        ),
        ((*LLM, f"{KEY}.llm.prompt=x", f"{KEY}.client.base_url=http://h"), "has no {answer}"),
        ((f"{KEY}.judge_protocol=flow.py->Mute",), "Mute does not define compute_group_rewards"),
    ],
)
def test_a_mistake_is_one_line(overrides, problem, project):
    result = check(*overrides)
    assert result.exit_code == 1
    lines = [line for line in result.stderr.splitlines() if not line.startswith("notice: ")]
    assert len(lines) == 1 and problem in lines[0], result.stderr


ODD_ROWS = """
{"question": "2+2?", "answer": {"value": "4"}}
{"question": "2+3?", "answer": ["5", "five"]}
{"question": "2+4?", "answer": NaN}
{"question": "2+5?", "answer": ""}
{"question": "2+6?", "answer": null}
{"question": "2+7?", "answer": ["9"]}
{"question": "2+8?", "answer": 1e16}
"""


@pytest.mark.parametrize("name", ["math", "exact_match"])
def test_tasks_whose_reference_no_reply_can_equal_are_named_with_the_reason(project, name):
    (project / "train.jsonl").write_text(ODD_ROWS.strip())
    result = check(f"{KEY}.judge_protocol={name}")
    [line] = [line for line in result.stdout.splitlines() if "no reference answer" in line]
    assert line.startswith(
        "warning: data: 5 of 7 tasks have no reference answer that a reply could"
    )
    for reason in (
        "train-0: answer is a dict, not text or a number",
        "train-1: answer is a list of several values",
        "train-2: answer is nan, which no reply can equal",
        "train-3: answer is empty",
        "train-4: answer is null",
    ):
        assert reason in line


def test_of_many_tasks_with_one_fault_the_first_five_are_named(project):
    rows = "".join(f'{{"question": "{n}?", "answer": ""}}\n' for n in range(1200))
    (project / "train.jsonl").write_text(rows)
    ids = "train-0, train-1, train-2, train-3, train-4 and 1,195 more: answer is empty"
    assert ids in check(f"{KEY}.judge_protocol=math").stdout
    assert "no reference answer" not in check(f"{KEY}.judge_protocol=null").stdout
