"""Episodes in many processes are those of one; a process that is lost takes no finished one along.

The model is one that draws tokens from each request's seed, so that equal seeds give equal tokens.
"""

import asyncio
import sys
from datetime import datetime
from functools import partial

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, RunFailed
from ajet.core.inference.engines.random import RandomEngine
from ajet.core.task.task import Task
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray

UNRULY = '''
import asyncio
import os
import signal
import time
from pathlib import Path

from ajet import Workflow, WorkflowOutput


def first_time(name):
    """Whether nobody was here before, in any process."""
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Told(Workflow):
    async def execute(self, workflow_task, model_tuner):
        task = workflow_task.task
        for _ in range(2):
            reply = await model_tuner.chat([{"role": "user", "content": task.main_query}])
        with open("ran.log", "a") as file:
            file.write(f"{workflow_task.episode_id} {os.getpid()}\\n")
        text = str(reply["content"])
        return WorkflowOutput(
            reward=float(len(text) % 7), is_success=True, metadata={"lock": open(os.devnull)}
        )


class Killed(Told):
    async def execute(self, workflow_task, model_tuner):
        if (workflow_task.task_batch_index, workflow_task.rollout_index) == (1, 1):
            if first_time("killed"):
                await asyncio.sleep(2)  # others of its worker are finished by then
                os.kill(os.getpid(), signal.SIGKILL)
        return await super().execute(workflow_task, model_tuner)


class AlwaysKilled(Told):
    async def execute(self, workflow_task, model_tuner):
        if (workflow_task.task_batch_index, workflow_task.rollout_index) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().execute(workflow_task, model_tuner)


class Blocks(Told):
    async def execute(self, workflow_task, model_tuner):
        at = (workflow_task.task_batch_index, workflow_task.rollout_index)
        if at == (1, 1) and first_time("blocked"):
            time.sleep(3600)
        return await super().execute(workflow_task, model_tuner)


class Waits(Told):
    """Those of step 3 without end, the others until somebody says `go`."""

    async def execute(self, workflow_task, model_tuner):
        who = workflow_task.episode_id
        Path(f"began-{who}").touch()
        try:
            while who.startswith("000003") or not Path("go").exists():
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            Path(f"cancelled-{who}").touch()
            raise
        return await super().execute(workflow_task, model_tuner)


class Fails(Told):
    async def execute(self, workflow_task, model_tuner):
        raise ValueError("no such move")


class Untrained(Told):
    trainable_targets = ["somebody else"]
'''
TASKS = [Task(f"t{n}", f"What is {n} + {n}?") for n in range(6)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = ToyRun(tmp_path)
    (tmp_path / "unruly.py").write_text(UNRULY)
    return run


def config_of(workflow, *overrides):
    named = f"ajet.rollout.user_workflow=unruly.py->{workflow}"
    return load_config("toy.yaml", [named, *overrides], backbone="debug")


@pytest.fixture(scope="module")
def words():
    from transformers import AutoTokenizer

    from ajet.cluster.rollout_worker import Words
    from ajet.core.model.load import EMBEDDED_DIR

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_DIR / "math")
    return Words(tokenizer, (), datetime(2026, 1, 1))


async def run(config, words, *, num_workers=2, blocked_after_s=None, told=None, **options):
    from ajet.cluster.rollout_workers import RolloutWorkers

    make_endpoint = partial(RandomEngine, len(words.tokenizer))
    workers = RolloutWorkers(config, [{}] * num_workers, blocked_after_s=blocked_after_s)
    options = {"step": 3, "mode": "train", "num_repeat": 3} | options
    try:
        await workers.check()
        await workers.start(make_endpoint, words)
        return await workers.rollout(TASKS, on_episode=told, **options)
    finally:
        workers.close()


async def in_one_process(config, words, **options):
    from ajet.core import assembly
    from ajet.core.inference.chat_template import ChatTemplate

    engine = RandomEngine(len(words.tokenizer))
    template = ChatTemplate(words.tokenizer)
    runner = assembly.make_runner(config, engine, template, judge=None, mode="train")
    options = {"step": 3, "mode": "train", "num_repeat": 3} | options
    return await runner.rollout(TASKS, **options)


def facts(groups):
    """What an episode is, without its clocks."""
    return [
        (
            group.group_id,
            group.task,
            [
                (t.episode_id, t.status, t.reward, t.error, [turn.completion for turn in t.turns])
                for t in group.trajectories
            ],
        )
        for group in groups
    ]


def processes(project):
    """By episode: the processes in which it came to its end."""
    found = {}
    for line in (project.folder / "ran.log").read_text().splitlines():
        episode_id, pid = line.split()
        found.setdefault(episode_id, []).append(pid)
    return found


