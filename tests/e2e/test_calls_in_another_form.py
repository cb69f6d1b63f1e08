"""The demo's model writes Hermes' calls. Read by another parser they are reported with the remedy:
by the run, by `ajet debug` and by `ajet eval`."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from ajet.cli.launcher import app

DEMO = str(Path(__file__).parents[2] / "tutorial/example_math_agent/demo.yaml")
OTHER = "ajet.rollout.tool_parser=llama3"
LINE = re.compile(
    r"(\d+) of (\d+) replies to an offer of tools have a call that "
    r"ajet\.rollout\.tool_parser=llama3 does not read, .*: set ajet\.rollout\.tool_parser=hermes"
)


def ajet(*args):
    result = CliRunner().invoke(app, [*args, OTHER])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def counts(text):
    [(num, of)] = LINE.findall(text)
    return int(num), int(of)


def test_a_run_reports_calls_in_another_form_once_and_counts_them_in_every_step(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trainer = "ajet.trainer_common"
    ajet(
        "--conf",
        DEMO,
        "--backbone",
        "debug",
        "ajet.data.train_batch_size=2",
        "ajet.rollout.num_repeat=2",
        f"{trainer}.total_training_steps=2",
        f"{trainer}.val_before_train=false",
        f"{trainer}.test_freq=0",
        f"{trainer}.save_freq=0",
    )
    [log] = tmp_path.rglob("warnings.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    [warning] = [row for row in rows if row["name"] == "call_form"]
    num, of = counts(warning["text"])
    assert warning["values"] == {"replies": num, "with_tools": of} and of == 4
    [metrics] = tmp_path.rglob("metrics.jsonl")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert steps[0]["turns/calls_in_other_form"] == num
    assert all("turns/calls_in_other_form" in step for step in steps)
