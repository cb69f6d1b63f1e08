"""Whole runs of a toy project whose judge asks a model on loopback."""

import io
import itertools
import json

import pytest
from rich.console import Console

from ajet.backbones.debug.training import fit_debug
from ajet.core.config import load_config
from ajet.core.errors import RunFailed
from ajet.core.record.summary import RunSummary
from tests.cli.chat_server import ChatServer, message
from tests.e2e.toy_run import ToyRun

OWN_REWARD = "WorkflowOutput(reward=float(digits % 5), is_success=digits > 3)"
LEFT_TO_THE_JUDGE = "WorkflowOutput(metadata={'final_answer': again})"


@pytest.fixture
def server():
    with ChatServer() as server:
        yield server


@pytest.fixture
def run(tmp_path, monkeypatch):
    """One step of two groups of two."""
    monkeypatch.chdir(tmp_path)
    run = ToyRun(tmp_path)
    workflow = tmp_path / "workflow.py"
    workflow.write_text(workflow.read_text().replace(OWN_REWARD, LEFT_TO_THE_JUDGE))
    return run


def fit(run, server, judge, *overrides) -> RunSummary:
    given = [
        f"ajet.task_judge.judge_protocol={judge}",
        "ajet.task_judge.model_name=m",
        f"ajet.task_judge.client.base_url={server.url}",
        "ajet.task_judge.client.max_retries=0",
        "ajet.trainer_common.total_training_steps=1",
        "ajet.trainer_common.logger=[console]",
        "ajet.data.train_batch_size=2",
        "ajet.rollout.num_repeat=2",
    ]
    config = load_config(run.folder / "toy.yaml", [*given, *overrides], backbone="debug")
    return fit_debug(config, Console(file=io.StringIO()))


def last_metrics(run):
    return json.loads((run.path / "logs" / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_run_repeats_itself_though_its_judge_would_judge_otherwise(run, server):
    asked = itertools.count()

    def reply(body):
        """Other scores every time."""
        number = next(asked)
        return 200, message(json.dumps({"scores": [number / 10, number / 10 + 0.05]}))

    server.reply = reply
    fit(run, server, "llm_listwise")
    assert len(server.requests) == 2  # one a group
    assert last_metrics(run)["reward/mean"] == pytest.approx(0.075)
    weights = run.final_tensors(1)
    fit(run, server, "llm_listwise", "ajet.trainer_common.resume=disable")
    assert len(server.requests) == 2  # the replies were kept
    assert run.final_tensors(1) == weights


def test_a_judge_that_fails_once_costs_its_group_and_one_that_always_fails_the_run(run, server):
    failure = (503, {"error": {"message": "out of order"}})
    answers = itertools.chain([failure], itertools.repeat((200, message("Scores: 0.1, 0.9"))))
    server.reply = lambda body: next(answers)
    fit(run, server, "llm_listwise")
    assert last_metrics(run)["episodes/judge_error"] == 2
    assert last_metrics(run)["reward/mean"] == pytest.approx(0.5)
    server.reply = lambda body: failure
    with pytest.raises(RunFailed) as error:
        fit(run, server, "llm", "ajet.trainer_common.resume=disable")
    line = str(error.value)
    assert "judge_error" in line and "out of order" in line and "\n" not in line
