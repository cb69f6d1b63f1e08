"""What has ended is there in the next attempt, if it is still an episode of this run."""

import pytest

from ajet.core.buffer.journal import Journal, fingerprint
from ajet.core.errors import CheckpointError
from ajet.core.inference.endpoint import Completion
from ajet.core.rollout.admission import Admission
from ajet.core.rollout.answered import AnsweredCall
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.trajectory.turn import Turn

TASKS = [Task(f"t{n}", f"question {n}") for n in range(3)]


def completion(version):
    return Completion((1, 2, 3), (4, 5), (-0.5, -0.25), "stop", version)


def turn(version):
    return Turn(completion(version), [], None, {"role": "assistant", "content": "x"})


def episode(plan, version, status=EpisodeStatus.OK):
    return Trajectory(plan, (turn(version),), status, WorkflowOutput(reward=1.0), 1.0)


class Killed(Exception):
    """In the place of the end of the process."""


class Runner:
    """Runs each planned episode at once, with the weights of `version`; ends after `cut` episodes,
    as a run that is killed does."""

    def __init__(self, version, cut=None, status=EpisodeStatus.OK):
        self.version, self.cut, self.status = version, cut, status
        self.played, self.answered = [], {}

    async def run(self, plan, slot, judge_in_group=None):
        self.answered[plan.episode_id] = [call.request for call in slot.answered]
        if slot.on_call is not None:
            slot.on_call(AnsweredCall("first", completion(self.version)))
        if len(self.played) == self.cut:
            raise Killed
        self.played.append(plan.episode_id)
        slot.workflow_ended(self.status)
        return episode(plan, self.version, self.status)


async def play(journal, runner, step=4, told=None):
    limits = RolloutLimits(max_failure_rate=1.0)
    groups = GroupRunner(runner, Admission(64), limits=limits, run_seed=0, journal=journal)
    return await groups.rollout(
        RolloutRequest(TASKS, step=step, mode="train", num_repeat=2, numbers=range(3)),
        on_episode=told,
    )


async def cut_run(path, *, version=3, cut=4, status=EpisodeStatus.OK, step=4):
    """An attempt that is killed after `cut` of six episodes."""
    journal = Journal(path, "same")
    with pytest.raises(Killed):
        await play(journal, Runner(version, cut, status), step)
    return path  # not closed: a killed process does not close anything


async def going_on(path, *, step, fingerprint="same", plan_step=None):
    """What the next attempt plays, from the checkpoint of `step`."""
    journal, runner, told = Journal(path, fingerprint), Runner(step), []
    journal.reopen({"": step})
    groups = await play(journal, runner, plan_step or step + 1, told.append)
    assert [len(group.trajectories) for group in groups] == [2, 2, 2]
    assert len(told) == 6
    return runner.played, groups


