"""`ajet check` says what a start does with the run folder that is there, and the start does it."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet import assembly
from ajet.cli.launcher import app
from ajet.core.errors import CheckpointError, RunChanged, RunComplete, RunFailed
from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import read_attempts
from ajet.core.run.start import open_run
from tests.in_process_run import config, train

T = "ajet.trainer_common"
ONE, TWO = f"{T}.total_training_steps=1", f"{T}.total_training_steps=2"
FAILS = "ajet.rollout.user_workflow=workflow.py->AllFail"
STOPPED = (FAILS, TWO)
SEED, ACCEPT = "ajet.seed=7", f"{T}.accept_changes=true"
CHECKPOINT = "launcher_record/toy/checkpoints/step_000001"


@pytest.fixture
def toy(toy):
    toy.shrink()
    return toy


def train_until_step_2_fails():
    with pytest.raises(RunFailed):
        train(*STOPPED)


def train_without_a_checkpoint():
    train_until_step_2_fails()
    for path in Path("launcher_record/toy/checkpoints").iterdir():
        path.rename(path.name)


def train_and_edit():
    train(ONE)
    with Path("workflow.py").open("a") as file:
        file.write("\nEDITED = True\n")


def checked(*overrides, backbone="debug"):
    """The line of `ajet check` about the start."""
    command = ["check", "--conf", "toy.yaml", "--backbone", backbone, *overrides]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("start: "))
    return line.removeprefix("start: ")


def started(*overrides):
    """The step after which a start goes on, and what it writes into the log."""
    settings = config(*overrides)
    log = settings.run_folder / "logs/run.log"
    before = log.read_text() if log.exists() else ""
    with open_run(settings, assembly.read_tasks(settings)) as folder:
        step = read_attempts(folder)[-1].first_step
        return step, log.read_text().removeprefix(before)


def files():
    paths = Path("launcher_record").rglob("*")
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


ANEW = "it is kept as toy.1, and a new run begins"
SINCE = "changed since the last start:"


@pytest.mark.parametrize(
    ("before", "overrides", "line", "step", "aside"),
    [
        (lambda: None, (ONE,), "begins", 0, False),
        (
            lambda: train(ONE),
            (TWO,),
            "the finished run becomes longer: it resumes after step 1 of 2; "
            f"{SINCE} {T}.total_training_steps 1 -> 2",
            1,
            False,
        ),
        (
            train_and_edit,
            (ONE,),
            f"changed since the finished run: workflow.py changed; {ANEW}",
            0,
            True,
        ),
        (train_until_step_2_fails, STOPPED, "resumes after step 1 of 2", 1, False),
        (
            train_until_step_2_fails,
            (*STOPPED, SEED, ACCEPT),
            f"resumes after step 1 of 2; {SINCE} ajet.seed 0 -> 7",
            1,
            False,
        ),
        (
            train_until_step_2_fails,
            (*STOPPED, f"{T}.resume=disable"),
            "the earlier run is kept as toy.1, and a new run begins",
            0,
            True,
        ),
        (
            train_without_a_checkpoint,
            (*STOPPED, SEED),
            f"changed since a run that saved no checkpoint: ajet.seed 0 -> 7; {ANEW}",
            0,
            True,
        ),
        (
            lambda: train(TWO),
            (TWO, f"{T}.resume={CHECKPOINT}"),
            f"resumes after {CHECKPOINT}",
            1,
            False,
        ),
    ],
)
def test_check_says_what_the_start_does(toy, before, overrides, line, step, aside):
    before()
    untouched = files()
    assert checked(*overrides) == line
    assert files() == untouched
    found, logged = started(*overrides)
    assert found == step
    says_nothing = line in ("begins", "resumes after step 1 of 2")
    assert logged == "" if says_nothing else line in logged
    assert toy.path.with_name("toy.1").exists() is aside


def test_check_and_start_say_that_a_run_is_complete_in_the_same_words(toy):
    train(ONE)
    line = checked(ONE)
    assert line.startswith("already complete: 1 of 1 steps in ")
    with pytest.raises(RunComplete) as complete:
        started(ONE)
    assert str(complete.value) == line


def test_check_and_start_name_the_same_changes_of_an_unfinished_run(toy):
    train_until_step_2_fails()
    line = checked(*STOPPED, SEED)
    assert "stopped after step 1 of 2, and these have changed since: ajet.seed 0 -> 7;" in line
    with pytest.raises(RunChanged) as changed:
        started(*STOPPED, SEED)
    assert line == f"asks at a terminal, is refused without one: {changed.value}"


def test_check_says_that_a_run_that_goes_on_is_not_started_twice(toy):
    with RunFolder.open(toy.path):
        assert checked(ONE) == "is refused while another process runs the run"
        with pytest.raises(CheckpointError, match="is in use by process"):
            started(ONE)
    assert checked(ONE) == "begins"


def test_check_says_that_a_run_whose_explorer_still_plays_is_not_set_aside(toy):
    train_and_edit()
    with RunFolder.open(toy.path, ".lock-explore"):
        line = checked(ONE)
        assert "a process of backbone trinity still writes there (.lock-explore)" in line
        with pytest.raises(CheckpointError) as refused:
            started(ONE)
    assert line == f"is refused: {refused.value}"
    assert not toy.path.with_name("toy.1").exists()
    assert checked(ONE) == f"changed since the finished run: workflow.py changed; {ANEW}"


def test_check_says_what_an_explorer_does_and_that_there_is_but_one(toy):
    explore = "trinity.mode=explore"
    line = "plays episodes for the trainer of this run folder, and waits until there is one"
    with RunFolder.open(toy.path):  # the trainer's lock is another
        assert checked(ONE, explore, backbone="trinity") == line
    with RunFolder.open(toy.path, ".lock-explore"):
        line = checked(ONE, explore, backbone="trinity")
    assert line == "is refused while another process explores the run"


def test_check_says_that_a_new_run_goes_on_from_a_checkpoint_of_another(toy):
    train(ONE)
    overrides = (TWO, f"{T}.resume={CHECKPOINT}", "ajet.experiment_name=other")
    assert checked(*overrides) == f"resumes after {CHECKPOINT}"
    train(*overrides)
    (attempt,) = read_attempts(RunFolder(toy.path.with_name("other")))
    assert (attempt.first_step, attempt.last_step) == (1, 2)


def test_check_looks_where_the_runs_are_kept(toy):
    train(ONE)
    toy.path.parent.rename("elsewhere")
    assert checked(ONE) == "begins"
    assert checked(ONE, "--exp-dir", "elsewhere").startswith("already complete: 1 of 1 steps")


def test_check_says_so_without_torch_also_where_checkpoints_are_read(toy):
    train(ONE)
    code = (
        "import sys; from ajet.cli.launcher import app\n"
        f"app(['check', '--conf', 'toy.yaml', '--backbone', 'debug', '{ONE}'],"
        " standalone_mode=False)\n"
        "print('LOADED', [m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "start: already complete: 1 of 1 steps" in done.stdout, done.stdout + done.stderr
    assert "LOADED []" in done.stdout, done.stdout + done.stderr
