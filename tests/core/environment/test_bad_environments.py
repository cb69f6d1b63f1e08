"""Whatever an environment does is a status and one line; its siblings and the run go on."""

import asyncio
import time
from pathlib import Path

import pytest

from ajet.core.environment import isolated
from ajet.core.environment.live import open_environment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import EnvironmentFault
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.corridor import answers, corridor_config, play
from tests.processes import is_running

UNRULY = "tests.core.environment.unruly->Unruly"
EVERYWHERE = pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
APART = pytest.mark.parametrize("isolation", ["thread", "process"])


def config_of(tmp_path, isolation, **custom):
    return corridor_config(tmp_path, UNRULY, isolation=isolation, **custom)


def closing_config(tmp_path, isolation):
    """Returns a config whose environments write into `closed(tmp_path)` when they are closed."""
    return config_of(tmp_path, isolation, env_config={"closed_in": str(tmp_path / "closed")})


def closed(tmp_path):
    """Returns the names of the threads that closed environments of this test."""
    file = tmp_path / "closed"
    return file.read_text().split("\n")[:-1] if file.exists() else []


async def episode(tmp_path, isolation, *actions, config=None, **limits):
    config = config or config_of(tmp_path, isolation)
    [trajectory] = await play(config, answers(*actions), **limits)
    return trajectory


def num_open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(is_so):
    """Waits a few seconds at most."""
    for _ in range(200):
        if is_so():
            return
        await asyncio.sleep(0.02)


@EVERYWHERE
async def test_one_that_raises_is_an_env_error_of_one_line(tmp_path, isolation):
    failed = await episode(tmp_path, isolation, "raise")
    assert failed.status is EpisodeStatus.ENV_ERROR
    assert "Unruly.step() raised ValueError: the dice are lost (unruly.py:" in failed.error
    assert "\n" not in failed.error
    assert failed.reward is None


@EVERYWHERE
@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("nan", "Unruly.step(): the reward is nan, not a finite number"),
        ("inf_metric", "info['metrics']['speed'] is inf, not a finite number"),
        ("short", "returned a tuple of 3, not (observation, reward, terminated, truncated, info)"),
        ("none", "returned None, not"),
        ("bytes", "the observation is a value of type bytes, not text"),
        ("word_reward", "the reward is the str 'much', not a number"),
        ("word_flag", "terminated is the str 'no', not a bool"),
        ("no_info", "info is None, not a dict"),
        ("pair_metric", "info['metrics'] has a tuple of 2 as a name, not text"),
        ("pair_mode", "info['metrics_agg_mode'] may only have mean, sum"),
        ("odd_mode", "info['metrics_agg_mode'] may only have mean, sum"),
        ("number_key", "info['state_key'] is the int '3', not text"),
        ("exit", "Unruly.step() raised SystemExit: 3"),
    ],
)
async def test_a_malformed_step_is_an_env_error_with_a_reason(tmp_path, isolation, action, told):
    failed = await episode(tmp_path, isolation, action)
    assert failed.status is EpisodeStatus.ENV_ERROR
    assert told in failed.error


@EVERYWHERE
async def test_a_reset_that_raises_is_an_env_error_without_a_call_of_the_model(tmp_path, isolation):
    config = config_of(tmp_path, isolation, env_config={"in_reset": "raise"})
    failed = await episode(tmp_path, isolation, "end", config=config)
    assert (failed.status, failed.turns) == (EpisodeStatus.ENV_ERROR, ())
    assert "Unruly.reset() raised ValueError: the dice are lost" in failed.error


@APART
async def test_one_that_hangs_is_an_env_error_after_its_step_timeout(tmp_path, isolation):
    # The time in which a process must start, too.
    config = config_of(tmp_path, isolation, step_timeout_s=8.0)
    failed = await episode(tmp_path, isolation, "hang 30", config=config)
    assert failed.status is EpisodeStatus.ENV_ERROR
    assert failed.error.endswith("Unruly.step() gave no answer within 8 s (step_timeout_s)")


@APART
async def test_one_that_hangs_is_a_timeout_where_the_episodes_deadline_comes_first(
    tmp_path, isolation
):
    started_s = time.monotonic()
    failed = await episode(tmp_path, isolation, "hang 30", episode_timeout_s=2.0)
    assert failed.status is EpisodeStatus.TIMEOUT
    assert time.monotonic() - started_s < 10


