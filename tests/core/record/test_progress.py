import io

import pytest

from ajet.core.record.progress import TrainingProgress, sparkline
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import CurrentCall

METRICS = {
    "reward/mean": 0.4125,
    "reward/success": 0.375,
    "rollout/episodes_per_s": 31.25,
    "rollout/tokens_per_s": 5120.4,
}


class Clock:
    """Time that the test moves by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def test_a_pipe_gets_one_plain_line_a_step(clock):
    out = console(terminal=False)
    with TrainingProgress(10, out, clock=clock) as progress:
        progress.phase("held-out", total=200)
        progress.held_out(0, 0.31, "sampled")
        progress.phase("rollout", total=256)
        progress.advance(256)
        clock.now = 6.0
        progress.step_done(1, METRICS)
    assert out.file.getvalue() == (
        "step 0/10  held-out success 0.310, sampled\n"
        "step 1/10  reward 0.412  success 0.375  31.2 ep/s  5,120 tok/s  elapsed 0:06  left 0:54\n"
    )


def test_a_terminal_gets_a_panel_with_bars_and_numbers(clock):
    out = console(terminal=True)
    progress = TrainingProgress(10, out, title="math", clock=clock)
    progress.held_out(0, 0.31, "sampled")
    for step in (1, 2):
        progress.phase("rollout", total=256)
        clock.now += 30
        progress.step_done(step, METRICS)
    progress.held_out(2, 0.5, "sampled")
    progress.phase("rollout", total=256)
    progress.advance(64)
    clock.now += 10
    out.file.truncate(0)
    out.print(progress)
    shown = out.file.getvalue()
    for part in ("ajet · math", "2/10", "3:50 left", "64/256", "0:30 left", "37.5%"):
        assert part in shown
    assert "31.0% → 50.0%" in shown and "31.2 ep/s  5,120 tok/s" in shown


def test_the_share_of_groups_with_signal_is_in_the_line_and_in_the_panel(clock):
    signal = {"groups/with_advantage": 12.0, "groups/total": 32.0}
    pipe = console(terminal=False)
    with TrainingProgress(10, pipe, clock=clock) as progress:
        progress.step_done(1, METRICS | signal)
    assert "5,120 tok/s  signal 12/32 groups  elapsed" in pipe.file.getvalue()
    out = console(terminal=True)
    progress = TrainingProgress(10, out, clock=clock)
    progress.step_done(1, METRICS | signal)
    out.print(progress)
    assert "12/32  " in out.file.getvalue()


def test_the_panel_keeps_the_last_warnings_and_who_is_waited_for_in_view(clock):
    out = console(terminal=True)
    progress = TrainingProgress(10, out, clock=clock)
    for step, name in enumerate(["no_signal", "truncation", "sampler_gap", "entropy_collapse"], 1):
        progress.warned(step, name)
    progress.waiting("31 episodes wait for 000003-train-0004-02: tool get_weather, for 12 s")
    out.print(progress)
    shown = " ".join(out.file.getvalue().replace("│", " ").split())  # long lines are folded
    assert "31 episodes wait for 000003-train-0004-02: tool get_weather, for 12 s" in shown
    assert "truncation (step 2), sampler gap (step 3), entropy collapse (step 4)" in shown
    assert "1 earlier" in shown
    progress.waiting("")
    out.file.truncate(0)
    out.print(progress)
    assert "wait for" not in out.file.getvalue()[-2000:]


def test_the_time_left_follows_the_last_steps(clock):
    progress = TrainingProgress(20, console(terminal=False), clock=clock)
    assert progress.seconds_left is None
    clock.now = 100.0  # set-up counts for no step
    progress.phase("rollout")
    for step in range(1, 13):
        clock.now += 50 if step <= 2 else 2  # the last ten took 2 s each
        progress.step_done(step, {})
    assert progress.seconds_left == 16.0


def test_a_phase_without_a_count_takes_as_long_as_the_last_time(clock):
    progress = TrainingProgress(5, console(terminal=False), clock=clock)
    progress.phase("update")
    clock.now = 8.0
    progress.phase("rollout")
    progress.phase("update")
    clock.now = 11.0
    assert progress.phase_seconds_left == 5.0


def test_a_resumed_run_counts_on(clock):
    out = console(terminal=False)
    progress = TrainingProgress(10, out, first_step=9, clock=clock)
    progress.phase("rollout")
    clock.now = 3.0
    progress.step_done(9, {})
    assert out.file.getvalue() == "step 9/10  elapsed 0:03  left 0:03\n"


def test_an_exception_leaves_the_terminal_in_order(clock):
    out = console(terminal=True)
    with pytest.raises(RuntimeError), TrainingProgress(3, out, clock=clock):
        raise RuntimeError
    assert out.file.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_sparkline_spans_lowest_to_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([3, 3], 8) == "▁▁"
    assert sparkline([], 8) == ""


def test_episodes_that_end_during_an_update_are_no_part_of_it(clock):
    progress = TrainingProgress(10, out := console(terminal=False), clock=clock)
    progress.phase("update")
    progress.fraction(0.25)
    progress.advance(8)
    out.print(progress)
    assert "25%" in out.file.getvalue()


def ended(status, error=None):
    return Trajectory(WORKFLOW_TASK, (), status, failure=error)


WORKFLOW_TASK = WorkflowTask(Task("t", "?"), "e", "g", 0, 1, "train", 3)


def shown_of(progress, out):
    out.file.truncate(0)
    out.print(progress)
    return out.file.getvalue()


def test_the_oldest_episodes_in_flight_are_named_with_their_calls(clock):
    out = console(terminal=True)
    progress = TrainingProgress(10, out, clock=clock)
    progress.phase("rollout", total=8)
    calls = {f"e-{n}": CurrentCall("the model", 2, is_model=True, episode_s=n) for n in range(5)}
    calls["e-9"] = CurrentCall("tool get_weather", 12, episode_s=75)
    progress.in_flight(calls)
    shown = shown_of(progress, out)
    assert "6 episodes in flight  5 in the model, 1 elsewhere" in shown
    lines = [" ".join(line.strip("│ \n").split()) for line in shown.splitlines() if "e-" in line]
    assert lines == [
        "e-9 1:15 tool get_weather, for 0:12",
        "e-4 0:04 the model, for 0:02",
        "e-3 0:03 the model, for 0:02",
    ]
    progress.in_flight({})
    assert "in flight" not in shown_of(progress, out)


def test_failures_of_the_step_are_shown_by_reason_with_the_last_error(clock):
    out = console(terminal=True)
    progress = TrainingProgress(10, out, clock=clock)
    progress.phase("rollout", total=8)
    progress.episode_ended(ended(EpisodeStatus.OK))
    progress.episode_ended(ended(EpisodeStatus.TRUNCATED, "cut"))
    assert "last failure" not in shown_of(progress, out)
    for error in ("KeyError: 'a'", "ValueError: b\x1b[2J"):
        progress.episode_ended(ended(EpisodeStatus.AGENT_ERROR, error))
    progress.episode_ended(ended(EpisodeStatus.TIMEOUT))
    shown = shown_of(progress, out)
    assert "2 agent_error, 1 timeout" in shown and "5/8" in shown
    assert "last failure  ValueError: b\\x1b[2J" in shown
    progress.step_done(1, METRICS)
    assert "agent_error" not in shown_of(progress, out)


def test_success_and_signal_have_their_course(clock):
    out = console(terminal=True)
    progress = TrainingProgress(10, out, clock=clock)
    for step, share in enumerate((0.0, 0.5, 1.0), 1):
        signal = {"groups/with_advantage": 8 * share, "groups/total": 8.0}
        progress.step_done(step, METRICS | signal | {"reward/success": share})
    shown = shown_of(progress, out)
    assert "100.0%  ▁▅█" in shown and "8/8  ▁▅█" in shown
