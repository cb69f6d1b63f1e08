from dataclasses import replace

import pytest
from loguru import logger

from ajet.core.config.services import ContextTrackerConfig
from ajet.core.record.step_warnings import (
    NO_STATE_KEY,
    NO_TURN_REWARD,
    OWN_SAMPLING,
    UNUSED_MODEL,
    StepWarnings,
)
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.core.record.record_fixtures import episode, group_of


def test_failed_episodes_are_said_at_every_step_with_the_first_error(warnings):
    failed = episode(
        member=1, reward=None, status=EpisodeStatus.AGENT_ERROR, error="ValueError: no (a.py:3)"
    )
    said = StepWarnings()
    for step in (1, 2):
        said.warn_of_failures(f"step {step}", [group_of(episode(member=0), failed)])
    assert warnings[1] == (
        "step 2: 1 of 2 episodes failed (1 agent_error); "
        "first: 000001-train-0000-01: ValueError: no (a.py:3)"
    )
    said.warn_of_failures("step 3", [group_of(episode(member=0))])
    assert len(warnings) == 2


def test_a_setting_that_misses_is_said_once(warnings):
    said = StepWarnings()
    for _ in range(2):
        said.check_metrics({"tokens/sampled": 0.0, "turns/sampling_not_taken": 3.0})
    said.check_metrics({"tokens/sampled": 5.0, "turns/sampling_not_taken": 0.0})
    assert warnings == [UNUSED_MODEL, OWN_SAMPLING]


@pytest.fixture
def lines():
    said = []
    sink = logger.add(lambda message: said.append(message.record["message"]), level="INFO")
    yield said
    logger.remove(sink)


def wrong_call(group):
    first, second = group.trajectories[0].turns
    bad = replace(second, notes={"malformed": {"wrong_toolcall": "no tool 'x' was offered"}})
    return replace(group, trajectories=(replace(group.trajectories[0], turns=(first, bad)),))


def test_wrong_calls_and_broken_timelines_are_logged_where_the_config_asks(lines):
    group = wrong_call(group_of(episode()))
    counts = TimelineCounts(
        malformed={"wrong_toolcall": 1}, splits={"the agent went back to an earlier call": 2}
    )
    StepWarnings().log_timelines("step 1", [group], counts)
    assert lines == []
    asked = ContextTrackerConfig(log_tool_format_check=True, detect_timeline_snap=True)
    StepWarnings(asked).log_timelines("step 2", [group], counts)
    StepWarnings(asked).log_timelines("step 3", [group], TimelineCounts())
    assert lines == [
        "step 2: 1 replies with a wrong call of a tool",
        "step 2: 2 timelines broke off (2: the agent went back to an earlier call)",
        "step 3: 0 replies with a wrong call of a tool",
        "step 3: 0 timelines broke off",
    ]


def test_each_wrong_call_is_logged_where_the_config_asks_for_detail(lines):
    asked = ContextTrackerConfig(log_tool_format_check=True, log_tool_format_error_detail=True)
    group = wrong_call(group_of(episode()))
    counts = TimelineCounts(malformed={"wrong_toolcall": 1})
    StepWarnings(asked).log_timelines("step 2", [group], counts)
    assert lines[1:] == ["step 2: 000001-train-0000-00, turn 1: no tool 'x' was offered"]


def test_step_wise_credit_without_states_or_rewards_of_turns_is_said_once(warnings):
    said, plain = StepWarnings(), episode()
    for _ in range(2):
        said.check_credit("gigpo", [group_of(plain)])
        said.check_credit("step_reinforce", [group_of(plain)])
        said.check_credit("grpo", [group_of(plain)])
    assert warnings == [NO_STATE_KEY, NO_TURN_REWARD]
    first, second = plain.turns
    noted = replace(plain, turns=(first, replace(second, state_key="s", reward=0.0)))
    again = StepWarnings()
    for estimator in ("gigpo", "step_reinforce"):
        again.check_credit(estimator, [group_of(noted)])
        again.check_credit(estimator, [group_of(episode(turns=()))])
    assert len(warnings) == 2
