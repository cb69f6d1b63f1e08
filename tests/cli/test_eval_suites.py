"""`ajet eval --suite`: benchmarks by name, for models, endpoints and checkpoints, in pairs."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.suites.registry import SUITES
from tests.cli.chat_server import ChatServer, message
from tests.suites.bfcl_package import write_bfcl_data
from tests.suites.conftest import bfcl_package  # noqa: F401 - a fixture

SHORT = ("ajet.rollout.max_response_length_in_one_turn=4", "ajet.trainer_common.torch_threads=1")
TRAINING = """
ajet:
  experiment_name: run
  model: {path: embedded:math}
  data: {train_batch_size: 1, max_prompt_length: 256, max_response_length: 8}
  rollout: {num_repeat: 2, temperature: 1.0, max_response_length_in_one_turn: 4}
  task_judge: {judge_protocol: math}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}}
  trainer_common: {total_training_steps: 1, logger: [console], use_kl_loss: false, test_freq: 0,
    torch_threads: 1}
"""


@pytest.fixture
def project(tmp_path, monkeypatch, bfcl_package):  # noqa: F811
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for key in ("OPENAI_API_KEY", "AJET_ENDPOINT_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    return folder


def run(*args):
    return CliRunner().invoke(app, ["eval", *args], terminal_width=200)


def area(body):
    """Calls the tool for "The area of N times 2?", right but for N = 1."""
    words = body["messages"][-1]["content"].split()
    number = next(int(word) for word in words if word.isdigit())
    if "tools" not in body:
        return 200, message(f"\\boxed{{{number}}}")
    arguments = {"a": number if number != 1 else 7, "b": 2.0}
    return 200, message(None, [("geometry_area", json.dumps(arguments))])


def problems(folder, num=3):
    """GSM8K's form: the answer is the first number of the question, but for the last one."""
    rows = [{"question": f"What is {n} ?", "answer": f"#### {n}"} for n in range(num - 1)]
    rows.append({"question": "What is 8 ?", "answer": "#### 9"})
    folder.mkdir()
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_two_suites_on_an_endpoint_are_one_table_in_json_and_markdown(project):
    data = project / "data"
    problems(data)
    write_bfcl_data(data, num=4)
    with ChatServer(area) as server:
        result = run(
            "--suite", "bfcl_simple", "--suite", "gsm8k", "--data", str(data), "--out", "r.json",
            "--endpoint", server.url, "--endpoint-model", "m",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "written: r.json and r.md" in result.stdout
    plain = json.loads(Path("r.json").read_text())
    calls, maths = plain["suites"]
    assert [suite["name"] for suite in plain["suites"]] == ["bfcl_simple", "gsm8k"]
    assert (calls["num_tasks"], calls["success"]["value"]) == (4, 0.75)
    assert calls["tasks"]["simple_python_1"]["success"] == [False]
    assert maths["success"]["value"] == pytest.approx(2 / 3)
    assert calls["sampling"]["temperature"] == 0.0
    assert calls["first_prompt"]["tools"][0]["function"]["name"] == "geometry_area"
    assert calls["prompting"].startswith("functions as tools of the chat template")
    table = Path("r.md").read_text().splitlines()
    assert table[2] == "| suite | tasks x episodes | success | 95 % interval | not ok |"
    assert table[4] == "| bfcl_simple | 4 x 1 | 0.750 | 0.301 to 0.954 | 0 |"
    assert table[5] == "| gsm8k | 3 x 1 | 0.667 | 0.208 to 0.939 | 0 |"
    assert table[8].startswith("- gsm8k (files): no example; below the question: ")


def test_samples_of_a_task_are_drawn_and_the_first_tasks_can_be_taken(project):
    with ChatServer(area) as server:
        result = run(
            "--suite", "bfcl_simple", "-k", "3", "--limit", "1", "--out", "-",
            "--endpoint", server.url, "--endpoint-model", "m",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    [suite] = json.loads(result.stdout)["suites"]
    [(name, task)] = suite["tasks"].items()
    assert (name, task["success"], task["reward"]) == ("simple_python_0", [True] * 3, [1.0] * 3)
    assert task["status"] == ["ok"] * 3 and len(task["answers"]) == 3
    assert [body["temperature"] for body in server.requests] == [0.8] * 3
    assert len({body["seed"] for body in server.requests}) == 3


def test_a_model_is_compared_with_an_earlier_result_task_by_task(project):
    write_bfcl_data(project / "data", num=4)
    options = ("--suite", "bfcl_simple", "--data", "data", "--endpoint-model", "m")
    with ChatServer(lambda body: (200, message("I cannot."))) as server:
        first = run(*options, "--endpoint", server.url, "--out", "first.json")
    assert first.exit_code == 0, first.output
    with ChatServer(area) as server:
        result = run(
            *options, "--endpoint", server.url, "--against", "first.json", "--out", "r.json"
        )
    assert result.exit_code == 0, result.output
    [suite] = json.loads(Path("r.json").read_text())["suites"]
    # differences 1, 0, 1, 1: n* = 6, mean 1/2, variance (3 + 1)/6 - 1/4 = 5/12
    assert suite["difference"]["value"] == 0.75
    assert suite["difference"]["low"] == pytest.approx(0.5 - 1.959964 * (5 / 12 / 6) ** 0.5)
    assert (suite["success_of_other"], suite["num_compared"]) == (0.0, 4)
    row = Path("r.md").read_text().splitlines()[4]
    assert row.startswith("| bfcl_simple | 4 x 1 | 0.750 | 0.301 to 0.954 | 0 | 0.000 | +0.750 | ")
    assert row.endswith(" | -0.016 to +1.000 |")


def test_a_file_that_is_not_an_earlier_result_is_one_line(project):
    Path("other.json").write_text('{"suites": [{"name": "x"}]}')
    options = ("--suite", "bfcl_simple", "--model", "embedded:math", "--against")
    for name, problem in (("other.json", "not a result of"), ("none.json", "No such file")):
        result = run(*options, name)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: --against {name}: {problem}")


def test_a_run_is_measured_from_its_folder_and_compared_with_its_base_model(project):
    Path("run.yaml").write_text(TRAINING)
    Path("train.jsonl").write_text('{"question": "What is 1 + 1 ?", "answer": "#### 2"}')
    trained = CliRunner().invoke(app, ["--conf", "run.yaml"])
    assert trained.exit_code == 0, trained.output
    options = ("--suite", "bfcl_simple", "--checkpoint", "launcher_record/run", "--out", "-")
    result = run(*options, "--against", "embedded:math", *SHORT)
    assert result.exit_code == 0, result.output
    plain = json.loads(result.stdout)
    assert plain["subject"].endswith("launcher_record/run/checkpoints/step_000001")
    assert plain["against"] == "model embedded:math"
    [suite] = plain["suites"]
    assert (suite["num_tasks"], suite["num_compared"]) == (2, 2)


def test_a_suite_that_is_not_there_names_one_that_is(project):
    result = run("--suite", "bfcl_simpel", "--model", "embedded:math")
    assert result.exit_code == 1
    assert (
        result.stderr == "error: no suite 'bfcl_simpel'; did you mean 'bfcl_simple'? [AJ-CFG-015]\n"
    )


def test_a_model_must_be_named(project):
    result = run("--suite", "bfcl_simple")
    assert result.exit_code == 1 and "ajet.model.path is missing" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--data", "."),
        ("--against", "x"),
        (),
        ("--suite", "gsm8k", "--out", "no/r.json"),
        ("--suite", "gsm8k", "--split", "training"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(project, options):
    assert run(*options).exit_code == 2


def test_every_suite_says_what_it_is_and_how_it_asks():
    for name, suite in SUITES.items():
        assert suite.name == name and suite.about and suite.prompting
        assert "->" in suite.workflow and (suite.judge == "math" or "->" in suite.judge)
