"""Whatever an episode hands over, wherever it may: it ends as a status, and everything that is done
with a trajectory afterwards works."""

import json
import re

import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.buffer.codec import decode, encode
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.batch import StepGroups
from ajet.core.rollout.gc_thresholds import infrequent_gc
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.run_page import RunPage, to_json
from ajet.read.reports.audit import Audit
from ajet.read.reports.transcript import transcript
from ajet.tool_parsers import parser_for
from tests.core.record.record_fixtures import metrics_of_step
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner
from tests.hostile_values import MAKERS

TOKENIZER = chat_tokenizer("qwen2_5")
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
NAMES = list(MAKERS)
NUM_NAMES = len(NAMES)
FAULTS = {EpisodeStatus.AGENT_ERROR, EpisodeStatus.ENV_ERROR, EpisodeStatus.JUDGE_ERROR}
ALLOWED = {EpisodeStatus.OK, EpisodeStatus.TRUNCATED, *FAULTS}


@pytest.fixture(autouse=True)
def collected_as_in_a_run():
    """Each value may be a hundred thousand objects, and hundreds of them are alive at a time."""
    with infrequent_gc():
        yield


class Extended(WorkflowOutput):
    """A user's own output, with a field of its own."""

    extra = None


def extended(value):
    output = Extended(reward=1.0)
    output.extra = value
    output.metadata = {"extra": value}
    return output


async def raised(value):
    error = ValueError(value)
    error.add_note("a note")
    raise error


async def credited(tuner, **credit):
    await tuner.chat(HI)
    tuner.credit_turn(**credit)


async def sent(tuner, **call):
    await tuner.chat(**({"messages": HI} | call))


OUTPUTS = {
    "the output itself": lambda value: value,
    "reward": lambda value: WorkflowOutput(reward=value),
    "is_success": lambda value: WorkflowOutput(reward=1.0, is_success=value),
    "metadata": lambda value: WorkflowOutput(reward=1.0, metadata=value),
    "a value of metadata": lambda value: WorkflowOutput(reward=1.0, metadata={"answer": value}),
    "inside metadata": lambda value: WorkflowOutput(reward=1.0, metadata={"all": [{"x": [value]}]}),
    "log_metrics": lambda value: WorkflowOutput(reward=1.0, log_metrics=value),
    "a value of log_metrics": lambda value: WorkflowOutput(reward=1.0, log_metrics={"m": value}),
    "a subclass": extended,
}
CALLS = {
    "raised": lambda tuner, value: raised(value),
    "messages": lambda tuner, value: sent(tuner, messages=value),
    "a message": lambda tuner, value: sent(tuner, messages=[value]),
    "content": lambda tuner, value: sent(tuner, messages=[{"role": "user", "content": value}]),
    "role": lambda tuner, value: sent(tuner, messages=[{"role": value, "content": "hi"}]),
    "another key": lambda tuner, value: sent(tuner, messages=[{**HI[0], "other": value}]),
    "arguments of a call": lambda tuner, value: sent(
        tuner,
        messages=[
            *HI,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": value}}],
            },
        ],
    ),
    "tools": lambda tuner, value: sent(tuner, tools=value),
    "a tool": lambda tuner, value: sent(tuner, tools=[{**TOOL, "other": value}]),
    "tool_choice": lambda tuner, value: sent(tuner, tools=[TOOL], tool_choice=value),
    "agent_name": lambda tuner, value: sent(tuner, agent_name=value),
    "temperature": lambda tuner, value: sent(tuner, temperature=value),
    "top_p": lambda tuner, value: sent(tuner, top_p=value),
    "top_k": lambda tuner, value: sent(tuner, top_k=value),
    "max_tokens": lambda tuner, value: sent(tuner, max_tokens=value),
    "seed": lambda tuner, value: sent(tuner, seed=value),
    "stop": lambda tuner, value: sent(tuner, stop=value),
    "a stop": lambda tuner, value: sent(tuner, stop=[value]),
    "token ids": lambda tuner, value: tuner.generate(value),
    "a token id": lambda tuner, value: tuner.generate([1, value]),
    "the reward of a turn": lambda tuner, value: credited(tuner, reward=value),
    "a state key": lambda tuner, value: credited(tuner, state_key=value),
}


