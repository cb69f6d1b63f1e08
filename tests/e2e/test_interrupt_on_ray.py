"""SIGTERM to a run on Ray: it ends its step, saves, exits with 143, and leaves no process."""

import os
import signal

import pytest

from tests.e2e.toy_run import VerlRun, ended, wait_until
from tests.processes import below, until_gone

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

WITHIN_S = 600


def test_a_signal_ends_the_run_after_its_step_and_the_same_command_goes_on(tmp_path):
    settings = ("ajet.trainer_common.total_training_steps=2", "ajet.trainer_common.save_freq=0")
    run = VerlRun(tmp_path, *settings)
    with ended(run.start()) as process:
        assert wait_until(lambda: run.episodes("begin", 1) > 0, process, WITHIN_S, 0.05), (
            run.stderr()
        )
        born = below(process.pid)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(WITHIN_S) == 143, run.stderr()
    assert not until_gone(born, 30)
    assert run.steps_saved() == [1] and "stopped after step 1 of 2" in run.stdout()
    assert run.finish(timeout=WITHIN_S) == 0, run.stderr()
    assert run.steps_saved() == [1, 2]
