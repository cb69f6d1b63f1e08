"""Ctrl-C and SIGTERM: once ends the run after its step, twice ends it now. No child outlives it."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.toy_run import EPISODES, ToyRun, ended, wait_until
from tests.processes import below, command, is_running


def kinds(pid: int) -> set[str]:
    """Which of the run's helpers are there."""
    commands = " ".join(map(command, below(pid)))
    return {name for name in ("math_process", "zygote") if name in commands}


def interrupted_once(run: ToyRun, number: int) -> dict:
    """A signal in the middle of step 2; then what came of it."""
    run.hold(2)
    with ended(run.start()) as process:
        assert wait_until(lambda: run.episodes("begin", 2) == EPISODES, process), run.stderr()
        os.kill(process.pid, number)
        time.sleep(0.1)
        run.hold(None)
        return {"code": process.wait(60), "saved": run.steps_saved(), "told": run.stdout()}


def interrupted_twice(run: ToyRun) -> dict:
    """Two signals while two-second programs run in the sandbox."""
    with ended(run.start(fresh=True)) as process:
        assert wait_until(lambda: run.episodes("begin", 1) == EPISODES, process), run.stderr()
        both = {"math_process", "zygote"}
        assert wait_until(lambda: both <= kinds(process.pid), process), run.stderr()
        assert wait_until(lambda: len(below(process.pid)) > 2, process), run.stderr()
        born = below(process.pid)
        started_s = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        code = process.wait(60)
        took_s = time.monotonic() - started_s
    # The kernel ends the workers of a sandbox whose parent is gone, after a moment.
    while (alive := [pid for pid in born if is_running(pid)]) and time.monotonic() < started_s + 60:
        time.sleep(0.05)
    return {"code": code, "took_s": took_s, "alive": alive, "born": born}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The three interrupted runs, two at a time."""
    folder = tmp_path_factory.mktemp("interrupt")
    three = "ajet.trainer_common.total_training_steps=3"
    rare = "ajet.trainer_common.save_freq=0"
    once = ToyRun(folder / "once", three, rare)
    term = ToyRun(folder / "term", three, rare)
    twice = ToyRun(folder / "twice", three, "ajet.rollout.user_workflow=workflow.py->Slow")
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(interrupted_once, once, signal.SIGINT),
            pool.submit(interrupted_once, term, signal.SIGTERM),
            pool.submit(interrupted_twice, twice),
        ]
    return {
        "once": (once, ends[0].result()),
        "term": (term, ends[1].result()),
        "twice": (twice, ends[2].result()),
    }


@pytest.mark.parametrize(("name", "code"), [("once", 130), ("term", 143)])
def test_one_signal_finishes_the_step_saves_and_exits_with_its_number(outcomes, name, code):
    run, outcome = outcomes[name]
    assert outcome["code"] == code, run.stderr()
    assert outcome["saved"] == [2]  # save_freq is 0: this checkpoint is the interrupt's own
    assert "stopping after this step" in outcome["told"]
    assert "stopped after step 2 of 3" in outcome["told"]
    assert run.errors() == []


def test_the_same_command_goes_on_from_there(outcomes):
    run, _ = outcomes["once"]
    assert run.finish() == 0, run.stderr()
    assert run.steps_saved() == [2, 3]
    assert "resumes after step 2 of 3, from " in run.stdout()
    assert run.episodes("begin", 2) == EPISODES  # not run again


def test_two_signals_stop_at_once_and_leave_no_child(outcomes):
    run, outcome = outcomes["twice"]
    assert outcome["code"] == 130
    assert outcome["took_s"] < 30  # with room for a busy machine
    assert len(outcome["born"]) > 2 and outcome["alive"] == []
    assert "Traceback" not in run.stderr()
