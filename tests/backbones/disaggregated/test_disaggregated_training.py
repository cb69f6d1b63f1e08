"""Explorer and trainer in one process: in turns it is the run of backbone debug, else not older
than the bound."""

import io
import json
import sqlite3
from collections import Counter

import pytest
from rich.console import Console

from ajet import Task, WorkflowTask, assembly
from ajet.backbones.debug.training import fit_debug
from ajet.backbones.disaggregated.async_run import left_out_reason
from ajet.backbones.disaggregated.explorer import VersionState
from ajet.backbones.disaggregated.trainer import SURPLUS
from ajet.core.buffer.buffer import MEMORY, FinishedGroup, GroupBuffer, plan_index
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.config import AjetConfig, load_config
from ajet.core.errors import CheckpointError, RunFailed
from ajet.core.inference.endpoint import Completion
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.trajectory.turn import Turn
from tests.backbones.disaggregated.one_process import OneProcessTraining, fit_in_one_process
from tests.core.buffer.group_makers import group
from tests.e2e.toy_run import episodes, metrics

STEPS = 3
SMALL = ("ajet.data.train_batch_size=2", "ajet.rollout.num_repeat=2")
EPISODES = 4  # of a step
IN_TURNS = "trinity.max_staleness=0"
VALIDATED = (
    "ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl",
    "ajet.data.val_max_tasks=2",
    "ajet.trainer_common.val_pass_n=1",
    "ajet.trainer_common.val_before_train=true",
    "ajet.trainer_common.test_freq=2",
)


def config(*overrides, backbone="trinity", steps=STEPS):
    asked = f"ajet.trainer_common.total_training_steps={steps}"
    return load_config("toy.yaml", [*SMALL, asked, *overrides], backbone=backbone)


def train(*overrides, backbone="trinity", steps=STEPS):
    fit = {"trinity": fit_in_one_process, "debug": fit_debug}[backbone]
    summary = fit(config(*overrides, backbone=backbone, steps=steps), console())
    assert summary.steps == steps
    return summary


def console():
    return Console(file=io.StringIO())


def one_attempt(*overrides, prepare=lambda training: None, steps=STEPS):
    settings = config(*overrides, steps=steps)
    with RunFolder.open(settings.run_folder) as folder:
        tasks = assembly.read_tasks(settings)
        training = OneProcessTraining(settings, tasks, folder, Interrupt(), console())
        prepare(training)
        return training.fit()


READER = """
from pathlib import Path

from ajet import BaseTaskReader, Task


class Noted(BaseTaskReader):
    def get_training_tasks(self):
        return self._read("training")

    def get_validation_tasks(self):
        return self._read("validation")

    def _read(self, split):
        with Path(__file__).with_name("read").open("a") as file:
            file.write(f"{split}\\n")
        return [Task(f"{split}{n}", f"What is {n} and {n}?") for n in range(2)]
"""


@pytest.mark.parametrize("backbone", ["debug", "trinity"])
def test_the_tasks_of_a_run_are_read_once(project, backbone):
    toy = project(backbone)
    (toy.folder / "reader.py").write_text(READER)
    train("ajet.task_reader.type=reader.py->Noted", backbone=backbone, steps=1)
    assert (toy.folder / "read").read_text().split() == ["training", "validation"]


class Killed(Exception):
    """Raised in the middle of a run that goes no further."""


def die_in_step_three(training):
    learn = training.client.train

    async def learn_or_die(step, groups):
        if step == 3:
            raise Killed
        return await learn(step, groups)

    training.client.train = learn_or_die


def policy_versions(run):
    """Step, and the oldest version among the tokens of each episode that was not left out."""
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        return connection.execute(
            "SELECT step, min(policy_version) FROM episodes JOIN turns USING (episode_id) "
            "WHERE mode = 'train' AND status IN ('ok', 'truncated') GROUP BY episode_id"
        ).fetchall()


def same_numbers(run):
    """What both backbones log; not the times, nor what only one of them has."""
    own = ("buffer/", "trainer/", "explorer/", "staleness/", "sync/")
    return [{k: v for k, v in line.items() if not k.startswith(own)} for line in metrics(run)]


