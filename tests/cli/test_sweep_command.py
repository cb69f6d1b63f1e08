"""`ajet sweep`: the runs of a grid, one after the other, and again."""

import os
import signal

import pytest

from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import read_attempts
from tests.e2e.toy_run import ToyRun, ended, wait_until

STEPS = "ajet.trainer_common.total_training_steps"
WORKFLOW = "ajet.rollout.user_workflow"


@pytest.fixture
def small(toy):
    toy.shrink()
    return toy


def ends(toy, *names):
    folders = [toy.folder / "launcher_record/toy_sweep" / name for name in names]
    return [[each.end for each in read_attempts(RunFolder(folder))] for folder in folders]


def test_a_failed_run_is_reported_and_the_others_are_trained_and_not_trained_again(small):
    grid = f"{WORKFLOW}='workflow.py->Raises','workflow.py->Plain'"
    names = ("user_workflow=workflow.py-_Raises", "user_workflow=workflow.py-_Plain")
    assert small.finish("sweep", grid, f"{STEPS}=1") == 1
    assert ends(small, *names) == [["failed"], ["complete"]]
    last = small.errors()[-1]
    assert last.startswith(f"error: 1 of 2 runs failed: {names[0]}; the same command trains")
    assert last.endswith("[AJ-RUN-023]")
    assert "failed: RunFailed" in small.stdout() and "complete" in small.stdout()
    assert "view launcher_record/toy_sweep" in small.stdout()
    assert small.finish("sweep", grid, f"{STEPS}=1") == 1
    assert ends(small, *names) == [["failed", "failed"], ["complete"]]
    assert f"run 2 of 2: {names[1]}: complete" in small.stdout()


def test_a_sweep_that_was_stopped_resumes_its_run_bit_for_bit(small, tmp_path):
    names = ("seed=3", "seed=4")
    sweep = ("sweep", "ajet.seed=3,4", f"{STEPS}=2")
    small.hold(2)
    with ended(small.start(*sweep, fresh=True)) as process:
        assert wait_until(lambda: small.episodes("begin", 2), process), small.stderr()
        os.kill(process.pid, signal.SIGTERM)
        small.hold(None)
        assert process.wait(60) == 143, small.stderr()
    assert small.finish(*sweep) == 0, small.stderr()
    alone = ToyRun(tmp_path / "alone")
    alone.shrink()
    assert alone.finish("ajet.seed=3", f"{STEPS}=2", "ajet.experiment_name='seed=3'") == 0
    for name in ("model.safetensors", "tensors.safetensors"):
        file = f"seed=3/checkpoints/step_000002/{name}"
        swept = small.folder / "launcher_record/toy_sweep" / file
        assert swept.read_bytes() == (alone.folder / "launcher_record" / file).read_bytes()
    assert ends(small, *names)[1] == ["complete"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ajet.trainer_common.optim.lr=1e-4,fast", "override 'ajet.trainer_common.optim.lr=fast'"),
        ("ajet.trainer_common.optim.rl=1e-4,1e-5", "ajet.trainer_common.optim.rl: no such key"),
        (f"{WORKFLOW}='workflow.py->Plain','workflow.py->None'", "workflow.py->None"),
    ],
)
def test_a_wrong_value_of_any_run_is_refused_before_the_first_one_starts(small, override, message):
    result = small.call("sweep", "--conf", "toy.yaml", "--backbone", "debug", override)
    assert result.exit_code == 1 and message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (small.folder / "launcher_record").exists()
