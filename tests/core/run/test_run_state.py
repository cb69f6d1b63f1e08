"""What a checkpoint keeps of a run comes back as it was."""

import json

from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.run.run_state import RunState


def test_a_run_state_comes_back_from_json_as_it_was():
    state = RunState(
        step=3,
        num_episodes=96,
        seconds=1.5,
        cursor={"epoch": 1},
        validated_step=2,
        begun="2026-01-02T03:04:05",
        held_out={"before": {"a": 1.0, "b": 0.0}},
        timelines=TimelineCounts(),
        staleness={"0": 7},
        explorer={"planned": 2},
    )
    assert RunState.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_a_state_without_timelines_has_none_counted():
    content = RunState().as_json()
    del content["timelines"]
    assert RunState.from_json(content).timelines == TimelineCounts()


def test_success_is_the_mean_over_the_held_out_tasks():
    state = RunState(held_out={"before": {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0}})
    assert state.success("before") == 0.375
    assert state.success("after") is None
