"""Where a run stops and goes on: validations, explicit checkpoints, starts in a used folder."""

import gc
import io
import json
import sqlite3
import weakref

import numpy as np
import pytest
import safetensors.numpy
from rich.console import Console

from ajet import assembly
from ajet.backbones.debug.training import DebugTraining, fit_debug
from ajet.core.errors import RunComplete
from ajet.core.process.interrupt import Interrupt
from ajet.core.run.start import open_run
from tests.in_process_run import config
from tests.in_process_run import train as train_whole

VALIDATED = [
    "ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl",
    "ajet.data.val_max_tasks=2",
    "ajet.trainer_common.val_pass_n=1",
    "ajet.trainer_common.val_before_train=true",
    "ajet.trainer_common.test_freq=2",
]


@pytest.fixture
def toy(toy):
    toy.shrink()
    return toy


class StopsAfter(DebugTraining):
    """As if Ctrl-C came in the middle of a step."""

    last_step = 0

    async def _train_step(self, step):
        self.run.interrupt.requested = step == self.last_step
        await super()._train_step(step)


def train(*overrides, stop_after=None, interrupt=None):
    if stop_after is None:
        return train_whole(*overrides)
    settings = config(*overrides)
    tasks = assembly.read_tasks(settings)
    with open_run(settings, tasks) as folder:
        training = StopsAfter(
            settings, tasks, folder, interrupt or Interrupt(), Console(file=io.StringIO())
        )
        training.last_step = stop_after
        return training.fit()


def test_a_run_that_has_ended_keeps_no_model_in_memory(toy):
    settings, interrupt = config("ajet.trainer_common.total_training_steps=1"), Interrupt()
    tasks = assembly.read_tasks(settings)
    with open_run(settings, tasks) as folder:
        training = DebugTraining(settings, tasks, folder, interrupt, Console(file=io.StringIO()))
        policy = weakref.ref(training.learner.policy)
        training.fit()
    del training
    gc.collect()
    assert policy() is None  # though the command's interrupt and console live on


