from dataclasses import replace

from ajet.core.config import AjetConfig
from ajet.core.config.services import ContextTrackerConfig
from ajet.core.record.step_warnings import (
    NO_STATE_KEY,
    NO_TURN_REWARD,
    OWN_SAMPLING,
    UNUSED_MODEL,
    CallForms,
    call_form_warning,
    credit_warnings,
    metric_warnings,
    timeline_lines,
    warn_of_failures,
)
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.trajectory.turn import TurnNotes
from tests.core.record.record_fixtures import episode, group_of


def test_failed_episodes_are_said_at_every_step_with_the_first_error(warnings):
    failed = episode(
        member=1, reward=None, status=EpisodeStatus.AGENT_ERROR, error="ValueError: no (a.py:3)"
    )
    for step in (1, 2):
        warn_of_failures(f"step {step}", [group_of(episode(member=0), failed)])
    assert warnings[1] == (
        "step 2: 1 of 2 episodes failed (1 agent_error); "
        "first: 000001-train-0000-01: ValueError: no (a.py:3)"
    )
    warn_of_failures("step 3", [group_of(episode(member=0))])
    assert len(warnings) == 2


def test_a_setting_that_misses_is_warned_of():
    found = list(metric_warnings(1, {"tokens/sampled": 0.0, "turns/sampling_not_taken": 3.0}))
    assert [(each.step, each.text) for each in found] == [(1, UNUSED_MODEL), (1, OWN_SAMPLING)]
    assert not list(metric_warnings(2, {"tokens/sampled": 5.0, "turns/sampling_not_taken": 0.0}))


def in_another_form(form):
    """An episode of two replies to an offer of tools; the first has a call in another form."""
    first, second = episode().turns
    return replace(episode(), turns=(replace(first, notes=TurnNotes(other_form=form)), second))


def test_calls_in_another_form_are_warned_of_with_the_count_and_the_remedy():
    group = group_of(in_another_form("json"), in_another_form("json"), in_another_form("hermes"))
    warning = call_form_warning(3, AjetConfig(), [group])
    assert warning is not None
    assert warning.text == (
        "step 3: 3 of 6 replies to an offer of tools have a call that "
        "ajet.rollout.tool_parser=auto does not read, but others do (2 as json, 1 as hermes), so "
        "the agent saw no call: set ajet.rollout.tool_parser=json, or teach the model its chat "
        "template's form, by the prompt or a supervised stage"
    )
    assert warning.values == {"replies": 3.0, "with_tools": 6.0}
    few = group_of(in_another_form("json"), *(episode() for _ in range(5)))  # 1 of 12
    assert call_form_warning(3, AjetConfig(), [few]) is None
    assert CallForms(12, {"json": 1}).line(AjetConfig()) is None
    untooled = replace(episode(), turns=tuple(replace(t, tools=None) for t in episode().turns))
    assert CallForms.of([untooled, episode()]) == CallForms(2, {})


def test_the_remedy_for_a_suite_has_the_benchmarks_own_prompt():
    line = CallForms(12, {"json": 12}).line(
        AjetConfig.model_validate({"suite": {"prompting": "tools"}})
    )
    assert line is not None and "prompt (+suite.prompting=text), or teach the model" in line


def wrong_call(group):
    first, second = group.trajectories[0].turns
    bad = replace(second, notes=TurnNotes(malformed={"wrong_toolcall": "no tool 'x' was offered"}))
    return replace(group, trajectories=(replace(group.trajectories[0], turns=(first, bad)),))


def test_wrong_calls_and_broken_timelines_are_logged_where_the_config_asks():
    group = wrong_call(group_of(episode()))
    counts = TimelineCounts(
        malformed={"wrong_toolcall": 1}, splits={"the agent went back to an earlier call": 2}
    )
    assert not list(timeline_lines(ContextTrackerConfig(), [group], counts))
    asked = ContextTrackerConfig(log_tool_format_check=True, detect_timeline_snap=True)
    assert list(timeline_lines(asked, [group], counts)) == [
        "1 replies with a wrong call of a tool",
        "2 timelines broke off (2: the agent went back to an earlier call)",
    ]
    assert list(timeline_lines(asked, [group], TimelineCounts())) == [
        "0 replies with a wrong call of a tool",
        "0 timelines broke off",
    ]


def test_each_wrong_call_is_logged_where_the_config_asks_for_detail():
    asked = ContextTrackerConfig(log_tool_format_check=True, log_tool_format_error_detail=True)
    group = wrong_call(group_of(episode()))
    counts = TimelineCounts(malformed={"wrong_toolcall": 1})
    lines = list(timeline_lines(asked, [group], counts))
    assert lines[1:] == ["000001-train-0000-00, turn 1: no tool 'x' was offered"]


def credit_texts(estimator, trajectory):
    return [each.text for each in credit_warnings(1, estimator, [group_of(trajectory)])]


def test_step_wise_credit_without_states_or_rewards_of_turns_is_warned_of():
    plain = episode()
    assert credit_texts("gigpo", plain) == [f"adv_estimator gigpo: {NO_STATE_KEY}"]
    assert credit_texts("step_reinforce", plain) == [
        f"adv_estimator step_reinforce: {NO_TURN_REWARD}"
    ]
    assert credit_texts("grpo", plain) == []
    first, second = plain.turns
    noted = replace(plain, turns=(first, replace(second, state_key="s", reward=0.0)))
    for estimator in ("gigpo", "step_reinforce"):
        assert credit_texts(estimator, noted) == credit_texts(estimator, episode(turns=())) == []
