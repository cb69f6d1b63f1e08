"""tool_agent: what the model is told of its calls, when it stops, and what is recorded."""

import pytest

from ajet.core.config.rollout import CompactionConfig
from ajet.core.errors import ConfigError
from ajet.core.trajectory.samples import timelines
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.agents.agent_runs import TOKENIZER, call, config_in, run, texts, told

TOOLS = """
import asyncio
import sys
import time

from ajet.core.errors import EnvironmentFault


def warmth(city: str, unit: str = "C") -> str:
    '''How warm it is.

    Args:
        city: where
        unit: C or F
    '''
    return f"{city}: 20 {unit}"


ARRIVED, LEFT = set(), {"a", "b", "c"}


async def meet(word: str) -> str:
    ARRIVED.add(word)
    while len(ARRIVED) < 3 or word != max(LEFT):  # the last one called is the first to answer
        await asyncio.sleep(0)
    LEFT.remove(word)
    return word


def raises(code: int = 1):
    raise ValueError(f"no such city,\\nnot {code}")


async def hangs():
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(3600)


def leaves():
    sys.exit(3)


def huge():
    return "x" * 50_000_000


def broken_sensor():
    raise EnvironmentFault("the sensor is off")
"""
NAMES = ("warmth", "meet", "raises", "hangs", "leaves", "huge", "broken_sensor")
FILES = {
    "tools.py": TOOLS,
    "tools.yaml": "tools:\n" + "".join(f"  - function: tools.py->{name}\n" for name in NAMES),
}


@pytest.fixture
def config(tmp_path):
    def make(**settings):
        return config_in(tmp_path, FILES, tool_config_path="tools.yaml", **settings)

    return make


async def test_a_call_is_run_and_only_sampled_tokens_are_trained(config):
    first, last = call("warmth", city="Oslo"), "It is 20 C."
    settings = config(system_prompt="You measure.")
    t = await run(settings, first, last)
    assert [message["role"] for message in t.turns[0].messages] == ["system", "user"]
    assert texts(t) == ["Oslo: 20 C"]
    assert (t.output.metadata["final_answer"], t.output.metadata["ended_by"]) == (last, "answer")
    [timeline] = timelines(t.turns)
    trained = [int(i) for i, m in zip(timeline.token_ids, timeline.loss_mask, strict=True) if m]
    assert TOKENIZER.decode(trained) == f"{first}<|im_end|>{last}<|im_end|>"


async def test_a_conversation_beyond_the_context_is_compacted_and_a_calls_answer_stays_with_it(
    config,
):
    base = config(system_prompt="You measure.")
    compaction = CompactionConfig(enable=True, prompt="Sum up.", max_summary_tokens=40)
    rollout = base.ajet.rollout.model_copy(update={"compaction": compaction})
    settings = base.model_copy(update={"ajet": base.ajet.model_copy(update={"rollout": rollout})})
    long = call("warmth", city="Oslo" * 40)
    limits = {"max_prompt_length": 8000, "max_response_length_in_one_turn": 300}
    first = await run(settings, long, "20 C", **limits)
    most = first.turns[1].num_prompt_tokens + 540  # a third prompt is too long
    limits["max_model_len"] = most
    t = await run(settings, long, long, "Oslo is warm.", "20 C", **limits)
    assert t.status is EpisodeStatus.OK
    assert [turn.notes.is_summary for turn in t.turns] == [False, False, True, False]
    asked = t.turns[2].messages[-1]
    assert (asked["role"], asked["content"]) == ("tool", "Sum up.")
    shown = t.turns[3].messages
    roles = ["system", "user", "assistant", "user", "assistant", "tool"]
    assert [message["role"] for message in shown] == roles
    assert shown[2]["content"] == "Oslo is warm."
    assert shown[4]["tool_calls"] == t.turns[1].reply["tool_calls"]
    ids = list(t.turns[3].completion.prompt_ids)
    kept = list(t.turns[1].completion.token_ids)
    assert kept in [ids[at : at + len(kept)] for at in range(len(ids))]


async def test_calls_of_one_reply_run_at_the_same_time_and_are_answered_in_their_order(config):
    replies = "".join(call("meet", word=word) for word in "abc")
    t = await run(config(), replies, "ok")
    assert texts(t) == ["a", "b", "c"]
    ids = [message["tool_call_id"] for message in told(t) if message["role"] == "tool"]
    assert ids == [each["id"] for each in t.turns[0].reply["tool_calls"]]


