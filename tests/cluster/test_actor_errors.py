"""What is lost, and when: no Ray runs here, `FakeRay` stands for it."""

import asyncio
import time

import pytest

pytest.importorskip("ray")
from ray.cloudpickle import cloudpickle
from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError

from ajet.cluster import engine_process, engines, rollout_workers
from ajet.cluster.actors import ImportEnv, ProcessLost, result_of
from ajet.cluster.engine_process import EngineProcess
from ajet.cluster.engines import Engines, RouterProcess
from ajet.cluster.rollout_worker import EpisodeEnded, Heartbeat, RolloutWorker, WorkflowEnded
from ajet.cluster.rollout_workers import RolloutWorkers
from ajet.cluster.trainer_group import Publishing, TrainerRank
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.inference.replica import ReplicaDown
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory

SERVING = {"step": 1, "mode": "train", "num_repeat": 2}
DIED, LOST = ActorDiedError(), ObjectLostError("00ff", None, "")


class Method:
    """An actor's method."""

    def __init__(self, remote):
        self.remote = remote

    def options(self, **_):
        return self


class Worker:
    """An actor whose episodes end at once; `fails` has what its methods raise instead."""

    def __init__(self, *, is_mute=False, **fails):
        self.fails, self.is_mute = fails, is_mute
        self.is_dead = asyncio.Event()
        self.events = asyncio.Queue()
        for name in ("check", "start", "begin", "take_events", "heartbeat", "cancel"):
            setattr(self, name, Method(getattr(self, f"_{name}")))

    async def _said(self, name, value=None):
        if name in self.fails:
            raise self.fails[name]
        return value

    def _check(self, config):
        return self._said("check")

    def _start(self, *_):
        return self._said("start", 1)

    def _begin(self, key, packed_plan, stops, answered):
        plan = cloudpickle.loads(packed_plan)
        trajectory = Trajectory(plan, (), EpisodeStatus.OK, reward=1.0)
        self.events.put_nowait(WorkflowEnded(key, EpisodeStatus.OK))
        self.events.put_nowait(EpisodeEnded(key, cloudpickle.dumps(trajectory)))

    async def _take_events(self):
        if self.is_mute:
            await self.is_dead.wait()
            raise DIED
        return await self._said("take_events", [await self.events.get()])

    async def _heartbeat(self):
        if self.is_mute:
            await asyncio.Future()
        return Heartbeat(0.0, "")

    def _cancel(self, keys): ...


class EndsLate(Worker):
    """Its first episode, which is cancelled, ends when it has begun again."""

    first = None

    def _begin(self, key, packed_plan, stops, answered):
        if self.first is None:
            self.first = key
            return
        plan = cloudpickle.loads(packed_plan)
        stopped = Trajectory(plan, (), EpisodeStatus.ABORTED, failure="the run was stopped")
        self.events.put_nowait(EpisodeEnded(self.first, cloudpickle.dumps(stopped)))
        super()._begin(key, packed_plan, stops, answered)


class FakeRay:
    """Gives these actors, one after the other; a killed one is dead at once."""

    def __init__(self, *actors):
        self.actors, self.killed_at = list(actors), []

    def remote(self, *arguments):
        return self if isinstance(arguments[0], type) else self.actors.pop(0)

    def options(self, **_):
        return self

    def kill(self, actor):
        if not actor.is_dead.is_set():
            self.killed_at.append(time.monotonic())
        actor.is_dead.set()


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.yaml").write_text("ajet:\n  model: {path: m}\n")
    return load_config(tmp_path / "run.yaml", backbone="verl")


def workers_of(config, monkeypatch, *actors, **options):
    ray = FakeRay(*actors)
    monkeypatch.setattr(rollout_workers, "ray", ray)
    return RolloutWorkers(config, [{}], **options), ray


def tasks(number):
    return [Task(f"t{at}", "?") for at in range(number)]


# --- while it starts -----------------------------------------------------------------------------

ELSEWHERE = ImportEnv("/no/such/folder", ())
WAYS = (Publishing(None), True, None)


@pytest.mark.parametrize(
    ("kind", "arguments", "first_call"),
    [
        (RolloutWorker, (0,), lambda actor, config: actor.check(config)),
        (TrainerRank, (0, 1), lambda actor, config: actor.start(config, "h", 1, *WAYS)),
        (EngineProcess, (), lambda actor, config: actor.start(config, "engine 0", None)),
        (RouterProcess, (None, [{}]), lambda actor, _: actor.start(None)),
    ],
    ids=["worker", "rank", "engine", "router"],
)
async def test_a_folder_that_a_machine_lacks_is_the_users_line_and_no_lost_process(
    config, kind, arguments, first_call
):
    """What an actor's __init__ raises arrives as its death, without its cause."""
    actor = kind(*arguments, ELSEWHERE)

    async def call():
        if (coroutine := first_call(actor, config)) is not None:
            await coroutine

    with pytest.raises(ConfigError, match=r"/no/such/folder: .* needs the project in the same fo"):
        await call()


@pytest.mark.parametrize("method", ["check", "start"])
async def test_a_worker_that_is_killed_while_it_starts_is_a_lost_process(
    config, monkeypatch, method
):
    workers, _ = workers_of(config, monkeypatch, Worker(**{method: DIED}))
    with pytest.raises(ProcessLost, match="rollout worker 0 is lost: its process ended"):
        await workers.start(lambda: None, None)


