"""The explorer's command over a trainer that is made by hand, attempt after attempt."""

import asyncio
import json
import signal
import sys
import threading
from contextlib import contextmanager, suppress

import pytest

from ajet.backbones.disaggregated import split_run
from ajet.backbones.disaggregated.split_run import PUBLISHED, ExplorerCommand
from ajet.core.buffer.buffer import ATTEMPT, ATTEMPTS, GroupBuffer
from ajet.core.buffer.priority import PRIORITIES
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.config import load_config
from ajet.core.inference.endpoint import Completion
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.admission import Admission
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.core.weight_sync.manifest import WeightsError
from tests.e2e.toy_run import ToyRun


class OneAttempt:
    """Ends the episodes of the first attempt at once, with tokens of an update that is lost with
    it, and none of the second."""

    def __init__(self):
        self.is_second = False

    def set_stops(self, stops): ...

    def calls(self):
        return {}

    async def run(self, plan, slot, judge_in_group=None):
        if self.is_second:
            await asyncio.sleep(100)
        turn = Turn(Completion((1,), (2,), (-0.5,), "stop", 1), [], None, {})
        slot.workflow_ended(EpisodeStatus.OK)
        return Trajectory(plan, (turn,), EpisodeStatus.OK, WorkflowOutput(reward=1.0), 1.0)


def begin_attempt(buffer, name, folder):
    published = {"sitting": name, "version": 0, "path": str(folder)}
    attempts = json.dumps({"first": 0} | {name: 0})
    notes = {ATTEMPT: name, ATTEMPTS: attempts, "plan": "null", PUBLISHED: json.dumps(published)}
    buffer.reopen(0, **notes)


def command_over(config, folder, runner, load, interrupt=None, say=print):
    interrupt = interrupt or Interrupt()
    return ExplorerCommand(config, folder, interrupt, make_runner=runner, load=load, say=say)


async def test_a_group_that_is_stored_late_is_not_taken_for_one_of_the_next_attempt(
    tmp_path, monkeypatch
):
    """Its thread goes on when the explorer begins again; its updates may be lost by then."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = ToyRun(tmp_path)
    monkeypatch.chdir(run.folder)
    storing, may_store = threading.Event(), threading.Event()

    def slow(index, group):
        storing.set()
        may_store.wait(20)
        return 0.0

    monkeypatch.setitem(PRIORITIES, "spread", slow)
    episodes = OneAttempt()

    async def runner():
        limits = RolloutLimits(max_failure_rate=1.0)
        return GroupRunner(episodes, Admission(4), limits=limits, run_seed=0)

    loaded = asyncio.Queue()
    settings = ["ajet.data.train_batch_size=1", "trinity.buffer.priority=spread"]
    config = load_config("toy.yaml", [*settings, "trinity.max_staleness=1"], backbone="trinity")
    with RunFolder.open(config.run_folder) as folder:
        url = f"sqlite:///{folder.buffer_db}"
        trainers = GroupBuffer(url, StalenessBound(1, 1, 1, 1), run=folder.run_id())
        begin_attempt(trainers, "first", tmp_path)
        command = command_over(config, folder, runner, loaded.put)
        exploring = asyncio.create_task(command.explore())
        exploring.add_done_callback(loaded.put_nowait)  # an error is not waited for
        await loaded.get()
        assert await asyncio.to_thread(storing.wait, 20)
        episodes.is_second = True
        begin_attempt(trainers, "second", tmp_path)
        await loaded.get()
        assert trainers.counts() == {"begun": 2}
        may_store.set()
        await asyncio.sleep(0.5)
        assert trainers.counts() == {"begun": 2}
        exploring.cancel()
        await asyncio.wait([exploring])
        trainers.close()


class Released(OneAttempt):
    """Ends episodes once they are released."""

    def __init__(self):
        self.released = asyncio.Event()

    async def run(self, plan, slot, judge_in_group=None):
        await self.released.wait()
        turn = Turn(Completion((1,), (2,), (-0.5,), "stop", 0), [], None, {})
        slot.workflow_ended(EpisodeStatus.OK)
        return Trajectory(plan, (turn,), EpisodeStatus.OK, WorkflowOutput(reward=1.0), 1.0)


async def test_no_group_begins_between_weights_that_were_gone_and_the_next(tmp_path, monkeypatch):
    """Engines that failed to load hold requests until the next load, and with `finish` that waits
    for the groups: each would wait for the other."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = ToyRun(tmp_path)
    monkeypatch.chdir(run.folder)
    episodes, loaded = Released(), []

    async def runner():
        limits = RolloutLimits(max_failure_rate=1.0)
        return GroupRunner(episodes, Admission(4), limits=limits, run_seed=0)

    async def load(source):
        loaded.append(source.version)
        if not source.path.exists():
            raise WeightsError("removed meanwhile")

    def publish(version, folder):
        published = {"sitting": "first", "version": version, "path": str(folder)}
        trainers.write_notes(**{PUBLISHED: json.dumps(published)})

    async def until(condition):
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.02)

    settings = ["ajet.data.train_batch_size=1", "ajet.rollout.num_repeat=2"]
    settings += ["trinity.max_staleness=3", "trinity.partial_rollout=finish"]
    config = load_config("toy.yaml", settings, backbone="trinity")
    with RunFolder.open(config.run_folder) as folder:
        url = f"sqlite:///{folder.buffer_db}"
        trainers = GroupBuffer(url, StalenessBound.from_config(config), run=folder.run_id())
        begin_attempt(trainers, "first", tmp_path)
        command = command_over(config, folder, runner, load)
        exploring = asyncio.create_task(command.explore())
        await until(lambda: exploring.done() or trainers.counts() == {"begun": 2})
        publish(1, tmp_path / "gone")
        await asyncio.sleep(0.5)
        assert loaded == [0]  # it waits for both groups
        episodes.released.set()
        await until(lambda: exploring.done() or len(loaded) >= 2)
        await asyncio.sleep(0.3)
        assert trainers.counts() == {"ready": 2}  # there is room for two more
        publish(2, tmp_path)
        await until(lambda: exploring.done() or trainers.counts().get("ready", 0) > 2)
        assert loaded[-1] == 2
        exploring.cancel()
        await asyncio.wait([exploring])
        trainers.close()


