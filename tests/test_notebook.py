"""`ajet.notebook`: a run from a cell, with what is shown of it."""

import os
import re
import signal
import threading

import pytest

from ajet import notebook
from ajet.core.errors import ConfigError, RunFailed

TWO = "ajet.trainer_common.total_training_steps=2"
SMALL = ("ajet.data.train_batch_size=2", "ajet.rollout.num_repeat=2")


def test_a_cell_trains_and_shows_the_curves_and_the_last_lines(toy, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel sets it
    shown = []
    folder = notebook.train("toy.yaml", TWO, *SMALL, show=shown.append)
    assert folder.resolve() == toy.path and (folder / "checkpoints/step_000002").is_dir()
    assert "<svg" not in shown[0]  # nothing is recorded yet
    assert re.search(r"reward/mean [\d.]+ → [\d.]+", shown[-1])
    assert len(re.findall("<polyline", shown[-1])) == 2  # no held-out tasks, so no third curve
    assert "ajet view launcher_record/toy" in shown[-1] and "\x1b" not in shown[-1]


def test_a_run_that_fails_raises_the_line_that_the_command_said(toy):
    with pytest.raises(RunFailed, match="no_model") as raised:
        notebook.train("toy.yaml", TWO, f"ajet.model.path={toy.folder}/no_model", show=print)
    assert raised.value.code.value.startswith("AJ-MOD-")


def test_a_mistake_in_the_config_is_raised_before_anything_starts(toy):
    with pytest.raises(ConfigError, match="temprature"):
        notebook.train("toy.yaml", "ajet.rollout.temprature=1", show=print)


@pytest.fixture
def interruptible():
    """A process that runs tests for another one ignores SIGINT, which a kernel does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_finishes_the_step_and_the_same_cell_goes_on(toy, interruptible):
    timers = []

    def show(text):
        if "<polyline" in text and not timers:  # the first step is recorded
            timers.append(threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)))
            timers[0].start()

    many = "ajet.trainer_common.total_training_steps=400"
    with pytest.raises(KeyboardInterrupt):
        notebook.train("toy.yaml", many, *SMALL, show=show)
    first = toy.steps_saved()[-1]
    assert first < 400 and timers
    notebook.train(
        "toy.yaml", f"ajet.trainer_common.total_training_steps={first + 1}", *SMALL, show=print
    )
    assert toy.steps_saved()[-1] == first + 1