async def test_a_call_beyond_a_limit_is_not_run_and_says_so(config):
    twice = call("warmth", city="Oslo") * 2
    settings = config(max_parallel_calls=1, max_tool_calls=1)
    t = await run(settings, twice, call("warmth", city="Bergen"), "ok")
    assert texts(t) == [
        "Oslo: 20 C",
        "Error: not run: at most 1 calls in one reply are",
        "Error: not run: the 1 calls that you had are used up",
    ]
    assert t.output.log_metrics["tool_calls"] == 1
    assert t.output.log_metrics["invalid_tool_calls"] == 2


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (call("warmht", city="Oslo"), "there is no tool 'warmht'; did you mean 'warmth'?"),
        (call("sql"), "the tools are: warmth, meet, raises, hangs, leaves, huge, broken_sensor"),
        (call("warmth", city=7), "the arguments of warmth are wrong: city: 7 is not of type"),
        (call("warmth"), "the arguments of warmth are wrong: 'city' is a required property"),
        (call("warmth", city="Oslo", when="now"), "when: Extra inputs are not permitted"),
    ],
)
async def test_a_wrong_call_is_answered_with_what_is_wrong(config, reply, answer):
    t = await run(config(), reply, "ok")
    [text] = texts(t)
    assert text.startswith("Error: ") and answer in text
    counts = t.output.log_metrics
    assert (counts["invalid_tool_calls"], counts["tool_errors"]) == (1, 0)


async def test_a_call_that_cannot_be_read_is_answered_by_a_users_message(config):
    t = await run(config(), '<tool_call>\n{"name": warmth}\n</tool_call>', "ok")
    assert "could not be read" in texts(t, "user")[0]
    assert "malformed_tool_calls" not in told(t)[0]
    assert t.output.log_metrics["invalid_tool_calls"] == 1


async def test_replies_without_a_valid_call_end_the_episode_and_one_with_a_valid_call_starts_anew(
    config,
):
    wrong, right = call("sql"), call("warmth", city="Oslo")
    t = await run(config(max_consecutive_invalid_calls=2), wrong, right, wrong, wrong, "never")
    assert t.output.metadata["ended_by"] == "max_consecutive_invalid_calls"
    assert (len(t.turns), t.output.log_metrics["ended_by_limit"]) == (4, 1)


async def test_the_last_reply_allowed_may_answer_but_not_call(config):
    one = config(max_assistant_turns=1)
    assert (await run(one, "20")).output.metadata["ended_by"] == "answer"
    t = await run(one, call("warmth", city="Oslo"), "never")
    assert t.output.metadata["ended_by"] == "max_assistant_turns"
    assert t.output.log_metrics["tool_calls"] == 0


@pytest.mark.parametrize(
    ("tool", "answer", "timeouts"),
    [
        ("raises", "Error: ValueError: no such city, not 1", 0),
        ("leaves", "Error: RuntimeError: the tool called sys.exit(3)", 0),
        ("hangs", "Error: the tool did not answer within 0.2 s", 1),
    ],
)
async def test_a_tool_that_fails_is_a_counted_answer_and_the_episode_goes_on(
    config, tool, answer, timeouts
):
    t = await run(config(tool_timeout_s=0.2), call(tool), "It failed.")
    assert texts(t) == [answer]
    assert t.output.metadata["final_answer"] == "It failed."
    assert t.output.log_metrics["tool_errors"] == 1
    assert t.output.log_metrics["tool_timeouts"] == timeouts


async def test_fifty_megabytes_are_cut_to_the_limit_and_counted(config):
    t = await run(config(max_tool_response_length=10), call("huge"), "ok")
    assert texts(t) == ["xxxxx…(49999990 characters cut)…xxxxx"]
    assert t.output.log_metrics["tool_answers_cut"] == 1
    assert t.output.log_metrics["tool_characters_cut"] == 49_999_990


async def test_an_environment_that_fails_ends_the_episode_as_its_own_fault(config):
    t = await run(config(), call("broken_sensor"), "never", max_failure_rate=1.0)
    assert t.status is EpisodeStatus.ENV_ERROR
    assert "the sensor is off" in t.error


async def test_a_limit_of_the_run_is_the_episodes_status_and_never_swallowed(config):
    again = call("warmth", city="Oslo")
    t = await run(config(), again, again, "never", max_steps=2)
    assert t.status is EpisodeStatus.TRUNCATED
    assert t.output.metadata["ended_by"] == "truncated"
    assert len(t.turns) == 2


async def test_without_tools_it_is_one_reply(tmp_path):
    t = await run(config_in(tmp_path), "20")
    assert t.turns[0].tools is None
    assert t.output.metadata == {"final_answer": "20", "ended_by": "answer", "tool_rewards": {}}


async def test_the_single_turn_agent_asks_once(tmp_path):
    prompted = config_in(tmp_path, system_prompt="Be brief.")
    t = await run(prompted, "20", agent="single_turn_agent")
    assert t.turns[0].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How warm is it?"},
    ]
    assert t.output.metadata == {"final_answer": "20"}


def test_a_mistake_in_the_tools_file_is_found_before_a_launch(config):
    from ajet.cli.preflight import check_classes

    check_classes(config())
    with pytest.raises(ConfigError, match=r"tool_config_path: no\.yaml: no such file; looked for"):
        check_classes(config().model_copy(update={"ajet": _with_tools(config(), "no.yaml")}))


def _with_tools(config, path):
    turns = config.ajet.rollout.multi_turn.model_copy(update={"tool_config_path": path})
    rollout = config.ajet.rollout.model_copy(update={"multi_turn": turns})
    return config.ajet.model_copy(update={"rollout": rollout})