def logged(toy, name):
    lines = map(json.loads, (toy.path / "logs/metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if name in line]


def test_a_validation_that_an_interrupt_kept_back_comes_when_the_run_goes_on(toy):
    two = "ajet.trainer_common.total_training_steps=2"
    stopped = train(*VALIDATED, two, stop_after=2)
    assert (stopped.steps, stopped.success_after) == (2, None)
    assert logged(toy, "held_out/success") == [0]
    whole = train(*VALIDATED, two)
    assert whole.success_after is not None
    assert logged(toy, "held_out/success") == [0, 2]
    with pytest.raises(RunComplete, match="already complete: 2 of 2 steps"):
        train(*VALIDATED, two)
    assert logged(toy, "held_out/success") == [0, 2]  # and not once more


@pytest.mark.parametrize(
    ("step", "overrides", "stopped_early"),
    [(1, [], True), (2, VALIDATED, True), (2, [], False)],
    ids=["steps are left", "a validation is left", "nothing is left"],
)
def test_a_run_was_stopped_early_where_a_signal_left_something_undone(
    toy, step, overrides, stopped_early
):
    interrupt = Interrupt()
    two = "ajet.trainer_common.total_training_steps=2"
    assert train(*overrides, two, stop_after=step, interrupt=interrupt).steps == step
    assert interrupt.stopped_early is stopped_early


def test_going_on_from_an_older_checkpoint_sets_the_later_ones_aside(toy):
    train("ajet.trainer_common.total_training_steps=2")
    first = toy.path / "checkpoints/step_000001"
    train(f"ajet.trainer_common.resume={first}", "ajet.trainer_common.total_training_steps=1")
    names = sorted(path.name for path in (toy.path / "checkpoints").iterdir())
    assert names == ["earlier-1-step_000002", "step_000001"]


def test_a_run_that_starts_anew_loses_nothing_of_the_earlier_one(toy):
    one = "ajet.trainer_common.total_training_steps=1"
    train(one)
    train(one, "ajet.trainer_common.resume=disable")
    aside = toy.path.with_name("toy.1")
    assert {p.name for p in aside.iterdir()} >= {p.name for p in toy.path.iterdir()}
    for folder in (toy.path, aside):
        with sqlite3.connect(folder / "episodes.sqlite") as connection:
            assert connection.execute("SELECT count(*) FROM episodes").fetchone() == (4,)


def test_a_start_without_a_checkpoint_forgets_the_validation_of_one_that_was_killed(toy):
    one = "ajet.trainer_common.total_training_steps=1"
    train(*VALIDATED, one)
    for path in (toy.path / "checkpoints").iterdir():
        path.rename(toy.folder / path.name)  # as if it had been killed before the first one
    train(*VALIDATED, one)
    assert logged(toy, "held_out/success") == [0, 1]


def test_a_chat_template_writes_the_day_on_which_the_run_began(toy):
    settings = config("ajet.trainer_common.total_training_steps=1")
    tasks = assembly.read_tasks(settings)
    with open_run(settings, tasks) as folder:
        first = DebugTraining(settings, tasks, folder, Interrupt(), Console(file=io.StringIO()))
        begun = first.run.state.begun
        first.fit()
        again = DebugTraining(settings, tasks, folder, Interrupt(), Console(file=io.StringIO()))
        assert again.run.state.begun == begun
        again.fit()


def weights_of(folder):
    return safetensors.numpy.load_file(folder / "checkpoints/step_000002/model.safetensors")


def test_a_run_is_validated_before_and_after_and_trains_the_same_weights_without(toy):
    two = "ajet.trainer_common.total_training_steps=2"
    held_out = "ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl"
    given = (two, held_out, "ajet.trainer_common.test_freq=1", "ajet.trainer_common.val_pass_n=1")
    validated = train(*given, "ajet.experiment_dir=with")
    assert validated.success_before is not None and validated.success_after is not None
    plain = train(two, "ajet.experiment_dir=without")
    assert plain.success_before is None
    with_it, without = (weights_of(toy.folder / name) for name in ("with", "without"))
    assert with_it.keys() == without.keys()
    assert all(np.array_equal(with_it[name], without[name]) for name in without)


def test_success_is_measured_greedily_and_sampled_before_the_first_step_and_after_the_last(toy):
    three = "ajet.trainer_common.total_training_steps=3"
    summary = train(*VALIDATED, three, "ajet.trainer_common.test_freq=1")
    assert logged(toy, "held_out/success") == [0, 1, 2, 3]  # greedy, as the default is
    assert logged(toy, "held_out_sampled/success") == [0, 3]
    rates = summary.success_by_decoding
    assert list(rates) == ["greedy", "sampled"]
    assert rates["greedy"] == {"before": summary.success_before, "after": summary.success_after}
    assert None not in rates["sampled"].values()
    with sqlite3.connect(toy.path / "episodes.sqlite") as connection:
        (played,) = connection.execute(
            "SELECT count(*) FROM episodes WHERE mode = 'eval'"
        ).fetchone()
    assert played == 4 * 2  # those of the run's own validations alone


def test_the_second_decoding_can_be_turned_off(toy):
    one = "ajet.trainer_common.total_training_steps=1"
    summary = train(*VALIDATED, one, "ajet.trainer_common.val_second_decoding=false")
    assert list(summary.success_by_decoding) == ["greedy"]
    assert logged(toy, "held_out_sampled/success") == []


def test_what_a_run_is_measured_on_is_said_on_the_screen_and_in_the_record(toy):
    output = io.StringIO()
    given = ["ajet.trainer_common.total_training_steps=1", "ajet.data.val_max_tasks=1"]
    held_out = "ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl"
    settings = config(*given, held_out, "ajet.trainer_common.test_freq=1")
    summary = fit_debug(settings, Console(file=output, width=200))
    available = len((toy.folder / "tasks.jsonl").read_text().splitlines())
    assert f"validation: 1 of {available} held-out tasks, the same ones" in output.getvalue()
    assert (summary.num_held_out, summary.num_held_out_available) == (1, available)
    written = json.loads((settings.run_folder / "summary.json").read_text())
    assert written["num_held_out_available"] == available
