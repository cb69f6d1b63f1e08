"""`ajet --conf X.yaml` a second time, as a person types it: what it says and its exit code."""

import os
import pty

import pytest

from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import read_attempts
from tests.e2e.toy_run import ToyRun

ONE = "ajet.trainer_common.total_training_steps=1"
TWO = "ajet.trainer_common.total_training_steps=2"
FAILS = "ajet.rollout.user_workflow=workflow.py->AllFail"


@pytest.fixture
def toy(tmp_path):
    return ToyRun(tmp_path)


def at_a_terminal(toy, answer, *overrides):
    """The command with a terminal as its input, where `answer` is typed: exit code and text."""
    for name in ("stdout", "stderr"):
        (toy.folder / name).unlink(missing_ok=True)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        code = toy.finish(*overrides, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    return code, toy.stdout() + toy.stderr()


def test_a_finished_run_says_so_with_exit_code_0(toy):
    assert toy.finish(ONE) == 0
    assert toy.finish(ONE) == 0
    assert "already complete: 1 of 1 steps" in toy.stdout()
    assert "keeps this run as toy.1" in toy.stdout()
    assert toy.errors() == []


def test_without_a_terminal_a_changed_run_is_refused_in_one_line(toy):
    assert toy.finish(FAILS, TWO) == 1
    before = len(toy.errors())
    assert toy.finish(FAILS, TWO, "ajet.seed=3") == 1
    (line,) = toy.errors()[before:]
    assert line.startswith("error: ") and "ajet.seed 0 -> 3" in line


@pytest.mark.parametrize(("answer", "exit_code"), [("q", 1), ("g", 0), ("n", 0)])
def test_at_a_terminal_a_person_is_asked(toy, answer, exit_code):
    assert toy.finish(FAILS, TWO) == 1
    found, said = at_a_terminal(toy, answer, TWO)
    assert found == exit_code, said
    assert '"workflow.py->AllFail" -> "workflow.py->Plain"' in said
    attempts = read_attempts(RunFolder(toy.path))
    old = toy.path.with_name("toy.1")
    if answer == "q":
        assert (len(attempts), old.exists()) == (1, False)
    if answer == "g":
        assert [attempt.accepted for attempt in attempts] == [False, True]
        assert attempts[1].first_step == 1
    if answer == "n":
        assert (len(attempts), attempts[0].first_step, old.exists()) == (1, 0, True)