async def test_a_run_that_goes_on_plays_what_had_not_ended(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite")
    played, groups = await going_on(path, step=3)
    assert played == ["000004-train-0002-00", "000004-train-0002-01"]
    first = groups[0].trajectories[0]
    assert first.turns == (turn(3),) and first.reward == 1.0


async def test_episodes_of_weights_that_were_lost_are_played_again(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite", version=4, step=5)
    played, _ = await going_on(path, step=3, plan_step=5)
    assert len(played) == 6


@pytest.mark.parametrize(
    ("newest_of", "left"),
    [({"one": 9}, 4), ({"one": 4, "two": 9}, 4), ({"one": 3, "two": 9}, 0), ({"two": 9}, 0)],
)
async def test_episodes_of_an_attempt_are_kept_up_to_what_the_run_goes_on_from(
    newest_of, left, tmp_path
):
    path = tmp_path / "finished.sqlite"
    journal = Journal(path, "same")
    journal.reopen({"one": 3}, "one")
    with pytest.raises(Killed):
        await play(journal, Runner(version=4, cut=4), step=5)
    assert Journal(path, "same").reopen(newest_of, "two") == left


async def test_a_group_that_began_anew_leaves_nothing_of_its_first_try(tmp_path):
    path = tmp_path / "finished.sqlite"
    journal = Journal(path, "same")
    with pytest.raises(Killed):
        await play(journal, Runner(version=3, cut=4))
    with pytest.raises(Killed):
        await play(journal, Runner(version=4, cut=1))
    assert Journal(path, "same").reopen({"": 9}) == 1


async def test_a_journal_that_fails_while_it_is_used_is_one_line(tmp_path):
    journal = Journal(tmp_path / "finished.sqlite", "same")
    journal._db.execute("DROP TABLE finished")
    with pytest.raises(CheckpointError, match=r"finished\.sqlite cannot be used: no such table"):
        await play(journal, Runner(3))


async def test_episodes_of_another_config_or_code_are_played_again(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite")
    played, _ = await going_on(path, step=3, fingerprint="other")
    assert len(played) == 6


@pytest.mark.parametrize("status", [EpisodeStatus.TIMEOUT, EpisodeStatus.ABORTED])
async def test_an_episode_that_failed_is_played_again(status, tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite", status=status)
    assert len(await calls_before(path, 3)) == (6 if status is EpisodeStatus.ABORTED else 2)
    path = await cut_run(tmp_path / "again.sqlite", status=status)
    played, _ = await going_on(path, step=3)
    assert len(played) == 6


async def test_a_group_that_begins_anew_in_one_attempt_is_played_anew(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite")
    journal, runner = Journal(path, "same"), Runner(3)
    journal.reopen({"": 3})
    await play(journal, runner)
    assert len(runner.played) == 2
    await play(journal, runner)
    assert len(runner.played) == 2 + 6


async def test_what_a_checkpoint_holds_is_not_kept(tmp_path):
    journal = Journal(tmp_path / "finished.sqlite", "same")
    await play(journal, Runner(3), step=4)
    await play(journal, Runner(3), step=5)
    journal.remove(journal.groups_except(lambda group_id: group_id.startswith("000005")))
    assert Journal(tmp_path / "finished.sqlite", "same").reopen({"": 9}) == 6


UNFINISHED = ["000004-train-0002-00", "000004-train-0002-01"]
"""The episodes in whose middle `cut_run` is killed."""


async def calls_before(path, step, fingerprint="same", **options):
    journal, runner = Journal(path, fingerprint, **options), Runner(step)
    journal.reopen({"": step})
    await play(journal, runner)
    return {name: calls for name, calls in runner.answered.items() if calls}


async def test_the_calls_of_an_unfinished_episode_are_there_and_of_no_other(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite")
    assert await calls_before(path, 3) == {name: ["first"] for name in UNFINISHED}
    assert await calls_before(path, 3) == {}  # that attempt has finished it


@pytest.mark.parametrize(
    ("step", "fingerprint", "version"), [(2, "same", 3), (3, "other", 3), (3, "same", 4)]
)
async def test_calls_of_lost_weights_or_of_another_run_are_made_again(
    step, fingerprint, version, tmp_path
):
    path = await cut_run(tmp_path / "finished.sqlite", version=version)
    assert await calls_before(path, step, fingerprint) == {}


async def test_a_reply_during_which_the_weights_changed_counts_by_its_newest_ones(tmp_path):
    path = tmp_path / "finished.sqlite"
    [plan] = RolloutRequest(TASKS[:1], step=4, mode="train", num_repeat=1).plans(run_seed=0)
    pieces = Completion((), (4, 5), (-0.5, -0.25), "stop", 3, versions=((1, 3), (1, 4)))
    for newest, left in ((3, 0), (4, 1)):
        journal = Journal(path, "same")
        journal.put_call(plan, AnsweredCall("first", pieces))
        again = Journal(path, "same")
        again.reopen({"": newest})
        found = again.answered(plan.group_id)
        assert len(found) == left
    assert found == {plan.episode_id: [AnsweredCall("first", pieces)]}


async def test_calls_are_not_kept_where_an_episode_must_not_continue(tmp_path):
    path, runner = tmp_path / "finished.sqlite", Runner(3, 4)
    with pytest.raises(Killed):
        await play(Journal(path, "same", keeps_calls=False), runner)
    assert await calls_before(path, 3) == {}


async def test_calls_are_not_used_where_an_episode_may_no_longer_continue(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite")
    assert await calls_before(path, 3, keeps_calls=False) == {}
    assert await calls_before(path, 3) == {}


async def test_a_call_that_cannot_be_stored_is_one_line_and_ends_nothing(tmp_path, warnings):
    journal = Journal(tmp_path / "finished.sqlite", "same")
    journal._db.execute("DROP TABLE answered")
    [plan] = RolloutRequest(TASKS[:1], step=4, mode="train", num_repeat=1).plans(run_seed=0)
    for _ in range(2):
        journal.put_call(plan, AnsweredCall("first", completion(3)))
    [line] = warnings
    assert "calls of unfinished episodes are no longer stored: " in line and "no such table" in line


async def test_a_group_that_begins_anew_has_no_calls_of_before(tmp_path):
    path = await cut_run(tmp_path / "finished.sqlite")
    journal = Journal(path, "same")
    journal.reopen({"": 3})
    assert [*journal.answered("000004-train-0002")] == UNFINISHED
    assert journal.answered("000004-train-0002") == {}
    again = Journal(path, "same")
    again.reopen({"": 3})
    assert again.answered("000004-train-0002") == {}


def test_a_fingerprint_is_of_the_sections_and_the_files(tmp_path):
    code = tmp_path / "workflow.py"
    code.write_text("a = 1")
    before = fingerprint({"rollout": {"n": 1}}, [code])
    assert before == fingerprint({"rollout": {"n": 1}}, [code, code])
    assert before != fingerprint({"rollout": {"n": 2}}, [code])
    code.write_text("a = 2")
    assert before != fingerprint({"rollout": {"n": 1}}, [code])


def test_a_journal_that_is_none_is_one_line(tmp_path):
    (tmp_path / "finished.sqlite").write_bytes(b"no database" * 100)
    said = r"finished\.sqlite cannot be used: .*; fix that, or move it away"
    with pytest.raises(CheckpointError, match=said):
        Journal(tmp_path / "finished.sqlite", "same")
