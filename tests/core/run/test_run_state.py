"""What a checkpoint keeps of a run comes back as it was, and from which one a run resumes."""

import json
from pathlib import Path

import pytest
import torch

from ajet.core.checkpoint.checkpoint import checked_state
from ajet.core.errors import CheckpointError
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.run.run_state import RunState, find_resume_point
from tests.core.update.update_fixtures import save_checkpoint


def state_of(content):
    return checked_state(RunState, content, Path("c"))


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
        explorer={
            "next": 5,
            "cursor": {"taken": 9},
            "in_flight": [(3, 1), (4, 0)],
            "aside": 0,
            "unseen": [3, 4],
        },
    )
    assert state_of(json.loads(json.dumps(state.as_json()))) == state


def test_a_state_without_timelines_has_none_counted():
    content = RunState().as_json()
    del content["timelines"]
    assert state_of(content).timelines == TimelineCounts()


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"step": "x"}, "step: Input should be a valid integer"),
        ({"num_episodes": None}, "num_episodes: "),
        ({"seconds": "x"}, "seconds: "),
        ({"cursor": 5}, "cursor: "),
        ({"begun": "never"}, "its content: Value error, Invalid isoformat string"),
        ({"held_out": {"before": 5}}, "held_out.before: "),
        ({"timelines": {"calls": "x"}}, "timelines.calls: "),
        ({"explorer": {"next": 1}}, "explorer.cursor: Field required"),
        ({"other": 5}, "other: "),
    ],
)
def test_a_state_of_another_shape_is_one_line_that_names_the_checkpoint(changes, where):
    with pytest.raises(CheckpointError) as caught:
        state_of(RunState().as_json() | changes)
    assert str(caught.value).startswith(f"checkpoint c cannot be used: state.json: {where}")
    assert "\n" not in str(caught.value)


def test_success_is_the_mean_over_the_held_out_tasks():
    state = RunState(held_out={"before": {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0}})
    assert state.success("before") == 0.375
    assert state.success("after") is None


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        yield folder


def save(folder, *steps):
    for step in steps:
        tensors = {"model.a": torch.full((2,), float(step)), "b": torch.zeros(1)}
        save_checkpoint(folder.checkpoints, step, tensors, {"run": {"step": step}}, keep=9)


def steps(folder):
    return sorted(int(path.name[5:]) for path in folder.checkpoints.glob("step_*"))


def test_auto_is_the_newest_whole_checkpoint_or_the_beginning(folder):
    assert find_resume_point(folder, "auto") is None
    save(folder, 1, 2)
    found = find_resume_point(folder, "auto")
    assert (found.step, found.state, found.path.name) == (2, {"run": {"step": 2}}, "step_000002")
    assert steps(folder) == [1, 2]


def test_disable_begins_anew_whatever_is_there(folder):
    save(folder, 1, 2)
    assert find_resume_point(folder, "disable") is None


def test_a_path_is_that_checkpoint_and_later_ones_are_set_aside(folder):
    save(folder, 1, 2, 3)
    found = find_resume_point(folder, str(folder.checkpoints / "step_000002"))
    assert (found.step, found.state) == (2, {"run": {"step": 2}})
    assert steps(folder) == [1, 2]
