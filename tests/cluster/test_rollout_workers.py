"""Episodes in many processes are those of one; a process that is lost takes no finished one along.

The model is one that draws tokens from each request's seed, so that equal seeds give equal tokens.
"""

import asyncio
import re
import sys
from datetime import datetime
from functools import partial

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, RunFailed
from ajet.core.judge import make_judge
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.engines.scripted import RandomEngine
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray

UNRULY = '''
import asyncio
import os
import signal
import time
from pathlib import Path

from ajet import GroupJudge, Workflow, WorkflowOutput


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
                while not os.path.exists("ran.log") or len(open("ran.log").readlines()) < 17:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(2)  # the driver knows by then that all others have ended
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


class OneWaitsForAll(Told):
    """The first member of the first group ends when all others have."""

    async def execute(self, workflow_task, model_tuner):
        if (workflow_task.task_batch_index, workflow_task.rollout_index) == (0, 0):
            while not Path("ran.log").exists() or Path("ran.log").read_text().count("\\n") < 23:
                await asyncio.sleep(0.05)
        return await super().execute(workflow_task, model_tuner)


class Unrewarded(Told):
    async def execute(self, workflow_task, model_tuner):
        await super().execute(workflow_task, model_tuner)
        return WorkflowOutput(metadata={"number": complex(workflow_task.rollout_index)})


class Ranks(GroupJudge):
    def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        return [(output.metadata["number"].real, True) for output in workflow_outputs]


class LateMembersWait(Told):
    """The last two members call the model once, and then wait without end."""

    async def execute(self, workflow_task, model_tuner):
        if workflow_task.rollout_index < 2:
            while len(list(Path().glob(f"waits-{workflow_task.group_id}-*"))) < 2:
                await asyncio.sleep(0.05)
            return await super().execute(workflow_task, model_tuner)
        await model_tuner.chat([{"role": "user", "content": "hi"}])
        Path(f"waits-{workflow_task.group_id}-{workflow_task.rollout_index}").touch()
        await asyncio.sleep(3600)


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
def spec():
    from transformers import AutoTokenizer

    from ajet.cluster.rollout_worker import TokenizerSpec
    from ajet.core.model.tokenizer import EMBEDDED_DIR

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_DIR / "math")
    return TokenizerSpec(tokenizer, (), datetime(2026, 1, 1))


class Unsendable:
    """Can be copied, and not be sent to another process: pickling it raises, or reading it."""

    def __init__(self, when):
        self.when = when

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        if self.when == "sent":
            raise RuntimeError("no pickle")
        return int, ("nothing",)


async def run(
    config, spec, *, num_workers=2, blocked_after_s=None, told=None, tasks=TASKS, **options
):
    from ajet.cluster.rollout_workers import RolloutWorkers

    make_endpoint = partial(RandomEngine, len(spec.tokenizer))
    workers = RolloutWorkers(config, [{}] * num_workers, blocked_after_s=blocked_after_s)
    options = {"step": 3, "mode": "train", "num_repeat": 3} | options
    try:
        await workers.check()
        runner = await workers.start(make_endpoint, spec)
        return await runner.rollout(RolloutRequest(tasks, **options), on_episode=told)
    finally:
        workers.close()


async def in_one_process(config, spec, **options):
    from ajet import assembly
    from ajet.core.inference.chat_template import ChatTemplate

    engine = RandomEngine(len(spec.tokenizer))
    template = ChatTemplate(spec.tokenizer)
    judge = make_judge(config)
    runner = assembly.make_runner(config, engine, template, judge=judge)
    options = {"step": 3, "mode": "train", "num_repeat": 3} | options
    return await runner.rollout(RolloutRequest(TASKS, **options))


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
    ray_session, project, spec
):
    config = config_of("Told")
    told = []
    groups = await run(config, spec, told=told.append)
    ran = processes(project)
    assert facts(groups) == facts(await in_one_process(config, spec))
    assert len({pid for pids in ran.values() for pid in pids}) == 2
    assert sorted(t.episode_id for t in told) == sorted(ran)
    assert groups[0].trajectories[0].output.metadata["lock"].startswith("<_io.TextIOWrapper")


async def test_a_killed_worker_loses_its_unfinished_episodes_only(
    ray_session, project, spec, warnings
):
    config = config_of("Killed")
    told = []
    groups = await run(config, spec, told=told.append)
    ran = processes(project)
    assert facts(groups) == facts(await in_one_process(config_of("Told"), spec))
    assert len(told) == len({t.episode_id for t in told}) == 18
    assert {len(pids) for pids in ran.values()} == {1}  # the one that was killed had not ended
    (line,) = [line for line in warnings if "rollout worker" in line]
    assert re.match(
        r"rollout worker [01] is lost because its process ended: another takes its place, "
        r"unfinished episodes begin again \(\d+\)$",
        line,
    )


async def test_an_episode_that_no_worker_survives_fails_alone(ray_session, project, spec):
    groups = await run(config_of("AlwaysKilled"), spec)
    statuses = [[str(t.status) for t in g.trajectories] for g in groups]
    assert [row for n, row in enumerate(statuses) if n != 1] == [["ok"] * 3] * 5
    assert statuses[1] == ["ok", "env_error", "ok"]
    failed = groups[1].trajectories[1]
    assert failed.error == ("its rollout worker was lost 3 times, lastly because its process ended")


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("sent", "RuntimeError: no pickle (test_rollout_workers.py:"),
        ("read", "ValueError: invalid literal for int() with base 10: 'nothing'"),
    ],
)
async def test_a_task_that_cannot_be_sent_fails_alone(ray_session, project, spec, when, reason):
    tasks = [TASKS[0], Task("t1", "What is 1 + 1?", metadata={"mine": Unsendable(when)})]
    groups = await run(config_of("Told", "ajet.rollout.max_failure_rate=1.0"), spec, tasks=tasks)
    assert [[str(t.status) for t in g.trajectories] for g in groups] == [
        ["ok"] * 3,
        ["env_error"] * 3,
    ]
    for member in groups[1].trajectories:
        assert (member.error or "").startswith(
            f"its task cannot be sent to a rollout worker: {reason}"
        )


async def test_a_task_of_a_reader_may_hold_objects_of_its_files_classes(ray_session, project, spec):
    (project.folder / "rd.py").write_text(
        "from ajet import BaseTaskReader, Task\n"
        "class Hint:\n    pass\n"
        "class R(BaseTaskReader):\n"
        "    def get_training_tasks(self): return [Task('t0', 'q', metadata={'hint': Hint()})]\n"
        "    def get_validation_tasks(self): return []\n"
    )
    config = config_of("Told", "ajet.task_reader.type=rd.py->R")
    groups = await run(config, spec, tasks=make_reader(config).get_training_tasks())
    assert [str(t.status) for t in groups[0].trajectories] == ["ok"] * 3


async def test_a_blocked_worker_is_replaced_and_the_line_is_named(
    ray_session, project, spec, warnings
):
    groups = await run(config_of("Blocks"), spec, blocked_after_s=8.0)
    assert all(t.status == "ok" for g in groups for t in g.trajectories)
    (line,) = [line for line in warnings if "rollout worker" in line]
    number = 1 + UNRULY.splitlines().index("            time.sleep(3600)")
    assert "its event loop was blocked for" in line and f"at unruly.py:{number}" in line


async def test_a_cancelled_rollout_ends_its_own_episodes_and_no_others(ray_session, project, spec):
    from ajet.cluster.rollout_workers import RolloutWorkers

    async def named(prefix, count):
        while len(found := list(project.folder.glob(f"{prefix}-*"))) < count:
            await asyncio.sleep(0.05)
        return {path.name.removeprefix(f"{prefix}-")[:6] for path in found}

    config = config_of("Waits", "ajet.rollout.max_env_worker=64")
    workers = RolloutWorkers(config, [{}] * 2)
    options = {"mode": "train", "num_repeat": 3}
    try:
        runner = await workers.start(partial(RandomEngine, len(spec.tokenizer)), spec)
        given_up = asyncio.create_task(runner.rollout(RolloutRequest(TASKS[:2], step=3, **options)))
        other = asyncio.create_task(runner.rollout(RolloutRequest(TASKS[2:4], step=4, **options)))
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


async def test_the_failure_rate_is_that_of_all_workers_together(ray_session, project, spec):
    with pytest.raises(RunFailed) as error:
        await run(config_of("Fails", "ajet.rollout.max_failure_rate=0.4"), spec)
    assert str(error.value).startswith("8 of 18 episodes failed (8 agent_error)")


async def test_a_slow_episode_takes_one_slot_and_no_worker(ray_session, project, spec):
    """Two slots each for two workers: while one episode waits for all others, the three slots that
    are left run them, also those of its own group and worker."""
    config = config_of("OneWaitsForAll", "ajet.rollout.max_env_worker=4")
    groups = await run(config, spec, num_repeat=4)
    ran = processes(project)
    assert all(t.status == "ok" for g in groups for t in g.trajectories)
    slow = groups[0].trajectories[0].episode_id
    assert list(ran)[-1] == slow
    beside = [episode for episode, pids in ran.items() if pids == ran[slow]]
    assert len(beside) > 1  # its worker went on


async def test_a_group_judge_sees_the_members_of_all_workers_with_their_own_objects(
    ray_session, project, spec
):
    named = "ajet.task_judge.judge_protocol=unruly.py->Ranks"
    config = config_of("Unrewarded", named)
    groups = await run(config, spec, num_repeat=4)
    assert len({pid for pids in processes(project).values() for pid in pids}) == 2
    assert facts(groups) == facts(await in_one_process(config, spec, num_repeat=4))
    for group in groups:
        assert sorted(t.reward for t in group.trajectories) == [0.0, 1.0, 2.0, 3.0]


async def test_members_that_a_group_does_not_need_are_stopped_in_their_workers(
    ray_session, project, spec
):
    config = config_of("LateMembersWait")
    groups = await run(config, spec, num_repeat=2, redundancy=2)
    for group in groups:
        assert [t.is_valid for t in group.trajectories] == [True, True, False, False]
        assert {t.left_out for t in group.trajectories[2:]} == {"redundancy"}
        assert [len(t.turns) for t in group.trajectories[2:]] == [1, 1]


async def test_a_workflow_that_trains_nobody_is_refused_over_all_workers(
    ray_session, project, spec
):
    with pytest.raises(ConfigError, match="trainable_targets match none of its agents"):
        await run(config_of("Untrained"), spec)


async def test_a_workflow_that_cannot_be_imported_there_is_one_line(ray_session, project, spec):
    config = config_of("Told")
    (project.folder / "unruly.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ConfigError) as error:
        await run(config, spec)
    assert "\n" not in str(error.value)
    assert "unruly.py" in str(error.value) and "nothing_of_that_name" in str(error.value)