@EVERYWHERE
async def test_one_that_ends_well_is_closed_and_a_number_of_any_kind_is_a_reward(
    tmp_path, isolation
):
    config = closing_config(tmp_path, isolation)
    done = await episode(tmp_path, isolation, "end", config=config)
    assert (done.status, done.reward, done.is_success) == (EpisodeStatus.OK, 1.0, True)
    await until(lambda: closed(tmp_path))
    assert len(closed(tmp_path)) == 1
    assert not isolated._workers


@pytest.mark.parametrize("action", ["raise", "nan", "end"])
async def test_an_environment_is_closed_in_its_thread_whatever_happened(tmp_path, action):
    await episode(tmp_path, "thread", action, config=closing_config(tmp_path, "thread"))
    assert closed(tmp_path) == ["ajet-Unruly"]


async def test_an_environment_is_closed_when_the_run_is_stopped(tmp_path):
    endpoint = answers("hang 0.5")
    running = asyncio.ensure_future(play(closing_config(tmp_path, "thread"), endpoint))
    await until(lambda: endpoint.prompts)
    running.cancel()
    await asyncio.wait({running})
    await until(lambda: closed(tmp_path))
    assert closed(tmp_path) == ["ajet-Unruly"]


async def test_a_child_that_it_leaks_dies_with_the_episodes_process(tmp_path):
    done = await episode(tmp_path, "process", "leak", "end")
    assert done.status is EpisodeStatus.OK
    pid = int(done.turns[1].messages[-1]["content"].split()[1])
    await until(lambda: not is_running(pid))
    assert not is_running(pid)


async def test_a_process_that_dies_is_an_env_error_and_the_next_episode_has_another(tmp_path):
    failed = await episode(tmp_path, "process", "die")
    assert failed.status is EpisodeStatus.ENV_ERROR
    assert "the environment's process ended" in failed.error
    assert (await episode(tmp_path, "process", "end")).status is EpisodeStatus.OK


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        ("floats", r"its frame is an array \[2, 2, 3\] of float64, not"),
        ("objects", r"its frame is an array \[1\] of object, not"),
    ],
)
async def test_an_invalid_picture_is_reported_by_its_process(frame, told):
    spec = "tests.core.environment.unruly->OddlyDrawn"
    maker = environment_maker(spec, {"frame": frame}, [], "here")
    async with open_environment(maker, "process", step_timeout_s=10.0) as environment:
        with pytest.raises(EnvironmentFault, match=told):
            await environment.render()


async def test_a_process_given_up_at_once_leaves_no_open_file():
    maker = environment_maker(UNRULY, {}, [], "here")
    before = num_open_files()

    async def begin():
        async with open_environment(maker, "process"):
            pass

    for _ in range(3):
        beginning = asyncio.ensure_future(begin())
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait({beginning})
    await until(lambda: num_open_files() <= before)
    assert num_open_files() <= before
    assert not isolated._workers


async def test_prints_of_an_environment_are_no_messages_of_its_worker(tmp_path):
    done = await episode(tmp_path, "process", "print", "end")
    assert done.status is EpisodeStatus.OK


async def test_a_worker_holds_as_many_environments_as_the_manager_says(tmp_path, monkeypatch):
    started = []

    class Counted(isolated.Worker):
        def __init__(self, limit):
            started.append(limit)
            super().__init__(limit)

    monkeypatch.setattr(isolated, "Worker", Counted)
    manager = {"train_env_manager": {"max_env_num_per_worker": 2}}
    config = corridor_config(tmp_path, UNRULY, environment=manager, isolation="process")
    group = await play(config, answers("print", "end"), num=3)
    assert [t.status for t in group] == [EpisodeStatus.OK] * 3
    assert started == [2, 2]


async def test_a_slow_environment_does_not_hold_the_others_back(tmp_path):
    """The first episode's first step takes a second; the others are over by then."""
    ended = []
    config = config_of(tmp_path, "thread")

    def reply(_prompt, request_id):
        episode_id, _, call = request_id.rpartition("/")
        is_first = episode_id.endswith("-00") and int(call) == 0
        ended.append((episode_id, int(call)))
        return f"<answer>{'hang 1' if is_first else 'print' if int(call) < 2 else 'end'}</answer>"

    endpoint = answers()
    endpoint.reply = reply
    group = await play(config, endpoint, num=4)
    assert [t.status for t in group] == [EpisodeStatus.OK] * 4
    last_of_slow = [place for place, (name, _) in enumerate(ended) if name.endswith("-00")]
    last_of_others = max(p for p, (name, _) in enumerate(ended) if not name.endswith("-00"))
    assert last_of_slow[1] > last_of_others