@pytest.mark.parametrize("agent", ["Plain", "Uneven"])
def test_in_turns_it_is_the_run_of_one_process(project, agent):
    selected = (
        f"ajet.rollout.user_workflow=workflow.py->{agent}",
        *VALIDATED,
        *(
            (
                "ajet.rollout.group_size_redundancy=2",
                "ajet.trainer_common.algorithm.dynamic_sampling.enable=true",
            )
            if agent == "Uneven"
            else ()
        ),
    )
    found = {}
    for backbone in ("debug", "trinity"):
        run = project(backbone)
        own = [IN_TURNS] if backbone == "trinity" else []
        summary = train(*selected, *own, backbone=backbone, steps=2)
        found[backbone] = (run.final_tensors(2), episodes(run), same_numbers(run))
        found[backbone] += (summary.success_before, summary.success_after)
    for ours, theirs in zip(found["trinity"], found["debug"], strict=True):
        assert ours == theirs


def test_a_policy_that_teaches_itself_by_a_hint_needs_no_reward_in_turns_either(project):
    asked = (
        "ajet.kind=distillation",
        "ajet.distillation.own_weights=true",
        "ajet.distillation.hint='say {answer}'",
        "ajet.rollout.user_workflow=workflow.py->Unrewarded",
    )
    found = {}
    for backbone in ("debug", "trinity"):
        run = project(backbone)
        own = [IN_TURNS] if backbone == "trinity" else []
        train(*asked, *own, backbone=backbone, steps=2)
        found[backbone] = (run.final_tensors(2), episodes(run), same_numbers(run))
    assert found["trinity"] == found["debug"]
    for line in found["debug"][-1]:
        assert not [name for name in line if name.startswith("reward/")]
        assert line["episodes/ok"] == EPISODES and line["groups/with_advantage"] == 2
        assert line["update/kl_teacher"] != 0 and line["update/grad_norm"] > 0


def test_ahead_of_the_trainer_no_token_is_older_than_the_bound(project):
    run = project("ahead")
    summary = train("trinity.max_staleness=2", steps=4)
    ages = Counter(step - 1 - version for step, version in policy_versions(run))
    assert sum(ages.values()) == 4 * EPISODES
    assert max(ages) <= 2
    lines = metrics(run)
    assert lines[0]["staleness/max"] == 0
    told = summary.extra["staleness"]
    assert set(map(int, told)) <= {0, 1, 2}
    trained = sum(line["tokens/trained"] for line in lines)
    assert sum(told.values()) == trained
    assert json.loads((run.path / "summary.json").read_text())["staleness"] == told
    # Where tokens may be stale the trainer weighs them by its own probabilities.
    assert all("update/correction_ess" in line for line in lines)


@pytest.mark.parametrize("how", ["continue", "recompute", "finish", "keep"])
def test_episodes_that_run_while_weights_change(project, how):
    run, keeps = project(how), how == "keep"
    how = "continue" if keeps else how
    (run.folder / "awaited").write_text("published" if how == "continue" else "changing")

    def leave_files(training):
        explorer = training.async_run.explorer
        pause, publish = explorer.pause, training.client.publish

        async def signalling_pause():
            (run.folder / "changing").touch()
            await pause()

        async def signalling_publish(version):
            found = await publish(version)
            if version:
                (run.folder / "published").touch()
            return found

        explorer.pause, training.client.publish = signalling_pause, signalling_publish

    one_attempt(
        f"trinity.partial_rollout={how}",
        f"trinity.keep_kv_cache={keeps}",
        "ajet.rollout.name=in_process",
        "trinity.max_staleness=1",
        "ajet.rollout.user_workflow=workflow.py->Awaits",
        prepare=leave_files,
    )
    assert all(step - 1 - version <= 1 for step, version in policy_versions(run))
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        found = connection.execute(
            "SELECT min(policy_version), max(policy_version) FROM turns "
            "WHERE episode_id LIKE '000002-%' GROUP BY episode_id"
        ).fetchall()
    expected = {"continue": (0, 1), "recompute": (1, 1), "finish": (0, 0)}[how]
    assert found == [expected] * EPISODES
    last = metrics(run)[-1]
    assert last["explorer/restarted"] == (2 if how == "recompute" else 0)
    assert (last.get("staleness/old_keys", 0) > 0) is keeps


