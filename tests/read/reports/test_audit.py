"""What an audit counts as drift, and what it calls a fault."""

import json
import sqlite3
import zlib
from dataclasses import replace

import numpy as np
import pytest

from ajet import Workflow, WorkflowOutput
from ajet.cli import audit
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.trajectory.base_recorder import SamplingOverrides
from ajet.core.trajectory.samples import to_samples
from ajet.read.episode_reader import EpisodeFilter, EpisodeReader
from ajet.read.reports.audit import Audit, AuditFigures
from ajet.read.reports.audit_report import AuditReport
from ajet.tool_parsers import parser_for
from tests.fakes import FAMILY_CALL, ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add",  "arguments": {"a":1}}\n</tool_call>'


class TwoCalls(Workflow):
    """A question, and a second one after the reply."""

    tools, answer = None, {"role": "user", "content": "and?"}

    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages, self.tools, max_tokens=60)
        await model_tuner.chat([*messages, reply, self.answer], self.tools)
        return WorkflowOutput(reward=float(workflow_task.rollout_index))


class WithTool(TwoCalls):
    tools, answer = [ADD], {"role": "tool", "content": "2", "tool_call_id": "call_0000_0"}


class Unmerged(ScriptedEndpoint):
    """A model that samples byte by byte what the tokenizer would merge."""

    async def generate(self, prompt_ids, sampling, request_id):
        text = self.reply("", request_id)
        ids = (*text.encode(), self.tokenizer.eos_token_id)[: sampling.max_tokens]
        reason = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        return Completion(tuple(prompt_ids), ids, (-0.5,) * len(ids), reason, 0)


class HandsOver(ScriptedEndpoint):
    """A model that ends a call as its family does."""

    async def generate(self, prompt_ids, sampling, request_id):
        given = await super().generate(prompt_ids, sampling, request_id)
        handover = self.tokenizer.convert_tokens_to_ids("<|call|>")
        num = len(given.token_ids) - (handover in given.token_ids)
        return replace(given, token_ids=given.token_ids[:num], logprobs=given.logprobs[:num])


class Asks(Workflow):
    """A call of each form in which a reply is told to the agent, and one of ids alone."""

    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    function = {"name": "add", "description": "Adds.", "parameters": parameters}
    asks = ({}, {"tool_choice": "none"}, {"tool_choice": "add"}, {"parallel_tool_calls": False})

    async def execute(self, workflow_task, model_tuner):
        chat, tools = model_tuner._recorder.chat, [{"type": "function", "function": self.function}]
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        for asked in (*self.asks, {"overrides": SamplingOverrides(stop=("dd",))}):
            await chat(messages, tools, **asked)
        await chat(messages)
        await model_tuner.generate([5, 6, 7], stop=["ad"])
        return WorkflowOutput(reward=1.0)


async def recorded(
    path, workflow=TwoCalls, endpoint=None, tokenizer=TOKENIZER, mode="train", **limits
):
    """A database of two episodes, trained where they were valid."""
    endpoint = endpoint or ScriptedEndpoint(tokenizer, lambda *_: "fine")
    runner = episode_runner(workflow, endpoint, tokenizer, max_failure_rate=1.0, **limits)
    groups = await runner.rollout(
        RolloutRequest([Task("t", "hi")], step=1, mode=mode, num_repeat=2)
    )
    advantages = {
        t.episode_id: [np.ones(len(turn.completion.token_ids)) for turn in t.turns]
        for group in groups
        for t in group.valid
    }
    with EpisodeStore(path) as store:
        store.write(
            1, groups, advantages, to_samples(groups, advantages) if mode == "train" else ()
        )
    return path


def figures(path, tokenizer=TOKENIZER):
    template = ChatTemplate(tokenizer)
    audit = Audit(template, parser_for(template))
    with EpisodeReader(path) as reader:
        audit.add_all(reader.walk())
    return audit.figures


def tamper(path, statement, *arguments):
    with sqlite3.connect(path) as connection:
        connection.execute(statement, arguments)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "episodes.sqlite"


async def test_a_faithful_record_has_neither_drift_nor_faults(path):
    found = figures(await recorded(path))
    assert (found.episodes, found.calls, found.continued, found.timelines) == (2, 4, 2, 2)
    assert (found.rendered, found.same, found.drift.total()) == (4, 4, 0)
    assert found.branches == {"a conversation begins": 2}
    # "fine" is 4 bytes, and the end of the turn: 5 tokens in each of 4 calls
    assert found.sampled == found.trained == {"ok": 20} and not found.untrained
    assert (found.replies, found.replies_read_otherwise, found.num_faults) == (4, 0, 0)