@contextmanager
def trainers_buffer(tmp_path, monkeypatch, weights):
    """The config and the folder of a run one step ahead, and the buffer of a trainer that has
    published these weights."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(ToyRun(tmp_path).folder)
    settings = ["ajet.data.train_batch_size=1", "ajet.rollout.num_repeat=2"]
    config = load_config("toy.yaml", [*settings, "trinity.max_staleness=1"], backbone="trinity")
    with RunFolder.open(config.run_folder) as folder:
        url = f"sqlite:///{folder.buffer_db}"
        buffer = GroupBuffer(url, StalenessBound.from_config(config), run=folder.run_id())
        begin_attempt(buffer, "first", weights)
        yield config, folder, buffer
        buffer.close()


@pytest.mark.parametrize("when", ["from the start", "later"])
async def test_an_explorer_that_does_not_see_the_weights_says_so_and_ends(
    tmp_path, monkeypatch, warnings, when
):
    monkeypatch.setattr(split_run, "UNSEEN_NOTICE_S", 0.3)
    monkeypatch.setattr(split_run, "UNSEEN_TIMEOUT_S", 1.5)
    elsewhere, loaded = tmp_path / "elsewhere", asyncio.Event()

    async def runner():
        limits = RolloutLimits(max_failure_rate=1.0)
        return GroupRunner(Released(), Admission(4), limits=limits, run_seed=0)

    async def load(source):
        if not source.path.exists():
            raise WeightsError("not there")
        loaded.set()

    first = elsewhere if when == "from the start" else tmp_path
    with trainers_buffer(tmp_path, monkeypatch, first) as (config, folder, buffer):
        exploring = asyncio.create_task(command_over(config, folder, runner, load).explore())
        if when == "later":
            await asyncio.wait_for(loaded.wait(), 20)
            published = {"sitting": "first", "version": 1, "path": str(elsewhere)}
            buffer.write_notes(**{PUBLISHED: json.dumps(published)})
        version = 0 if when == "from the start" else 1
        what = f"the trainer's weights of version {version}: no folder {elsewhere}"
        todo = "is the trainer running, and is its run folder mounted here, at the same path?"
        with pytest.raises(WeightsError) as ended:
            await asyncio.wait_for(exploring, 20)
        assert str(ended.value) == f"{what} after 1.5 s; {todo} Then start this again"
        told = [line for line in warnings if str(elsewhere) in line]
        assert told == [f"waiting for {what}; ends after 1.5 s; {todo}"]


async def test_weights_that_come_late_are_waited_for(tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(split_run, "UNSEEN_NOTICE_S", 0.0)
    late, loaded = tmp_path / "late", asyncio.Queue()

    async def runner():
        limits = RolloutLimits(max_failure_rate=1.0)
        return GroupRunner(Released(), Admission(4), limits=limits, run_seed=0)

    with trainers_buffer(tmp_path, monkeypatch, late) as (config, folder, _):
        command = command_over(config, folder, runner, loaded.put)
        exploring = asyncio.create_task(command.explore())
        async with asyncio.timeout(20):
            while not warnings:
                await asyncio.sleep(0.01)
        late.mkdir()
        assert (await asyncio.wait_for(loaded.get(), 20)).path == late
        assert len([line for line in warnings if str(late) in line]) == 1
        exploring.cancel()
        await asyncio.wait([exploring])


class Stubborn(Released):
    """Ends no episode, and swallows what cancels it."""

    async def run(self, plan, slot, judge_in_group=None):
        while True:
            with suppress(asyncio.CancelledError):
                await self.released.wait()


def test_ctrl_c_says_what_an_explorer_waits_for_and_a_second_one_ends_it(tmp_path, monkeypatch):
    said, interrupt = [], Interrupt()

    async def load(source): ...

    async def explore(config, folder, buffer):
        async def runner():
            limits = RolloutLimits(max_failure_rate=1.0)
            return GroupRunner(Stubborn(), Admission(4), limits=limits, run_seed=0)

        command = command_over(config, folder, runner, load, interrupt, said.append)
        exploring = asyncio.create_task(command.explore())
        async with asyncio.timeout(20):
            while buffer.counts() != {"begun": 2}:
                await asyncio.sleep(0.02)
        assert said == []
        signal.raise_signal(signal.SIGINT)
        assert said == [split_run.STOPPING]
        await asyncio.sleep(0.6)
        assert not exploring.done()  # the episodes still run
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one ends it")

    with (
        trainers_buffer(tmp_path, monkeypatch, tmp_path) as (config, folder, buffer),
        catch_interrupts(interrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run_bounded(explore(config, folder, buffer), grace_s=0.1)