def test_a_slow_group_that_is_not_waited_for_is_recorded_and_not_trained(project):
    run = project("dropped")
    train(
        "trinity.synchronizer.sync_style=fully_async",
        "trinity.max_staleness=1",
        "ajet.rollout.user_workflow=workflow.py->OneIsSlow",
        steps=4,
    )
    lines = metrics(run)
    assert sum(line["buffer/expired"] for line in lines) == 1
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        left_out = connection.execute(
            "SELECT DISTINCT group_id, error FROM episodes WHERE status = 'aborted'"
        ).fetchall()
    assert left_out == [
        (
            "000001-train-0001",
            "its oldest token got more than 1 updates old (trinity.max_staleness)",
        )
    ]
    assert sum(line.get("tokens/untrained_stale", 0) for line in lines) > 0


def test_a_run_that_was_killed_plays_no_finished_group_again(project):
    run = project("killed")
    overrides = ("trinity.max_staleness=1",)

    with pytest.raises(Killed):
        one_attempt(*overrides, prepare=die_in_step_three, steps=4)
    assert run.steps_saved() == [1, 2]
    with sqlite3.connect(run.path / "buffer.sqlite") as connection:
        finished = connection.execute(
            "SELECT place FROM ajet_groups WHERE state IN ('ready', 'taken')"
        ).fetchall()
    assert len(finished) >= 2  # those that step 3 had
    begun = Counter(line for line in run.told() if line.startswith("begin"))
    assert one_attempt(*overrides, steps=4).steps == 4
    again = Counter(line for line in run.told() if line.startswith("begin")) - begun
    # Two steps of two groups each were left; what was finished of them did not begin again.
    assert sum(again.values()) == 2 * (4 - len(finished))
    assert len(policy_versions(run)) == 4 * EPISODES


def test_a_group_that_ends_during_the_last_update_is_recorded_and_a_later_one_is_not_stored(
    project,
):
    """After crashes there may be more groups than the run still takes."""
    run, stored = project("surplus"), []

    def end_late(training):
        learn, publish = training.client.train, training.client.publish

        def end(number):
            late = FinishedGroup(plan_index(9, number), group(number, 1, step=9))
            stored.append(training.async_run.buffer.put([late], 1, last_step=STEPS))

        async def learn_while_one_ends(step, groups):
            if step == STEPS:
                end(0)
            return await learn(step, groups)

        async def publish_while_one_ends(version):
            if version == STEPS:
                end(1)
            return await publish(version)

        training.client.train = learn_while_one_ends
        training.client.publish = publish_while_one_ends

    one_attempt("trinity.max_staleness=1", prepare=end_late)
    assert stored == [True, False]
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        found = connection.execute(
            "SELECT episode_id, step, status, error, reward FROM episodes "
            "WHERE episode_id LIKE '000009-%' ORDER BY episode_id"
        ).fetchall()
    assert found == [
        ("000009-train-0000-00", STEPS, "aborted", SURPLUS, 1.0),
        ("000009-train-0000-01", STEPS, "aborted", SURPLUS, 0.0),
    ]
    assert len(policy_versions(run)) == STEPS * EPISODES
    state = json.loads((run.path / "checkpoints" / "step_000003" / "state.json").read_text())
    assert state["run"]["num_episodes"] == STEPS * EPISODES + 2


def test_after_a_kill_a_curriculum_knows_each_recorded_group_once(project):
    run = project("curriculum")
    overrides = (
        "trinity.max_staleness=2",
        "ajet.trainer_common.save_freq=10",  # all that ended has ended since the checkpoint
        "ajet.data.sampler=adaptive",
        "ajet.rollout.user_workflow=workflow.py->Uneven",
    )
    with pytest.raises(Killed):
        one_attempt(*overrides, prepare=die_in_step_three, steps=5)
    assert one_attempt(*overrides, steps=5).steps == 5
    state = json.loads((run.path / "checkpoints" / "step_000005" / "state.json").read_text())
    explorer = state["run"]["explorer"]
    known = {int(task): of[3] for task, of in explorer["cursor"]["results"]["tasks"].items()}
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        recorded = connection.execute("SELECT DISTINCT group_id, query FROM episodes").fetchall()
    of_task = Counter(int(query.split()[2]) for _, query in recorded)
    assert explorer["unseen"] == []
    assert known == of_task and sum(known.values()) >= 5 * 2


