"""Spans of episodes that were recorded by hand: names, times, what belongs to what."""

from dataclasses import replace

import pytest

from ajet.core.record.episode_store import EpisodeStore
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.user_code.activity import TimedCall
from ajet.read.episode_reader import EpisodeReader
from ajet.read.traces.export import chrome_trace
from ajet.read.traces.spans import RunFacts, episode_spans
from tests.core.record.record_fixtures import advantages_of, episode, group_of, sample_of, two_turns

RUN = RunFacts("a" * 32, "math", "tiny")
TOOL = {
    "id": "call_0",
    "type": "function",
    "function": {"name": "python", "arguments": '{"code": "print(6*7)"}'},
}
CALLS = (
    TimedCall("its environment, which is made", 0.0, 2.0),
    TimedCall("tool python", 10.5, 10.75),
    TimedCall("judge Exact", 12.75, 13.0),
)


def recorded(tmp_path, one):
    """The episode as a run folder gives it back."""
    with EpisodeStore(tmp_path / "episodes.sqlite") as store:
        trained = {one.episode_id: advantages_of(one, 0.5)} if one.turns else {}
        store.write(1, [group_of(one)], trained, [sample_of(one)] if one.turns else [])
    with EpisodeReader(tmp_path / "episodes.sqlite") as reader:
        return reader.episode(one.episode_id)


@pytest.fixture
def spans(tmp_path):
    first, second = two_turns()
    first = replace(first, reply=first.reply | {"tool_calls": [TOOL]})
    one = replace(episode(turns=(first, second)), began_unix_s=1000.0, calls=CALLS)
    return episode_spans(recorded(tmp_path, one), RUN, ended_by_s=5000.0)


def test_an_episode_has_a_span_for_each_call_in_their_order(spans):
    assert [(span.category, span.name) for span in spans] == [
        ("episode", "invoke_agent math"),
        ("environment", "its environment, which is made"),
        ("model", "chat tiny"),
        ("tool", "execute_tool python"),
        ("model", "chat tiny"),
        ("judge", "judge Exact"),
    ]
    assert [(s.started_s, s.ended_s) for s in spans] == [
        (1000.0, 1013.0),
        (1000.0, 1002.0),
        (1010.0, 1010.5),
        (1010.5, 1010.75),
        (1011.0, 1012.5),
        (1012.75, 1013.0),
    ]
    root, *calls = spans
    assert root.parent_id == 0 and {call.parent_id for call in calls} == {root.span_id}
    assert len({span.span_id for span in spans}) == 6 and len({s.trace_id for s in spans}) == 1


def test_spans_say_what_was_sampled_judged_and_answered(spans):
    root, _, first, tool, second, judge = spans
    assert (root.inputs, root.outputs, root.error) == ("6 times 7?", "42", None)
    assert root.attributes["gen_ai.evaluation.score.value"] == 1.0
    assert (root.attributes["ajet.step"], root.attributes["ajet.is_success"]) == (1, True)
    assert "ajet.time_is_estimated" not in root.attributes
    usage = [(s.attributes[f"gen_ai.usage.{of}_tokens"]) for s in (first, second) for of in IN_OUT]
    assert usage == [10, 3, 16, 2]
    assert first.attributes["ajet.logprob.mean"] == pytest.approx((-0.5 - 0.25 - 2.0) / 3)
    assert second.attributes["ajet.trained_tokens"] == 2
    assert (tool.inputs, tool.outputs) == ('{"code": "print(6*7)"}', "42")
    assert tool.attributes["gen_ai.tool.call.id"] == "call_0"
    assert judge.attributes["gen_ai.evaluation.score.value"] == 1.0


IN_OUT = ("input", "output")


def test_the_same_episode_has_the_same_ids_and_another_runs_has_others(tmp_path):
    record = recorded(tmp_path, episode())
    first, again = (episode_spans(record, RUN, 0.0) for _ in range(2))
    other = episode_spans(record, replace(RUN, run_id="b" * 32), 0.0)
    assert [s.span_id for s in first] == [s.span_id for s in again]
    assert not {s.span_id for s in first} & {s.span_id for s in other}


def test_an_older_record_ends_when_its_step_was_written_and_says_so(tmp_path):
    root, *calls = episode_spans(recorded(tmp_path, episode()), RUN, ended_by_s=5000.0)
    assert root.attributes["ajet.time_is_estimated"] is True
    assert (root.ended_s, calls[-1].ended_s) == (5000.0, 5000.0)
    assert calls[-1].started_s == 4998.5


@pytest.mark.parametrize(
    ("status", "error"),
    [(EpisodeStatus.AGENT_ERROR, "ValueError: no"), (EpisodeStatus.TRUNCATED, None)],
)
def test_an_episode_that_failed_is_an_error_and_one_that_was_cut_is_none(tmp_path, status, error):
    one = episode(status=status, error="ValueError: no", turns=(), reward=None)
    (root,) = episode_spans(recorded(tmp_path, one), RUN, 0.0)
    assert root.error == error
    assert "gen_ai.evaluation.score.value" not in root.attributes


def test_a_call_that_no_reply_made_has_no_arguments(tmp_path):
    first, second = two_turns()
    late = replace(first, reply=first.reply | {"tool_calls": [TOOL]})
    early = (TimedCall("tool python", 9.0, 9.5), TimedCall("tool other", 10.6, 10.7))
    one = replace(episode(turns=(late, second)), began_unix_s=1.0, calls=early)
    tools = [s for s in episode_spans(recorded(tmp_path, one), RUN, 0.0) if s.category == "tool"]
    assert [(tool.inputs, tool.outputs) for tool in tools] == [(None, None)] * 2


def test_episodes_at_a_time_have_slots_of_their_own_in_perfetto(tmp_path):
    def made(member, began_s):
        one = replace(episode(member=member, turns=()), began_unix_s=began_s, calls=CALLS[-1:])
        return episode_spans(recorded(tmp_path / str(member), one), RUN, 0.0)

    for member in range(3):
        (tmp_path / str(member)).mkdir()
    episodes = [made(0, 100.0), made(1, 105.0), made(2, 113.0)]  # each takes 13 s
    metrics = {"step": 1, "time": 130.0, "rollout/seconds": 26.0, "update/seconds": 4.0}
    events = chrome_trace(episodes, [metrics])["traceEvents"]
    slots = [(e["tid"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e.get("cat") == "episode"]
    assert slots == [(0, 100.0, 13.0), (1, 105.0, 13.0), (0, 113.0, 13.0)]
    phases = [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e.get("cat") == "phase"]
    assert phases == [("rollout", 100.0, 26.0), ("update", 126.0, 4.0)]


def test_an_episode_whose_task_says_nothing_has_the_name_of_its_task_as_input(tmp_path):
    [root, *_] = episode_spans(recorded(tmp_path, episode(query="", turns=())), RUN, 5000.0)
    assert root.inputs == "task-0"
