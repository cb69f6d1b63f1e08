"""A run goes on while a checkpoint is written, and never ends or saves again before it is."""

import asyncio
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from ajet import assembly
from ajet.core.config.support import refusals_and_notices
from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import StepGroups
from ajet.core.run.training_run import TrainingRun
from ajet.core.trajectory.trained_tokens import TrainedTokens
from tests.config_reach.test_settings import T, config_of
from tests.core.record.record_fixtures import episode, group_of

SIX_STEPS = {"ajet.task_reader.type": "random_dummy", f"{T}.total_training_steps": 6}


class SlowDisk:
    """Holds back each checkpoint until `free`; the `broken` one fails then."""

    def __init__(self, broken=None):
        self.begun, self.written, self.copied, self.broken = [], [], [], broken
        self.free = asyncio.Event()

    async def save(self, step, state, copies):
        self.begun.append(step)
        self.copied += [step] if copies else []
        return self._write(step)

    async def _write(self, step):
        await self.free.wait()
        if step == self.broken:
            raise CheckpointError(f"step {step} was not saved", code=Code.CHECKPOINT_NOT_SAVED)
        self.written.append(step)


async def step_and_save(run, step):
    empty = SimpleNamespace(advantages={}, samples=[], tokens=TrainedTokens())
    run.record_step(step, StepGroups([group_of(episode(step=step))], [], 1.0), empty, {})
    saving = asyncio.create_task(run.save_if_due())
    await asyncio.sleep(0.01)
    return saving


def background_run(folder, disk):
    config = config_of(SIX_STEPS | {f"{T}.save_freq": 2})
    tasks, console = assembly.read_tasks(config), Console(file=io.StringIO())
    return TrainingRun(
        config,
        folder,
        tasks,
        save=disk.save,
        saves_in_background=True,
        interrupt=Interrupt(),
        console=console,
    )


async def test_a_run_goes_on_while_a_checkpoint_is_written_and_waits_for_it_at_the_next(tmp_path):
    disk = SlowDisk()
    with RunFolder.open(tmp_path / "run") as folder, background_run(folder, disk) as run:
        async with run.saved_at_end():
            for step in (1, 2, 3):
                await (await step_and_save(run, step))
            assert disk.begun == [2] and disk.written == []
            waiting = await step_and_save(run, 4)
            assert disk.begun == [2] and not waiting.done()
            disk.free.set()
            await waiting
            await (await step_and_save(run, 5))
            assert disk.written[:1] == [2] and disk.begun == [2, 4]
        assert disk.written == [2, 4, 5]  # the last step's is written at the end
        assert disk.copied == [2, 4]


async def test_a_checkpoint_that_failed_in_the_background_ends_the_run_at_the_next_step(tmp_path):
    disk = SlowDisk(broken=2)
    with RunFolder.open(tmp_path / "run") as folder, background_run(folder, disk) as run:
        await (await step_and_save(run, 2))
        disk.free.set()
        await asyncio.sleep(0)
        with pytest.raises(CheckpointError, match="step 2 was not saved"):
            await (await step_and_save(run, 3))


async def fail_after_a_save(folder, disk):
    with background_run(folder, disk) as run:
        async with run.saved_at_end():
            await (await step_and_save(run, 2))
            disk.free.set()
            raise ZeroDivisionError


@pytest.mark.parametrize(("broken", "written"), [(None, [2]), (2, [])])
async def test_a_run_that_an_error_ends_completes_the_checkpoint_in_progress(
    tmp_path, broken, written
):
    disk = SlowDisk(broken)
    with RunFolder.open(tmp_path / "run") as folder, pytest.raises(ZeroDivisionError):
        await fail_after_a_save(folder, disk)
    assert disk.written == written


def test_where_clients_run_the_episodes_a_checkpoint_is_written_before_the_run_goes_on():
    clients = {"ajet.rollout.user_workflow": "client_owned"}
    key = f"{T}.save_in_background"
    assert config_of({}).saves_in_background(on_gpu=True)
    assert not config_of({}).saves_in_background(on_gpu=False)
    assert not config_of(clients).saves_in_background(on_gpu=True)
    refusals, _ = refusals_and_notices(config_of(clients | {key: True}))
    assert [path for path, _ in refusals] == [key]
    assert config_of({key: True}).saves_in_background(on_gpu=False)