async def test_a_call_with_variables_of_the_template_is_rendered_with_them(path):
    class WithoutThinking(Workflow):
        async def execute(self, workflow_task, model_tuner):
            variables = {"enable_thinking": False}
            await model_tuner.chat([{"role": "user", "content": "hi"}])
            await model_tuner.chat(
                [{"role": "user", "content": "hi"}], chat_template_kwargs=variables
            )
            return WorkflowOutput(reward=float(workflow_task.rollout_index))

    tokenizer = chat_tokenizer("qwen3")
    counted = figures(await recorded(path, WithoutThinking, tokenizer=tokenizer), tokenizer)
    assert (counted.rendered, counted.same, counted.num_faults) == (4, 4, 0)


async def test_a_reply_that_was_sampled_in_other_tokens_than_its_texts_is_drift(path):
    found = figures(await recorded(path, endpoint=Unmerged(TOKENIZER, lambda *_: "x the")))
    assert found.drift == {"reply re-tokenized": 2} and found.num_faults == 0
    first = ChatTemplate(TOKENIZER).prompt_ids([{"role": "user", "content": "hi"}])
    assert found.drift_at == [len(first) + 1] * 2  # x is the same, " the" is one token


async def test_a_tool_call_that_the_template_writes_otherwise_is_drift_of_that_cause(path):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: f"Well.{CALL}")
    found = figures(await recorded(path, WithTool, endpoint))
    assert found.drift == {"tool call re-serialised": 2} and found.replies_read_otherwise == 0


async def test_a_reply_that_was_cut_is_drift_of_that_cause(path):
    found = figures(await recorded(path, endpoint=Unmerged(TOKENIZER, lambda *_: "the" * 40)))
    assert found.drift == {"cut reply": 2}


@pytest.mark.parametrize(
    ("family", "rest"),
    [
        ("gptoss", '{"a": 1}<|call|>'),
        ("deepseekv3", f"<think>hm</think>{FAMILY_CALL['deepseekv3']}"),
        ("deepseek_v3_1", "fine"),
    ],
)
async def test_a_forced_opening_that_the_template_writes_otherwise_is_drift_of_that_cause(
    path, family, rest
):
    class Forced(WithTool):
        async def execute(self, workflow_task, model_tuner):
            messages = [{"role": "user", "content": "hi"}]
            reply = await model_tuner.chat(messages, [ADD], tool_choice="add")
            answer = self.answer if reply.get("tool_calls") else TwoCalls.answer
            await model_tuner.chat([*messages, reply, answer], [ADD])
            return WorkflowOutput(reward=1.0)

    tokenizer = chat_tokenizer(family)
    endpoint = HandsOver(tokenizer, lambda *_: rest)
    found = figures(await recorded(path, Forced, endpoint, tokenizer), tokenizer)
    assert found.drift == {"opening of a forced call": 2} and found.num_faults == 0


async def test_white_space_that_ends_a_prompt_may_be_one_token_with_the_reply(path):
    found = figures(await recorded(path, endpoint=Unmerged(TOKENIZER, lambda *_: "\nfine")))
    assert found.drift == {"reply re-tokenized": 2} and found.num_faults == 0
    first = ChatTemplate(TOKENIZER).prompt_ids([{"role": "user", "content": "hi"}])
    assert found.drift_at == [len(first) - 1] * 2


async def test_white_space_that_the_template_trims_is_drift_of_that_cause(path):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: f"  Well.\n{CALL}")
    found = figures(await recorded(path, WithTool, endpoint))
    assert found.drift == {"white space trimmed": 2}


async def test_thinking_that_a_template_drops_begins_a_branch_and_is_no_drift(path):
    qwen3 = chat_tokenizer("qwen3")
    endpoint = ScriptedEndpoint(qwen3, lambda *_: "<think>\nhm\n</think>\n\nfine")
    found = figures(await recorded(path, endpoint=endpoint, tokenizer=qwen3), qwen3)
    reasons = set(found.branches) - {"a conversation begins"}
    assert found.same == 4 and found.continued == 0
    assert len(reasons) == 1 and "template" in reasons.pop()
    assert found.timelines == 4


async def test_another_template_than_the_runs_is_drift_and_no_fault(path):
    await recorded(path)
    found = figures(path, chat_tokenizer("qwen3", merges=False))
    assert found.drift == {"the template renders otherwise than in the run": 4}
    assert found.num_faults == 0


async def test_failed_and_held_out_episodes_say_why_they_are_not_trained(path):
    class Raises(TwoCalls):
        async def execute(self, workflow_task, model_tuner):
            await super().execute(workflow_task, model_tuner)
            raise ValueError("no such move")

    found = figures(await recorded(path, Raises))
    assert found.sampled == {"agent_error": 20} and found.trained.total() == 0
    assert found.untrained == {"the episode ended as agent_error": 20}
    path.unlink()
    held_out = figures(await recorded(path, mode="eval"))
    assert held_out.untrained == {"evaluation": 20} and held_out.num_faults == 0


