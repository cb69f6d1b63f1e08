"""`ajet debug`: what it shows, whose traceback it prints, and a real debugger on it."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from tests.cli.dap_client import DapClient

FLOW = """\
from ajet import BaseJudge, Workflow, WorkflowOutput


class Flow(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages)
        answer = reply["content"]  # LINE
        return WorkflowOutput(metadata={"final_answer": answer})


class Raises(Flow):
    async def execute(self, workflow_task, model_tuner):
        await super().execute(workflow_task, model_tuner)
        return self.parsed({})

    def parsed(self, fields):
        return fields["answer"]  # RAISES


class ReturnsAnInt(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return 3


class LengthJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return float(len(workflow_output.metadata["final_answer"])), True


class SameJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return 0.25, False


class RaisingJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        raise ValueError("no such unit")  # JUDGES
"""
YAML = """
ajet:
  model: {path: embedded:math}
  data: {max_prompt_length: 256, max_response_length: 64}
  rollout: {user_workflow: flow.py->Flow, max_response_length_in_one_turn: 8}
  task_judge: {judge_protocol: flow.py->LengthJudge}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}, validation: {file_path: train.jsonl}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "flow.yaml").write_text(YAML)
    rows = (f'{{"question": "What is {n} + {n}?", "answer": "#### {2 * n}"}}\n' for n in range(5))
    (tmp_path / "train.jsonl").write_text("".join(rows))
    return tmp_path


def debug(*args: str):
    return CliRunner().invoke(app, ["debug", "--conf", "flow.yaml", *args])


def line_of(mark: str) -> int:
    return next(n for n, line in enumerate(FLOW.splitlines(), 1) if line.endswith(f"# {mark}"))


def test_debug_shows_each_episode_and_leaves_nothing_behind(project):
    before = sorted(project.iterdir())
    result = debug("--tasks", "2", "--one-at-a-time")
    assert result.exit_code == 0, result.output
    for n in (0, 1):
        assert f"What is {n} + {n}?" in result.stdout
        assert f"#### {2 * n}" in result.stdout
    assert "What is 2 + 2?" not in result.stdout
    assert "turn 0, " in result.stdout and "mean logprob -" in result.stdout
    assert "2 episodes, 2 successful" in result.stdout
    assert [p for p in sorted(project.iterdir()) if p.name != "__pycache__"] == before


def test_debug_runs_the_configs_number_of_tasks_under_any_backbone(project):
    result = debug("ajet.debug.debug_first_n_tasks=1", "ajet.backbone=verl")
    assert result.exit_code == 0, result.output
    assert "1 episode, 1 successful" in result.stdout


def test_debug_takes_its_own_backbone_and_refuses_one_on_ray(project):
    assert debug("--backbone", "debug", "--tasks", "1").exit_code == 0
    result = debug("--backbone", "verl")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert "--backbone verl: ajet debug runs episodes in this process" in result.stderr


def test_debug_lists_settings_without_effect_with_its_result(project):
    result = debug("--tasks", "1", "ajet.trainer_common.nnodes=2")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("notice: ignored by backbone debug: ajet.trainer_common.nnodes")
    assert "notice" not in result.stdout


@pytest.mark.parametrize("parallel", ["1", "2"])
def test_an_exception_of_the_workflow_has_its_own_traceback(project, parallel):
    workflow = "ajet.rollout.user_workflow=flow.py->Raises"
    result = debug("--tasks", "2", "--parallel", parallel, workflow)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith(f'flow.py", line {line_of("RAISES") - 3}, in execute')
    assert f'flow.py", line {line_of("RAISES")}, in parsed' in result.stderr
    assert lines[-1] == "KeyError: 'answer'"
    assert "ajet/core" not in result.stderr and "asyncio" not in result.stderr
    assert "aborted" not in result.stdout


def test_debug_shows_the_turns_before_an_exception(project):
    result = debug("--tasks", "1", "ajet.rollout.user_workflow=flow.py->Raises")
    assert result.exit_code == 1
    assert "What is 0 + 0?" in result.stdout and "turn 0, " in result.stdout


def test_debug_shortens_replies_by_default(project):
    told = "replies were cut at 3 tokens, the limit of ajet debug; --max-reply-tokens N gives"
    for given in (["ajet.debug.debug_max_reply_tokens=3"], ["--max-reply-tokens", "3"]):
        result = debug("--tasks", "1", *given)
        assert " 3 out (length)" in result.stdout, result.output
        assert f"1 of 1 {told}" in " ".join(result.stdout.split())
    result = debug("--tasks", "1", "ajet.debug.debug_max_reply_tokens=null")
    assert " 8 out (length)" in result.stdout and "were cut" not in result.stdout


def test_an_exception_of_the_judge_has_its_own_traceback(project):
    result = debug("--tasks", "1", "ajet.task_judge.judge_protocol=flow.py->RaisingJudge")
    assert result.exit_code == 1
    assert f'flow.py", line {line_of("JUDGES")}, in compute_reward' in result.stderr
    assert result.stderr.count("  File ") == 1
    assert result.stderr.endswith("ValueError: no such unit\n")


def test_a_wrong_return_value_is_one_line_that_names_the_workflow(project):
    result = debug("--tasks", "1", "ajet.rollout.user_workflow=flow.py->ReturnsAnInt")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: TypeError: ReturnsAnInt.execute() returned the int '3'")
    assert len(result.stderr.splitlines()) == 1


def test_a_mistake_in_the_config_is_one_line_and_loads_no_model(project):
    result = debug("ajet.rollout.user_workflow=flow.py->Flwo", "ajet.model.path=not-there")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and "did you mean 'Flow'?" in result.stderr


def test_a_breakpoint_in_a_workflow_stops_there_and_its_variables_can_be_read(project):
    workflow = project / "flow.py"
    with DapClient(project) as editor:
        args = ["debug", "--conf", "flow.yaml", "--tasks", "1", "--parallel", "1"]
        editor.launch("ajet.cli.launcher", args, {workflow: [line_of("LINE")]})
        stopped = editor.wait_for("stopped")
        assert stopped["reason"] == "breakpoint"
        frame = editor.frames(stopped["threadId"])[0]
        assert frame["name"].endswith("execute") and frame["line"] == line_of("LINE")
        query = editor.evaluate(stopped["threadId"], "workflow_task.task.main_query")
        assert query == "'What is 0 + 0?'"
        assert editor.evaluate(stopped["threadId"], "reply['role']") == "'assistant'"
        editor.request("continue", threadId=stopped["threadId"])
        assert editor.wait_for("exited")["exitCode"] == 0, editor.output
    assert "1 episode, 1 successful" in editor.output


def test_debug_says_where_all_episodes_came_out_alike(project):
    same = "ajet.task_judge.judge_protocol=flow.py->SameJudge"
    result = debug("--tasks", "3", "--one-at-a-time", same)
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "3 rewards are 0.25" in said and "A run learns only where rewards differ" in said
    alone = debug("--tasks", "1", same)  # one episode is like no other
    assert "A run learns only" not in alone.output
