"""The explorer's command over a trainer that is made by hand, attempt after attempt."""

import asyncio
import json
import sys
import threading

from ajet.backbones.disaggregated.split_run import PUBLISHED, ExplorerCommand
from ajet.core.buffer.buffer import ATTEMPT, ATTEMPTS, GroupBuffer
from ajet.core.buffer.priority import PRIORITIES
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.config import load_config
from ajet.core.inference.endpoint import Completion
from ajet.core.interrupt import Interrupt
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

    async def run(self, plan, slot, sampling=None, judge_in_group=None):
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
        command = ExplorerCommand(config, folder, Interrupt(), make_runner=runner, load=loaded.put)
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

    async def run(self, plan, slot, sampling=None, judge_in_group=None):
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
        command = ExplorerCommand(config, folder, Interrupt(), make_runner=runner, load=load)
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
