"""A replay of an unchanged workflow is the same in every id; a change is found where it is.

One run of one task has every kind of episode: with a tool, of two agents at once, of bare ids,
raising, retried, truncated by its calls and its tokens, timed out, one that edits its own task, one
that a judge of groups rewards, and one that tries again whatever is raised.
"""

import io
import sys

import pytest
from rich.console import Console

from ajet.backbones.debug import replaying
from ajet.backbones.debug.replaying import recorded_plan, replay_episode
from ajet.backbones.debug.training import fit_debug
from ajet.core.config import load_config
from ajet.read.recorded_run import RecordedRun
from tests.e2e.toy_run import ToyRun

ZOO = """
import asyncio

from ajet import GroupJudge, Workflow, WorkflowOutput


class Counts(GroupJudge):
    def __init__(self, config):
        pass

    def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        return [(float(len(workflow_tasks)), True) for _ in workflow_tasks]


def user(text):
    return {"role": "user", "content": text}


class Zoo(Workflow):
    trainable_targets = ["default", "solver"]

    async def execute(self, workflow_task, model_tuner):
        query = workflow_task.task.main_query
        kinds = [self.tool, self.agents, self.ids, self.fails, self.retried, self.long, self.hangs]
        kinds += [self.edits, self.fills, self.ranked, self.tries]
        return await kinds[workflow_task.rollout_index](workflow_task, model_tuner, query)

    async def tool(self, workflow_task, model, query):
        messages = [{"role": "system", "content": "You are careful."}, user(query)]
        reply = await model.chat(messages)
        result = f"The tool says {workflow_task.seed % 7}."
        again = await model.chat([*messages, reply, user(result)])
        return WorkflowOutput(reward=float(len(again["content"])), is_success=True)

    async def agents(self, workflow_task, model, query):
        told = []

        async def agent(name, words):
            reply = await model.chat([user(words)], agent_name=name, target_tag=name)
            told.append(reply["content"])
            return told[-1]

        await asyncio.gather(agent("solver", f"Solve: {query}"), agent("critic", f"Judge: {query}"))
        last = await model.chat([user(" and ".join(told))], target_tag="last")
        return WorkflowOutput(reward=float(len(last["content"])))

    async def ids(self, workflow_task, model, query):
        first = await model.generate([5, 6, 7], max_tokens=4)
        second = await model.generate([*first.prompt_ids, *first.token_ids, 8], max_tokens=4)
        return WorkflowOutput(reward=float(sum(second.token_ids)))

    async def fails(self, workflow_task, model, query):
        await model.chat([user(query)])
        raise ValueError("no such move")

    async def retried(self, workflow_task, model, query):
        await model.chat([user(f"{workflow_task.seed % 1000}")])
        if not workflow_task.episode_id.endswith("-r1"):
            raise ValueError("try again")
        return WorkflowOutput(reward=1.0)

    async def long(self, workflow_task, model, query):
        messages = [user(query)]
        while True:
            messages += [await model.chat(messages), user("more")]

    async def hangs(self, workflow_task, model, query):
        await model.chat([user(query)])
        await asyncio.sleep(3600)

    async def edits(self, workflow_task, model, query):
        messages = workflow_task.task.init_messages
        messages.append(user(query + workflow_task.task.metadata["answer"]))
        await model.chat(messages, max_tokens=6)
        return WorkflowOutput(reward=float(len(messages)))

    async def fills(self, workflow_task, model, query):
        reply = await model.chat([user(query)])
        await model.chat([user(query), reply, user("x" * 20000)])
        return WorkflowOutput(reward=0.0)

    async def ranked(self, workflow_task, model, query):
        reply = await model.chat([user("Rank me.")])
        return WorkflowOutput(metadata={"final_answer": reply["content"]})

    async def tries(self, workflow_task, model, query):
        for number in range(2):
            while True:
                try:
                    await model.chat([user(f"{number}: {query}")])
                    break
                except Exception:
                    continue
        return WorkflowOutput(reward=0.0)
"""
TOOL, AGENTS, IDS, FAILS, RETRIED, LONG, HANGS, EDITS, FILLS, RANKED, TRIES = range(11)
STATUSES = ["ok", "ok", "ok", "agent_error", "ok", "truncated", "timeout", "ok"]
STATUSES += ["truncated", "ok", "ok"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with its run."""
    folder = tmp_path_factory.mktemp("zoo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        ToyRun(folder)
        (folder / "zoo.py").write_text(ZOO)
        overrides = [
            "ajet.rollout.user_workflow=zoo.py->Zoo",
            "ajet.rollout.num_repeat=11",
            "ajet.task_judge.judge_protocol=zoo.py->Counts",
            "ajet.data.train_batch_size=1",
            "ajet.rollout.failure_policy=retry",
            "ajet.rollout.max_retries=1",
            "ajet.rollout.max_failure_rate=0.9",
            "ajet.rollout.episode_timeout_s=1",
            "ajet.rollout.multi_turn.max_steps=3",
            "ajet.trainer_common.total_training_steps=1",
        ]
        config = load_config("toy.yaml", overrides, backbone="debug")
        fit_debug(config, Console(file=io.StringIO()))
        yield folder


def replayed(project, member, *, change=("", ""), name=None, **options):
    """The report of one episode, by default under the unchanged workflow."""
    edited = None
    if change != ("", ""):
        edited = project / f"edited{abs(hash(change))}"
        edited.mkdir(exist_ok=True)
        assert ZOO.count(change[0]) == 1
        (edited / "zoo.py").write_text(ZOO.replace(*change))
    run = RecordedRun(project / "launcher_record/toy", edited)
    with run.reader() as reader:
        record = reader.episode(name or f"000001-train-0000-{member:02d}")
    return replay_episode(run, record, run.config, **options)


def said(report):
    return str(report.summary())


def shown(report) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.shown())
    return console.export_text()


@pytest.mark.parametrize("member", range(11))
def test_every_kind_of_episode_replays_the_same_in_every_id(project, member):
    name = f"000001-train-0000-{member:02d}" + ("-r1" if member in (RETRIED, FAILS, HANGS) else "")
    report = replayed(project, member, name=name)
    assert report.is_same, said(report)
    assert report.record.outcome == str(report.trajectory.outcome) == STATUSES[member]
    for then, now in zip(report.record.turns, report.trajectory.turns, strict=True):
        assert then.completion == now.completion
        assert (then.agent_name, then.trainable) == (now.agent_name, now.trainable)
    assert said(report).startswith("the same: ")


def test_the_failed_attempt_before_a_retry_replays_too_and_tells_what_it_raised(project):
    errors = []
    report = replayed(project, RETRIED, on_error=errors.append)
    assert report.is_same and report.record.outcome == "agent_error"
    assert [str(error) for error in errors] == ["try again"]


def test_the_task_is_that_of_the_reader_also_where_the_workflow_edits_its_own(project):
    report = replayed(project, EDITS)
    plan = recorded_plan(report.record, RecordedRun(project / "launcher_record/toy").config)
    assert plan.task.init_messages == [] and plan.task.metadata["answer"] == "-"
    assert plan.group_id == "000001-train-0000" and plan.task_batch_index == 0
    assert report.trajectory.reward == 1.0


def test_one_word_of_a_system_prompt_is_found_at_call_0_where_it_stands(project):
    report = replayed(project, TOOL, change=("You are careful.", "You are quick."))
    first = report.differences[0]
    ids = report.record.turns[0].prompt_ids.tolist()
    at = report.engine.calls[0].departs_at
    assert report.template.text_of(ids[:at]).rstrip().endswith("You are")
    assert (first.call, first.description.rpartition(" in ")[2]) == (0, "message 0 (system)")
    assert "careful." in first.recorded and "quick." in first.replayed
    assert said(report).startswith(f"departs: call 0: the prompt departs at position {at}, in ")
    assert said(report).endswith("; 1 other call")


def test_a_tool_that_answers_otherwise_is_found_at_the_call_that_reads_it(project):
    report = replayed(project, TOOL, change=("The tool says", "The tool thinks"))
    [difference] = report.differences
    assert difference.call == 1 and "in message 3 (user)" in difference.description
    assert report.engine.calls[0].departs_at is None
    assert report.trajectory.reward == report.record.row.reward  # the recorded reply was given
    lines = [line.strip("│ ") for line in shown(report).splitlines()]
    at = next(n for n, line in enumerate(lines) if line.startswith("departs"))
    assert lines[at - 1].startswith("user") and lines[at + 3].startswith("assistant")


def test_the_parallel_agent_that_changed_is_the_one_that_departs(project):
    report = replayed(project, AGENTS, change=("Judge:", "Check:"))
    by_agent = {t.turn_index: t.agent_name for t in report.record.turns}
    assert [by_agent[d.call] for d in report.differences] == ["critic"]


def test_a_replay_that_stops_at_its_departure_gives_no_reply_from_there_on(project):
    change = ("The tool says", "The tool thinks")
    report = replayed(project, TOOL, change=change, stop_at_departure=True)
    assert len(report.trajectory.turns) == 1 and report.engine.stopped
    assert "departs: call 1: the prompt departs" in said(report)
    assert "instead of" not in said(report)  # it has no end of its own
    assert "⟦thinks" in shown(report).replace(" ", "")


def test_a_call_more_and_a_call_fewer_are_departures(project):
    more = "again = await model.chat(messages); again = await"
    report = replayed(project, TOOL, change=("again = await", more))
    assert said(report).startswith("departs: call 1: the prompt departs")
    assert report.differences[-1].description == "one more than the 2 recorded"
    change = ("while True:\n            messages", "for _ in range(2):\n            messages")
    fewer = replayed(project, LONG, change=change)
    assert "call 2: recorded, and not made; status agent_error instead of truncated" in said(fewer)


def test_a_call_that_the_episodes_own_limit_refused_is_not_given_its_error_again(project):
    report = replayed(project, FILLS, change=('"x" * 20000', '"x"'))
    assert "an episode may hold" in report.record.row.error
    assert said(report) == "departs: call 1: one more than the 1 recorded"


def test_an_agent_that_tries_again_for_ever_ends_with_the_record(project, monkeypatch):
    monkeypatch.setattr(replaying, "GRACE_S", 0.05)
    report = replayed(project, TRIES, change=("range(2)", "range(3)"))
    assert said(report) == "departs: call 2: one more than the 2 recorded"
    assert len(report.trajectory.turns) == 2


def test_the_reward_of_a_judge_of_groups_is_not_compared_and_the_line_says_so(project):
    report = replayed(project, RANKED)
    # with `long` and `fills`, which were cut before they could reward themselves
    assert (report.record.row.reward, report.trajectory.reward) == (3.0, 1.0)
    alone = "reward not compared (the judge sees the whole group, and here one episode)"
    assert said(report).endswith(f" prompt ids, ok, {alone}")
    other = replayed(project, RANKED, change=("Rank me.", "Rank us."))
    assert said(other).startswith("departs: call 0: ") and said(other).endswith(f"; {alone}")


def test_a_judge_of_groups_that_takes_no_single_episode_is_no_departure(project):
    change = ("return [(float", "assert len(workflow_tasks) > 1; return [(float")
    report = replayed(project, RANKED, change=change)
    assert report.trajectory.status == "judge_error" and report.is_same


def test_a_reward_that_the_workflow_gives_now_is_compared_with_the_judges(project):
    change = ('WorkflowOutput(metadata={"final_answer": reply["content"]})', "WorkflowOutput(5)")
    assert said(replayed(project, RANKED, change=change)) == ("departs: reward 5.0 instead of 3.0")


def test_another_reward_is_a_departure(project):
    report = replayed(project, IDS, change=("float(sum(second.token_ids))", "-1.0"))
    assert not report.differences and not report.is_same
    reward = report.record.row.reward
    assert said(report) == (
        f"departs: reward -1.0 instead of {reward!r}; is_success False instead of True"
    )


def test_a_call_that_asks_for_fewer_tokens_than_were_recorded_departs(project):
    report = replayed(project, IDS, change=("[5, 6, 7], max_tokens=4", "[5, 6, 7], max_tokens=1"))
    num = len(report.record.turns[0].token_ids)
    assert num > 1
    expected = f"asks for at most 1 tokens; the recorded reply has {num}"
    assert report.differences[0].description == expected


def test_another_choice_of_who_is_trained_departs(project):
    report = replayed(project, AGENTS, change=('["default", "solver"]', '["default", "critic"]'))
    descriptions = sorted(difference.description for difference in report.differences)
    assert descriptions == [
        "it is a call of agent critic (critic, trained), and was one of agent critic (critic, "
        "not trained)",
        "it is a call of agent solver (solver, not trained), and was one of agent solver (solver, "
        "trained)",
    ]