class Hostile(Workflow):
    """Hands over the value of its member's number in the field that the task names."""

    def value_name(self, workflow_task):
        return NAMES[workflow_task.rollout_index]

    async def execute(self, workflow_task, model_tuner):
        value = MAKERS[self.value_name(workflow_task)]()
        workflow_task.task.metadata["mine"] = value
        field = workflow_task.task.main_query
        if field in OUTPUTS:
            await model_tuner.chat(HI)
            return OUTPUTS[field](value)
        await CALLS[field](model_tuner, value)
        return WorkflowOutput(reward=1.0)


async def rolled_out(workflow, judge=None, fields=("q",), num_repeat=NUM_NAMES):
    runner = episode_runner(
        workflow,
        ScriptedEndpoint(TOKENIZER, lambda *_: "fine"),
        TOKENIZER,
        judge=judge,
        max_failure_rate=1.0,
        episode_timeout_s=60,
    )
    tasks = [Task(field, field) for field in fields]
    request = RolloutRequest(tasks, step=1, mode="train", num_repeat=num_repeat)
    return await runner.rollout(request)


def check_everything_after(groups, tmp_path):
    """The buffer, the record, the metrics, the page, the transcript and the audit take them."""
    from ajet.core.text.terminal import Console

    assert [g.group_id for g in decode(encode(groups))] == [g.group_id for g in groups]
    metrics = metrics_of_step(StepGroups(groups, baselines=[], seconds=1.0), [], {})
    with RunFolder.open(tmp_path / "run") as folder:
        TOKENIZER.save_pretrained(folder.tokenizer)
        with EpisodeStore(folder.episodes_db) as store:
            store.write(1, groups)
        logger = MetricsLogger(["tensorboard", "console"], folder)
        logger.log(1, metrics)
        logger.close()
    assert json.loads(folder.metrics_jsonl.read_text())["step"] == 1
    page = RunPage(folder)
    to_json(page.run())
    trajectories = [t for group in groups for t in group.trajectories]
    assert page.episodes({"limit": "500"})["count"] == len(trajectories)
    template = ChatTemplate(TOKENIZER)
    audit = Audit(template, parser_for(template))
    with EpisodeReader(folder.episodes_db) as reader, (tmp_path / "screen").open("w") as screen:
        console = Console(file=screen, force_terminal=True, width=100, no_color=True)
        for member in trajectories[:: 1 + len(groups) // 4]:
            assert b'"members"' in to_json(page.episode(member.episode_id))
            audit.add_all([reader.episode(member.episode_id)])
            console.print(transcript(member))
    untrained = "tokens should be trained and are not"  # nothing is, here
    assert [fault for fault in audit.figures.faults if untrained not in fault] == []
    shown = (tmp_path / "screen").read_text().replace("\x1b[0m", "")
    assert "\x00" not in shown and "\x1b]0;" not in shown and "\u202e" not in shown


@pytest.mark.parametrize("fields", [OUTPUTS, CALLS], ids=["outputs", "calls"])
async def test_a_workflow_may_hand_over_anything_in_any_field(fields, tmp_path):
    groups = await rolled_out(Hostile, fields=fields)
    for field, group in zip(fields, groups, strict=True):
        for name, member in zip(NAMES, group.trajectories, strict=True):
            assert member.status in ALLOWED, (field, name)
            assert (member.error is None) == (member.status is EpisodeStatus.OK), (field, name)
            assert member.error is None or len(member.error.splitlines()) == 1, (field, name)
    check_everything_after(groups, tmp_path)


class Judge(BaseJudge):
    """Hands over the value of the member's number as the task names it."""

    def compute_reward(self, workflow_task, workflow_output):
        value = MAKERS[NAMES[workflow_task.rollout_index]]()
        return VERDICTS[workflow_task.task.main_query](value, workflow_output)


def noted(value, output):
    output.metadata = {"reason": value}
    output.log_metrics["seen"] = 1.0
    return 1.0, True


def overwritten(value, output):
    output.metadata, output.log_metrics = value, value
    return 1.0, True


def judge_raises(value, output):
    raise ValueError(value)


VERDICTS = {
    "the verdict itself": lambda value, output: value,
    "the reward": lambda value, output: (value, True),
    "is_success": lambda value, output: (1.0, value),
    "a list": lambda value, output: [value, value],
    "a note": noted,
    "the output": overwritten,
    "raised": judge_raises,
}


class Plain(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(metadata={"final_answer": 1})


async def test_a_judge_may_hand_over_anything_in_any_field(tmp_path):
    groups = await rolled_out(Plain, Judge(), VERDICTS)
    ended = {t.status for group in groups for t in group.trajectories}
    assert ended == {EpisodeStatus.OK, EpisodeStatus.JUDGE_ERROR}
    check_everything_after(groups, tmp_path)


class OfAGroup(GroupJudge):
    """Gives the member with a number the value of that number, the others 1."""

    def __init__(self, name):
        self._name = name

    def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        value = MAKERS[self._name]()
        workflow_outputs[0].metadata["reason"] = value
        return [(value, value), *[(1.0, True)] * (len(workflow_tasks) - 1)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_judge_of_groups_may_hand_over_anything(name):
    groups = await rolled_out(Plain, judge=OfAGroup(name))
    members = groups[0].trajectories
    assert {t.status for t in members} <= {EpisodeStatus.OK, EpisodeStatus.JUDGE_ERROR}
    assert len(decode(encode(groups))) == 1


class LostTargets(Workflow):
    @property
    def trainable_targets(self):
        raise RuntimeError("no targets")

    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(reward=1.0)


async def test_targets_that_cannot_be_read_are_the_episodes_fault():
    groups = await rolled_out(LostTargets)
    assert {t.status for t in groups[0].trajectories} == {EpisodeStatus.AGENT_ERROR}


class Interrupting(Workflow):
    def execute(self, workflow_task, model_tuner):
        raise KeyboardInterrupt


async def test_a_workflow_in_a_thread_that_raises_an_interrupt_is_the_episodes_fault():
    groups = await rolled_out(Interrupting)
    assert {t.error for t in groups[0].trajectories} == {"RuntimeError: KeyboardInterrupt"}


class HundredMegabytes(Workflow):
    async def execute(self, workflow_task, model_tuner):
        text = "x" * 100_000_000
        if workflow_task.rollout_index == 0:
            await model_tuner.chat([{"role": "user", "content": text}])
        if workflow_task.rollout_index == 1:
            raise ValueError(text)
        return WorkflowOutput(reward=1.0, metadata={"final_answer": text})


async def test_a_text_of_100_megabytes_is_cut_in_the_record_and_never_tokenized(tmp_path):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "fine")
    runner = episode_runner(HundredMegabytes, endpoint, TOKENIZER, max_failure_rate=1.0)
    request = RolloutRequest([Task("t", "q")], step=1, mode="train", num_repeat=3)
    groups = await runner.rollout(request)
    prompt, error, metadata = groups[0].trajectories
    assert re.fullmatch(
        r"turn 0's prompt has 1000000\d\d characters; an episode may hold 18000 tokens",
        prompt.error,
    )
    assert prompt.status is EpisodeStatus.TRUNCATED and endpoint.prompts == {}
    assert len(error.error) < 600
    answer = metadata.output.metadata["final_answer"]
    assert len(answer) < 16_000_100 and answer.endswith("… [cut: 100000000 characters]")
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        store.write(1, groups)
