"""`ajet inspect fork`: what it prints and writes, and what it refuses in one line."""

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.record.run_folder import RunFolder
from ajet.read.logview.run_page import RunPage
from ajet.read.recorded_run import RecordedRun
from tests.e2e.toy_run import WORKFLOW, ToyRun

pytestmark = pytest.mark.usefixtures("above")
RUN = "toy/launcher_record/toy"
FIRST = "000001-train-0000-00"


def run(*args: str):
    return CliRunner().invoke(app, args, terminal_width=200)


def forked(*args: str, turn=1) -> dict:
    result = run("fork", RUN, FIRST, "--turn", str(turn), *args, "--out", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error_line(*args: str) -> str:
    result = run("fork", *args)
    assert result.exit_code == 1, result.output
    [line] = result.stderr.splitlines()
    return line.removeprefix("error: ").partition(" [AJ-")[0]


def rows_of(database: Path):
    with sqlite3.connect(database) as connection:
        return connection.execute("SELECT * FROM episodes").fetchall()


def test_forks_are_a_table_with_the_value_of_the_turn_and_a_folder_of_their_own(folder):
    before = rows_of(folder / RUN / "episodes.sqlite")
    result = run("fork", RUN, FIRST, "--turn", "1", "-n", "3")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{FIRST}, sampled by checkpoint ")
    assert "reply at turn 1" in result.stdout and "fork 2" in result.stdout
    assert any(line.startswith("turn 1: success ") and "3 forks" in line for line in lines)
    written = f"{RUN}/forks/{FIRST}-turn-1"
    assert lines[-1] == f"written: {written}; `ajet view {written}` shows them side by side"
    found = json.loads((folder / written / "fork.json").read_text())
    rewards = [fork["reward"] for fork in found["forks"]]
    assert found["reward"]["value"] == pytest.approx(sum(rewards) / 3)
    assert rows_of(folder / RUN / "episodes.sqlite") == before


def test_forks_are_the_same_a_second_time_and_others_with_another_seed_or_temperature():
    first = forked("-n", "4")
    again = forked("-n", "4")
    assert first == again
    replies = [fork["reply"] for fork in first["forks"]]
    assert len(set(replies)) > 1
    assert [fork["reply"] for fork in forked("-n", "4", "ajet.seed=77")["forks"]] != replies
    greedy = forked("-n", "4", "--temperature", "0")
    assert len({fork["reply"] for fork in greedy["forks"]}) == 1 and greedy["temperature"] == 0


def test_the_page_and_the_other_commands_take_the_folder_of_forks(folder):
    forked("-n", "2", turn=0)
    path = folder / RUN / "forks" / f"{FIRST}-turn-0"
    page = RunPage(RunFolder(path))
    group = page.group({"group_id": "000001-train-0000", "step": "1"})
    assert [m["rollout_index"] for m in group["members"]] == [0, 1, 2]
    assert group["members"][0]["episode_id"] == FIRST and group["parting"]["turn"] == 0
    assert page.run()["count"] == 3 and page.run()["has_tokenizer"]
    page.close()
    with RecordedRun(path).reader() as reader:
        fork = reader.episode(f"{FIRST}-turn-0-01")
    assert [turn.policy_version for turn in fork.turns] == [1, 1]  # the checkpoint's
    replayed = run("replay", str(path), f"{FIRST}-turn-0-01")
    assert replayed.exit_code == 0 and "the same: 2 calls" in replayed.stdout
    audit = run("audit", str(path), "--out", "-")
    assert json.loads(audit.stdout)["episodes"] == 3


def test_a_model_takes_the_place_of_the_checkpoint():
    assert forked("-n", "1", "--model", "embedded:math")["model"] == "model embedded:math"
    other = error_line(RUN, FIRST, "--turn", "1", "--model", "embedded:frozen_lake")
    assert other.endswith("has another vocabulary than the run: the recorded ids do not fit it")


def test_a_turn_that_cannot_be_forked_is_one_line(folder):
    line = error_line(RUN, FIRST, "--turn", "2")
    assert line == "--turn 2: episode 000001-train-0000-00 has turns 0 to 1"
    assert "no episode '000001-train-0000-07'" in error_line(
        RUN, "000001-train-0000-07", "--turn", "0"
    )
    assert "not the folder of a run" in error_line("toy", FIRST, "--turn", "0")
    other = ToyRun(folder / "edited")
    workflow = WORKFLOW.replace("The tool says", "A tool says")
    (other.folder / "workflow.py").write_text(workflow)
    line = error_line(RUN, FIRST, "--turn", "1", "--project-dir", "edited")
    assert line.startswith("turn 1: the prompt departs from the record at position ")
    assert ", in message 2 (user): recorded is token " in line and "now it is token " in line
    assert (
        run("fork", RUN, FIRST, "--turn", "0", "--model", "m", "--checkpoint", "c").exit_code == 2
    )
