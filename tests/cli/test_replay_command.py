"""`ajet inspect replay` and `audit`: what they print, exit codes, a debugger on the workflow."""

import json
import re
import sqlite3
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.read.episode_reader import EpisodeFilter
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.audit_report import AuditReport, audit_parts
from tests.cli.dap_client import AttachedClient
from tests.e2e.toy_run import WORKFLOW, ToyRun, ended, environment

pytestmark = pytest.mark.usefixtures("above")
RUN = "toy/launcher_record/toy"
FIRST = "000001-train-0000-00"
LINE = 1 + WORKFLOW.splitlines().index('        tell("begin", workflow_task)')


@pytest.fixture
def edited(folder):
    """A YAML beside a workflow whose tool answers otherwise."""
    other = ToyRun(folder / "edited")
    workflow = other.folder / "workflow.py"
    workflow.write_text(WORKFLOW.replace("The tool says", "A tool says"))
    return other.folder


def run(*args: str):
    return CliRunner().invoke(app, args, terminal_width=200)


def error_line(result) -> str:
    assert result.exit_code == 1, result.output
    [line] = result.stderr.splitlines()
    return line.removeprefix("error: ")


def process(*args: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "ajet.cli.launcher", *args]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment(), text=True, start_new_session=True, **pipes)


def test_a_replay_finds_the_runs_files_from_any_folder_and_says_that_it_is_the_same(folder):
    result = run("replay", RUN, FIRST)
    assert result.exit_code == 0, result.output
    assert "The tool says " in result.stdout and FIRST in result.stdout
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(r"the same: 2 calls, \d+ prompt ids, ok, reward \d\.0", last)
    assert "departs" not in result.stdout


def test_a_departure_is_one_line_and_exit_code_1(edited):
    result = run("replay", RUN, FIRST, "--conf", "edited/toy.yaml")
    assert result.exit_code == 1
    last = result.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"departs: call 1: the prompt departs at position \d+, in message 2 \(user\)", last
    )
    assert result.stdout.count("departs   call 1") == 1


def test_the_users_files_are_looked_for_in_the_project_folder_first(edited):
    assert run("replay", RUN, FIRST, "--project-dir", "edited").exit_code == 1
    copied = f"{RUN}/code/toy"  # as they were when the run began
    assert run("replay", RUN, FIRST, "--project-dir", copied).exit_code == 0


def test_the_beginning_of_an_id_is_enough_where_only_one_begins_so(folder):
    assert run("replay", RUN, "000001-train-0000-0").exit_code == 1
    several = error_line(run("replay", RUN, "000001-train-0000"))
    assert several.startswith("4 episodes begin with '000001-train-0000' (000001-train-0000-00, ")
    unknown = error_line(run("replay", RUN, "000001-train-0000-07"))
    assert unknown.startswith("no episode '000001-train-0000-07'; near: 000001-train-0000-0")


def test_a_folder_without_a_run_is_one_line(folder):
    assert "not the folder of a run" in error_line(run("replay", "toy", FIRST))
    assert "not the folder of a run" in error_line(run("audit", "toy"))


def test_a_run_whose_folder_is_gone_asks_for_a_config(folder, tmp_path):
    moved = tmp_path / "run"
    moved.mkdir()
    for name in ("episodes.sqlite", "config.yaml", "tokenizer"):
        (moved / name).symlink_to(folder / RUN / name)
    origin = json.loads((folder / RUN / "origin.json").read_text())
    (moved / "origin.json").write_text(json.dumps(origin | {"current_folder": "/not/there"}))
    line = error_line(run("replay", str(moved), FIRST))
    assert line.startswith("the run was started in /not/there, which is not there any more; give")
    assert run("replay", str(moved), FIRST, "--conf", "toy/toy.yaml").exit_code == 0


def test_an_exception_of_the_workflow_has_its_own_traceback_and_departs(folder):
    other = ToyRun(folder / "raising")
    workflow = "ajet: {rollout: {user_workflow: workflow.py->Raises}}\ndefaults: [toy]\n"
    (other.folder / "raising.yaml").write_text(workflow + "hydra: {searchpath: [file://.]}\n")
    result = run("replay", RUN, FIRST, "--conf", "raising/raising.yaml")
    assert result.exit_code == 1
    assert 'raise ValueError("no such move")' in result.stderr
    assert "ajet/core" not in result.stderr
    assert result.stdout.splitlines()[-1].startswith("departs: call 1: recorded, and not made; ")


def test_pdb_stops_on_the_first_line_of_the_workflow_and_at_a_plain_breakpoint(folder):
    other = ToyRun(folder / "stops")
    call = "        result = await"
    stops = WORKFLOW.replace(call, f"        breakpoint()\n{call}")
    (other.folder / "workflow.py").write_text(stops)
    said = "p 'at ' + workflow_task.episode_id\nc\np reply['role'] + '!'\nc\n"
    arguments = ("--project-dir", "stops", "--debugger", "pdb")
    with ended(process("replay", RUN, FIRST, *arguments)) as replay:
        stdout, stderr = replay.communicate(said, timeout=120)
    assert replay.returncode == 0, stderr
    assert f"workflow.py({LINE})execute()" in stdout and f"'at {FIRST}'" in stdout
    assert "'assistant!'" in stdout and "the same: 2 calls" in stdout