@pytest.mark.parametrize(
    ("policy", "timelines"), [("mask", 1), ("retry", 1), ("drop_group", 0), ("zero", 2)]
)
async def test_timelines_count_where_they_were_trained(path, policy, timelines):
    class Fails(TwoCalls):
        async def execute(self, workflow_task, model_tuner):
            output = await super().execute(workflow_task, model_tuner)
            if workflow_task.rollout_index:
                raise ValueError("no such move")
            return output

    found = figures(await recorded(path, Fails, failure_policy=policy, max_retries=1))
    assert (found.episodes, found.timelines) == (3 if policy == "retry" else 2, timelines)


async def test_a_prompt_that_continues_nothing_is_a_fault(path):
    await recorded(path)
    prompt = zlib.compress(np.arange(100, dtype="<i4").tobytes())
    change = "UPDATE turns SET prompt_kept = 0, prompt_ids = ? WHERE turn_index = 1"
    tamper(path, change, prompt)
    found = figures(path)
    assert found.num_faults == 2
    assert found.faults[0] == (
        "episode 000001-train-0000-01, turn 1: should continue a call, but begins with none"
    )


async def test_a_prompt_that_goes_on_with_what_no_message_says_is_a_fault(path):
    await recorded(path)
    with sqlite3.connect(path) as connection:
        [kept] = connection.execute("SELECT prompt_ids FROM turns WHERE turn_index = 1 LIMIT 1")
    new = np.frombuffer(zlib.decompress(kept[0]), "<i4").copy()
    new[new == ord("?")] = ord("!")  # of "and?"
    change = "UPDATE turns SET prompt_ids = ? WHERE turn_index = 1 AND episode_id LIKE '%-00'"
    tamper(path, change, zlib.compress(new.tobytes()))
    assert figures(path).faults == [
        "episode 000001-train-0000-00, turn 1: continues differently from the template"
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("trainable = 0", "5 tokens are trained (an agent that is not trained)"),
        ("loss_mask = NULL", "5 tokens should be trained and are not"),
        ("loss_mask = x'0101'", "5 tokens have a loss mask of 2"),
        ("logprobs = x'0000803F0000803F000000000000000000000000'", "2 log-probabilities are above"),
        ("logprobs = x'0000C07F'", "5 tokens have 1 log-probabilities"),
    ],
)
async def test_an_audit_fault_names_its_turn(path, change, fault):
    await recorded(path)
    tamper(path, f"UPDATE turns SET {change} WHERE turn_index = 1 AND episode_id LIKE '%-00'")
    found = figures(path)
    assert found.faults[0].startswith(f"episode 000001-train-0000-00, turn 1: {fault}")


async def test_an_episode_that_failed_may_not_be_trained(path):
    await recorded(path)
    tamper(path, "UPDATE episodes SET status = 'timeout', ended_as = 'timeout'")
    found = figures(path)
    assert found.num_faults == 4
    assert found.faults[0].endswith("5 tokens are trained (the episode ended as timeout)")


@pytest.mark.parametrize("family", FAMILY_CALL)
async def test_every_familys_replies_are_read_as_the_recorder_read_them(path, family):
    tokenizer = chat_tokenizer(family)
    endpoint = ScriptedEndpoint(tokenizer, lambda *_: FAMILY_CALL[family] * 2)
    found = figures(await recorded(path, Asks, endpoint, tokenizer), tokenizer)
    assert (found.replies, found.replies_read_otherwise, found.num_faults) == (14, 0, 0)


async def test_a_reply_that_the_parser_reads_otherwise_now_is_counted(path):
    await recorded(path)
    reply = json.dumps({"role": "assistant", "content": "other"})
    tamper(path, "UPDATE turns SET reply = ? WHERE turn_index = 1", reply)
    assert figures(path).replies_read_otherwise == 2


async def test_the_report_is_plain_json_with_rate_and_positions(path):
    found = figures(await recorded(path, endpoint=Unmerged(TOKENIZER, lambda *_: "x the")))
    plain = json.loads(AuditReport("run", "m", "t", found).as_json())
    assert plain["drift"] == {"reply re-tokenized": 2} and plain["drift_rate"] == 0.5
    assert plain["drift_first_position_min"] == plain["drift_first_position_median"]
    assert plain["sound"] is True and "drift_at" not in plain


async def test_the_newest_episodes_come_first_and_no_more_than_asked_for(path):
    await recorded(path)
    with EpisodeReader(path) as reader:
        names = [episode.row.episode_id for episode in reader.walk(EpisodeFilter(mode="train"), 1)]
        assert names == ["000001-train-0000-01"]
        assert len(list(reader.walk())) == 2 and list(reader.walk(EpisodeFilter(mode="eval"))) == []


def test_a_long_audit_prints_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 4.0, 10.0, 10.0, 19.0])
    monkeypatch.setattr(audit.time, "monotonic", lambda: next(clock))
    parts = [AuditFigures(episodes=500) for _ in range(3)]
    assert list(audit.with_lines(iter(parts), 2000)) == parts
    assert capsys.readouterr().err == "1,000 of 2,000 episodes\n"