async def test_a_worker_that_is_killed_while_it_starts_anew_is_replaced_once_more(
    config, monkeypatch, warnings
):
    actors = Worker(take_events=DIED), Worker(start=DIED), Worker()
    workers, ray = workers_of(config, monkeypatch, *actors)
    runner = await workers.start(lambda: None, None)
    [group] = await runner.rollout(RolloutRequest(tasks(1), **SERVING))
    assert [str(each.status) for each in group.trajectories] == ["ok", "ok"]
    assert ray.actors == [] and len(warnings) == 2


async def test_an_engine_that_is_killed_while_it_starts_is_a_lost_process():
    async def started():
        down = ReplicaDown("engine 1: its process ended")
        raise RayTaskError("start", "", down)

    with pytest.raises(ProcessLost, match="engine 1: its process ended"):
        await Engines._call(started())


class Engine:
    """An engine's actor, which is well until it is killed; one that Ray has no room for never
    begins."""

    def __init__(self, *, is_placed=True):
        self.is_dead, self.is_placed = asyncio.Event(), is_placed
        for name in ("start", "health", "pause", "sleep"):
            setattr(self, name, Method(self._answer))
        self.is_there = Method(self._answer if is_placed else asyncio.Future)

    async def _answer(self, *_):
        assert self.is_placed
        if self.is_dead.is_set():
            raise DIED
        return 1


def router_over(config, monkeypatch, *engine_actors):
    ray = FakeRay(*engine_actors)
    for module in (engines, engine_process):
        monkeypatch.setattr(module, "ray", ray)
    monkeypatch.setattr(engines, "PLACED_TIMEOUT_S", 0.2)
    router = RouterProcess(config, [{}], ImportEnv.current())
    router._is_forwarding = True  # its log stays in this process
    return router, ray


NO_ROOM = r"^engine 0: Ray has not started its process within 0\.2 s: its machine lacks free cores"


async def test_an_engine_that_ray_has_no_room_for_is_given_up_and_cannot_begin_later(
    config, monkeypatch
):
    engine = Engine(is_placed=False)
    router, _ = router_over(config, monkeypatch, engine)
    with pytest.raises(ReplicaDown, match=NO_ROOM):
        await asyncio.wait_for(router.start(None), 20)
    assert engine.is_dead.is_set()


async def test_an_update_does_not_wait_for_ever_for_an_engine_that_ray_has_no_room_for(
    config, monkeypatch
):
    """The engines sleep during an update, and a replacement that is being made is waited for."""
    quick = {"health_interval_s": 0.05, "max_failed_checks": 1}
    overrides = [f"ajet.rollout.router.{name}={value}" for name, value in quick.items()]
    config = load_config(config.yaml_path, overrides, backbone="verl")
    first, replacement = Engine(), Engine(is_placed=False)
    process, ray = router_over(config, monkeypatch, first, replacement)
    await process.start(None)
    await process.assign(["e/0"], [], [])
    first.is_dead.set()
    async with asyncio.timeout(20):
        while ray.actors:
            await asyncio.sleep(0.01)
        await process.assign([], ["e/0"], [])
        assert not replacement.is_dead.is_set()
        await process.sleep()
    assert replacement.is_dead.is_set()
    await process.close()


# --- later ---------------------------------------------------------------------------------------


async def test_an_episode_that_went_with_its_node_is_played_again(config, monkeypatch, warnings):
    workers, _ = workers_of(config, monkeypatch, Worker(take_events=LOST), Worker())
    runner = await workers.start(lambda: None, None)
    [group] = await runner.rollout(RolloutRequest(tasks(1), **SERVING))
    assert [str(each.status) for each in group.trajectories] == ["ok", "ok"]
    assert [line for line in warnings if "rollout worker 0 is lost" in line]


async def test_an_answer_that_went_with_its_node_is_a_lost_process():
    async def lost():
        raise LOST

    with pytest.raises(ProcessLost, match="trainer rank 1 is lost"):
        await result_of(lost(), "trainer rank 1")


async def test_a_silent_worker_has_its_time_however_many_rollouts_wait_for_it(
    config, monkeypatch, warnings
):
    monkeypatch.setattr(rollout_workers, "HEARTBEAT_S", 0.02)
    actors = Worker(is_mute=True), Worker()
    workers, ray = workers_of(config, monkeypatch, *actors, blocked_after_s=0.6)
    runner = await workers.start(lambda: None, None)
    began = time.monotonic()
    rollouts = [runner.rollout(RolloutRequest(tasks(1), numbers=[n], **SERVING)) for n in range(8)]
    groups = [group for [group] in await asyncio.gather(*rollouts)]
    assert len(groups) == 8 and len(ray.killed_at) == 1
    assert ray.killed_at[0] - began >= 0.6


async def test_what_a_cancelled_episode_says_late_is_not_taken_for_the_one_that_began_again(
    config, monkeypatch
):
    grace_s = 0.05 - RolloutLimits.from_config(config).cancel_grace_s
    monkeypatch.setattr(rollout_workers, "CANCEL_GRACE_S", grace_s)
    workers, _ = workers_of(config, monkeypatch, EndsLate())
    runner = await workers.start(lambda: None, None)
    request = RolloutRequest(tasks(1), step=1, mode="train", num_repeat=1)
    cancelled = asyncio.create_task(runner.rollout(request))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    [group] = await runner.rollout(request)
    assert [each.status for each in group.trajectories] == [EpisodeStatus.OK]