def test_an_editor_attaches_and_its_breakpoints_hold(folder, tmp_path):
    arguments = ("--debugger", "debugpy", "--debugger-port", "0")
    with (
        (tmp_path / "said").open("w") as said,  # no pipe: debugpy's own process would hold it open
        ended(process("replay", RUN, FIRST, *arguments, stdout=said)) as replay,
    ):
        lines = iter(replay.stderr.readline, "")  # debugpy may warn first
        found = (re.match(r"attach an editor to 127\.0\.0\.1:(\d+) ", line) for line in lines)
        with AttachedClient(folder, int(next(filter(None, found))[1])) as editor:
            editor.attach({folder / "toy/workflow.py": [LINE]})
            stopped = editor.wait_for("stopped")
            seen = editor.evaluate(stopped["threadId"], "workflow_task.episode_id")
            editor.request("continue", threadId=stopped["threadId"])
            assert replay.wait(60) == 0  # the same, also after a stop
    assert seen == f"'{FIRST}'"


def test_an_audit_is_a_table_and_json_and_loads_no_weights(folder, tmp_path):
    out = tmp_path / "audit.json"
    result = run("audit", RUN, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "embedded:math, template " in result.stdout
    assert "sound: no faults" in result.stdout
    found = json.loads(out.read_text())
    assert (found["episodes"], found["calls"], found["continued"]) == (16, 32, 16)
    assert found["sampled"] == found["trained"] and found["sound"] is True
    assert found["same"] + sum(found["drift"].values()) == found["rendered"] == 32


def test_why_reads_a_run_and_says_what_it_found_on_the_screen_and_as_json(folder):
    found = json.loads(run("why", RUN, "--out", "-").stdout)
    assert (found["num_steps"], found["trend"]) == (1, "too short")
    (cause,) = found["causes"]  # the toy model does not know how to end a reply
    assert (cause["name"], cause["episode_id"]) == ("truncated", FIRST)
    result = run("why", RUN)
    assert result.exit_code == 0 and found["headline"] in result.stdout
    assert "1. 14 of 16 episodes were cut" in result.stdout and FIRST in result.stdout
    line = error_line(run("why", "toy/launcher_record/none"))
    assert "toy/launcher_record/none: no such folder" in line


def test_an_audit_can_be_of_some_episodes_and_print_json_alone(folder):
    result = run("audit", RUN, "--step", "1", "--mode", "train", "--limit", "3", "--out", "-")
    assert json.loads(result.stdout)["episodes"] == 3
    none = run("audit", RUN, "--mode", "eval", "--out", "-")
    assert none.exit_code == 1 and none.stdout == ""  # nothing was looked at: not sound
    assert "no episode of that step or mode" in none.stderr


def test_an_audit_has_the_same_figures_in_any_number_of_parts(folder):
    run, which = RecordedRun(folder / RUN), EpisodeFilter(mode="train")
    whole = AuditReport.from_parts(run, audit_parts(run, which)).as_json()
    parts = list(audit_parts(run, which, part_size=3))
    assert [part.episodes for part in parts] == [3, 3, 3, 3, 3, 1]
    assert AuditReport.from_parts(run, parts).as_json() == whole
    newest = audit_parts(run, which, 4, part_size=3)
    assert [part.episodes for part in newest] == [3, 1]


def test_a_long_audit_renders_some_episodes_in_any_number_of_processes(folder):
    run, which = RecordedRun(folder / RUN), EpisodeFilter()
    with run.reader() as reader:
        num_fourth = sum(each % 4 == 0 for each in reader.ids(which, None))
    one, two = (
        AuditReport.from_parts(
            run,
            audit_parts(run, which, max_rendered=4, num_processes=num_processes, part_size=3),
        )
        for num_processes in (1, 2)
    )
    assert one.as_json() == two.as_json() and one.is_sound
    figures = one.figures
    assert (figures.episodes, figures.episodes_rendered) == (16, num_fourth)
    assert (figures.calls, figures.rendered) == (32, 2 * num_fourth)
    assert figures.sampled == figures.trained


def test_an_audit_that_finds_a_fault_names_it_and_exits_with_1(folder, tmp_path):
    broken = tmp_path / "run"
    broken.mkdir()
    for name in ("config.yaml", "tokenizer", "origin.json"):
        (broken / name).symlink_to(folder / RUN / name)
    with (
        sqlite3.connect(folder / RUN / "episodes.sqlite") as whole,
        sqlite3.connect(broken / "episodes.sqlite") as copy,
    ):
        whole.backup(copy)
        copy.execute(f"UPDATE turns SET trainable = 0 WHERE episode_id = '{FIRST}'")
        copy.commit()
    result = run("audit", str(broken))
    assert result.exit_code == 1
    assert f"episode {FIRST}, turn 0: " in result.stdout
    assert result.stdout.splitlines()[-1] == "not sound: 2 faults"
