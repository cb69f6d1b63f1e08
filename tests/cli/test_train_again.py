"""`ajet --conf X.yaml` a second time, as a person types it: what it says and its exit code."""

import os
import pty
import socket

import pytest

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.errors import RunFailed
from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import read_attempts
from ajet.core.run.start import open_run
from tests.e2e.toy_run import ToyRun, environment

ONE = "ajet.trainer_common.total_training_steps=1"
TWO = "ajet.trainer_common.total_training_steps=2"
FAILS = "ajet.rollout.user_workflow=workflow.py->AllFail"


class RunOnRay(ToyRun):
    """On the Ray of RAY_ADDRESS."""

    def __init__(self, folder, backbone):
        super().__init__(folder)
        self.backbone = backbone

    @property
    def arguments(self):
        return ["--conf", "toy.yaml", "--backbone", self.backbone]


def stop_after_step_1(backbone):
    """What a run leaves in its folder that stopped then, as far as its next start looks at it."""
    config = load_config("toy.yaml", [FAILS, TWO], backbone=backbone)
    with pytest.raises(RunFailed), open_run(config, assembly.read_tasks(config)) as folder:
        (folder.checkpoints / "step_000001").mkdir()
        (folder.checkpoints / "step_000001" / "manifest.json").touch()
        raise RunFailed("all episodes of step 2 failed")


def at_a_terminal(toy, answer, *overrides, **options):
    """The command with a terminal as its input, where `answer` is typed: exit code and text."""
    for name in ("stdout", "stderr"):
        (toy.folder / name).unlink(missing_ok=True)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        code = toy.finish(*overrides, stdin=theirs, **options)
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
    assert line.endswith("[AJ-RUN-004]")


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


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
@pytest.mark.parametrize("answer", ["q", "g", "n"])
def test_on_ray_a_person_is_asked_before_ray_is_joined(toy, backbone, answer):
    pytest.importorskip("ray")
    run = RunOnRay(toy.folder, backbone)
    stop_after_step_1(backbone)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        env = environment(RAY_ADDRESS=f"127.0.0.1:{nobody.getsockname()[1]}")
        found, said = at_a_terminal(run, answer, TWO, env=env, fresh=False)
    assert found == 1, said
    assert '"workflow.py->AllFail" -> "workflow.py->Plain"' in said
    assert said.count("(g)o on with the changes, start a (n)ew run, or (q)uit?") == 1
    assert ("error: no Ray answers at 127.0.0.1:" in said) is (answer != "q")
    attempts = read_attempts(RunFolder(run.path))
    starts = [(attempt.first_step, attempt.accepted) for attempt in attempts]
    assert starts == {"q": [(0, False)], "g": [(0, False), (1, True)], "n": [(0, False)]}[answer]
    assert run.path.with_name("toy.1").exists() is (answer == "n")