async def test_groups_are_those_of_one_process_in_the_order_of_the_tasks(
    ray_session, project, words
):
    config = config_of("Told")
    told = []
    groups = await run(config, words, told=told.append)
    ran = processes(project)
    assert facts(groups) == facts(await in_one_process(config, words))
    assert len({pid for pids in ran.values() for pid in pids}) == 2
    assert all(len({ran[t.episode_id][0] for t in g.trajectories}) == 1 for g in groups)
    assert sorted(t.episode_id for t in told) == sorted(ran)
    assert groups[0].trajectories[0].output.metadata["lock"].startswith("<_io.TextIOWrapper")


async def test_a_killed_worker_loses_its_unfinished_episodes_only(
    ray_session, project, words, warnings
):
    config = config_of("Killed")
    told = []
    groups = await run(config, words, told=told.append)
    ran = processes(project)
    assert facts(groups) == facts(await in_one_process(config_of("Told"), words))
    assert len(told) == len({t.episode_id for t in told}) == 18
    assert {len(pids) for pids in ran.values()} == {1}  # the one that was killed had not ended
    (line,) = [line for line in warnings if "rollout worker" in line]
    assert line.startswith(
        "rollout worker 1 is lost because its process ended: another takes its place, "
        "unfinished episodes begin again ("
    )


async def test_a_group_that_no_worker_survives_fails_alone(ray_session, project, words):
    groups = await run(config_of("AlwaysKilled"), words)
    statuses = [[str(t.status) for t in g.trajectories] for g in groups]
    assert [row for n, row in enumerate(statuses) if n != 1] == [["ok"] * 3] * 5
    assert "env_error" in statuses[1]
    failed = next(t for t in groups[1].trajectories if t.status == "env_error")
    assert failed.error == (
        "its rollout worker was lost 3 times, at last because its process ended"
    )


async def test_a_blocked_worker_is_replaced_and_the_line_is_named(
    ray_session, project, words, warnings
):
    groups = await run(config_of("Blocks"), words, blocked_after_s=3.0)
    assert all(t.status == "ok" for g in groups for t in g.trajectories)
    (line,) = [line for line in warnings if "rollout worker" in line]
    number = 1 + UNRULY.splitlines().index("            time.sleep(3600)")
    assert "its event loop stood still for" in line and f"at unruly.py:{number}" in line


async def test_a_cancelled_rollout_ends_its_own_episodes_and_no_others(ray_session, project, words):
    from ajet.cluster.rollout_workers import RolloutWorkers

    async def named(prefix, count):
        while len(found := list(project.folder.glob(f"{prefix}-*"))) < count:
            await asyncio.sleep(0.05)
        return {path.name.removeprefix(f"{prefix}-")[:6] for path in found}

    config = config_of("Waits", "ajet.rollout.max_env_worker=64")
    workers = RolloutWorkers(config, [{}] * 2)
    options = {"mode": "train", "num_repeat": 3}
    try:
        await workers.start(partial(RandomEngine, len(words.tokenizer)), words)
        given_up = asyncio.create_task(workers.rollout(TASKS[:2], step=3, **options))
        other = asyncio.create_task(workers.rollout(TASKS[2:4], step=4, **options))
        async with asyncio.timeout(120):
            assert await named("began", 12) == {"000003", "000004"}
            given_up.cancel()
            assert await named("cancelled", 6) == {"000003"}
            (project.folder / "go").touch()
            groups = await other
    finally:
        workers.close()
    assert given_up.cancelled()
    assert [[str(t.status) for t in g.trajectories] for g in groups] == [["ok"] * 3] * 2


async def test_the_failure_rate_is_that_of_all_workers_together(ray_session, project, words):
    with pytest.raises(RunFailed) as error:
        await run(config_of("Fails", "ajet.rollout.max_failure_rate=0.4"), words)
    assert str(error.value).startswith("8 of 18 episodes failed (8 agent_error)")


async def test_a_workflow_that_trains_nobody_is_refused_over_all_workers(
    ray_session, project, words
):
    with pytest.raises(ConfigError, match="trainable_targets match none of its agents"):
        await run(config_of("Untrained"), words)


async def test_a_workflow_that_cannot_be_imported_there_is_one_line(ray_session, project, words):
    config = config_of("Told")
    (project.folder / "unruly.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ConfigError) as error:
        await run(config, words)
    assert "\n" not in str(error.value)
    assert "unruly.py" in str(error.value) and "nothing_of_that_name" in str(error.value)