def test_a_group_whose_tokens_the_bound_does_not_allow_is_an_error_of_one_line(project):
    """Such a group was stored by an ajet that did not note which updates are lost."""
    project("foreign")

    def put_one(training):
        newer = FinishedGroup(plan_index(0, 0), group(0, 2, step=0, newest=3))
        training.async_run.buffer.put([newer], 2)

    with pytest.raises(CheckpointError) as raised:
        one_attempt("trinity.max_staleness=1", prepare=put_one)
    said = str(raised.value)
    assert said.startswith("group 000000-train-0000 in the buffer sqlite:///")
    assert "tokens that are -3 to -2 updates old for step 1, and trinity.max_staleness is 1" in said
    assert "ove the buffer away" in said and "\n" not in said


def test_where_clients_run_the_episodes_weights_are_saved_before_they_sample(project, monkeypatch):
    """A kill in between would lose episodes whose clients were told that they are stored."""
    monkeypatch.setattr(AjetConfig, "clients_run_episodes", True)
    events = []

    def tell(training):
        publish, prepare = training.client.publish, training.checkpoints.prepare

        async def telling_publish(version):
            events.append(("publish", version))
            return await publish(version)

        def telling_prepare(folder, step, run, *, copies):
            write = prepare(folder, step, run, copies=copies)

            def telling_write():
                write()
                events.append(("save", step))

            return telling_write

        training.client.publish, training.checkpoints.prepare = telling_publish, telling_prepare

    run = project("saved")
    one_attempt("trinity.max_staleness=1", prepare=tell)
    saved_then_published = [(what, step) for step in (1, 2, 3) for what in ("save", "publish")]
    assert events == [("publish", 0), *saved_then_published]
    assert [("sync/seconds" in line) for line in metrics(run)] == [False, True, True]


@pytest.mark.parametrize(("versions", "is_stale"), [((2, 3), False), ((1, 3), True), ((), False)])
def test_an_episode_is_stale_where_its_oldest_token_is_too_old_for_the_next_step(
    versions, is_stale
):
    buffer = GroupBuffer(MEMORY, StalenessBound(1, 2, 1, 2))
    turns = tuple(
        Turn(Completion((1,), (2,), (-0.5,), "stop", version), [], None, {}) for version in versions
    )
    plan = WorkflowTask(Task("t", "q"), "e", "000001-train-0000", 0, 1, "train", 0)
    said = left_out_reason(buffer, VersionState(3), Trajectory(plan, turns, EpisodeStatus.OK))
    reason = "its oldest token got more than 1 updates old (trinity.max_staleness)"
    assert said == (reason if is_stale else None)


def test_in_turns_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(project):
    whole = project("whole")
    train(IN_TURNS)
    expected = whole.final_tensors(3)
    cut = project("cut")
    train(IN_TURNS, steps=2)
    train(IN_TURNS)
    assert cut.final_tensors(3) == expected


def test_in_turns_a_run_killed_two_batches_after_its_checkpoint_ends_with_the_same_bits(project):
    rare = (IN_TURNS, "ajet.trainer_common.save_freq=10")
    whole = project("whole")
    train(*rare, steps=4)
    cut = project("cut")

    with pytest.raises(Killed):
        one_attempt(*rare, prepare=die_in_step_three, steps=4)
    assert cut.steps_saved() == []
    one_attempt(*rare, steps=4)
    assert cut.final_tensors(4) == whole.final_tensors(4)
    assert episodes(cut) == episodes(whole)


def test_a_run_that_starts_anew_finds_an_empty_buffer(project):
    run = project("anew")
    train("trinity.max_staleness=1", steps=1)
    train("trinity.max_staleness=1", "ajet.trainer_common.resume=disable", steps=1)
    assert len(policy_versions(run)) == EPISODES
    assert (run.path.with_name(f"{run.path.name}.1") / "buffer.sqlite").exists()


def test_a_run_whose_episodes_fail_stops_with_a_checkpoint(project):
    run = project("failing")
    with pytest.raises(RunFailed, match="agent_error"):
        train("trinity.max_staleness=1", "ajet.rollout.user_workflow=workflow.py->AllFail")
    # The explorer is ahead: the first step may not have begun, or is finished.
    assert run.steps_saved() in ([0], [1])
    assert len(metrics(run)) == run.steps_saved()[0]


def test_weights_travel_every_other_step_when_they_are_asked_to(project):
    run = project("interval")
    train(
        "trinity.synchronizer.sync_interval=2",
        "trinity.synchronizer.sync_offset=0",
        steps=4,
    )
    versions = {step: set() for step in range(1, 5)}
    for step, version in policy_versions(run):
        versions[step].add(version)
    assert versions == {1: {0}, 2: {0}, 3: {2}, 4: {2}}
