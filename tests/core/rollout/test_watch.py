"""Who holds up a rollout, with calls and waves made by hand."""

import pytest

from ajet.core.inference.endpoint import WaveWait
from ajet.core.rollout.stops import StopRequests, held_request
from ajet.core.rollout.watch import RolloutWatch
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.user_code.activity import CurrentCall

A, B, C = (f"000003-train-0000-0{n}" for n in range(3))


class Episodes:
    """What each episode does, as the test says; keeps which are to stop."""

    def __init__(self, **calls):
        self.now, self.stopped = calls, {}

    def calls(self):
        return self.now

    def stop(self, episode_id, stop):
        if episode_id in self.now:
            self.stopped[episode_id] = stop
        return episode_id in self.now

    def set_stops(self, stops): ...


class Waves:
    def __init__(self, wait):
        self.wait = wait

    def waiting(self):
        return self.wait


class Run:
    """A watch whose clock the test moves, and what it showed."""

    def __init__(self, tmp_path, episodes, waves=None, **options):
        self.now, self.shown, self.episodes = 0.0, [], episodes
        self.requests = StopRequests(tmp_path / "stops", tmp_path / "stopped.jsonl")
        self.watch = RolloutWatch(episodes, lambda: waves, clock=lambda: self.now, **options)
        self.watch.attach(self.requests, "my_run", self)

    def waiting(self, text):
        self.shown.append(text)

    def in_flight(self, calls):
        self.running = dict(calls)

    def look(self, after_s):
        self.now += after_s
        self.watch.look()


def tool(seconds, name="tool get_weather"):
    return CurrentCall(name, seconds)


MODEL = CurrentCall("the model", 100.0, is_model=True)


def test_a_wave_that_waits_names_the_episode_and_its_call_after_ten_seconds(tmp_path, warnings):
    run = Run(tmp_path, Episodes(**{A: MODEL, B: tool(60)}), Waves(WaveWait(7, 31, (B,))))
    run.look(0)
    run.look(9)
    assert run.shown == []
    run.look(2)
    line = f"31 episodes wait for {B}: tool get_weather, for 11 s"
    assert run.shown == [line]  # since the wave waits, not since the call began
    assert warnings == [f"{line}; `ajet inspect stop my_run {B}` ends it"]


def test_the_next_wave_begins_to_wait_anew(tmp_path, warnings):
    waves = Waves(WaveWait(7, 31, (B,)))
    run = Run(tmp_path, Episodes(**{B: tool(60)}), waves)
    run.look(0)
    waves.wait = WaveWait(8, 31, (B,))
    run.look(12)
    run.look(9)
    assert run.shown == []


def test_the_log_says_it_once_and_the_display_shows_it_until_it_is_over(tmp_path, warnings):
    waves = Waves(WaveWait(7, 31, (A, B)))
    run = Run(tmp_path, Episodes(**{A: tool(60), B: tool(90, "judge J")}), waves)
    run.look(0)
    run.look(12)
    run.look(1)
    waves.wait = None
    run.episodes.now = {A: MODEL}
    run.look(1)
    run.look(1)
    assert [bool(text) for text in run.shown] == [True, True, False]
    assert f"{A}: tool get_weather, for 13 s; {B}: judge J, for 13 s" in run.shown[1]
    assert len(warnings) == 1


@pytest.mark.parametrize("pause_s", [0.5, 3, 11])
def test_a_step_that_a_slow_tool_holds_up_is_reported_once_and_nobody_is_to_be_stopped(
    tmp_path, warnings, pause_s
):
    """A queue of programs drains on a busy machine: again and again another episode is its head."""
    episodes, waves = Episodes(), Waves(None)
    run = Run(tmp_path, episodes, waves)
    for step in (3, 4):
        queue = [f"00000{step}-train-0000-{n:02}" for n in range(40)]
        for drained in range(40):
            episodes.now = dict.fromkeys(queue[drained:], tool(600, "tool execute_python_code"))
            waves.wait = WaveWait(step, 139 + drained, tuple(queue[drained:]))
            run.look(pause_s)
    assert len(warnings) == 2
    assert "000003-train-0000" in warnings[0] and "000004-train-0000" in warnings[1]
    assert not any("ajet inspect stop" in line for line in warnings)


def test_an_episode_is_slow_alone_where_the_others_have_only_begun(tmp_path, warnings):
    episodes = Episodes(**{A: tool(60), B: tool(2)})
    run = Run(tmp_path, episodes, Waves(WaveWait(7, 139, (A, B))))
    for _ in range(60):
        run.look(1)
    assert warnings == [
        f"139 episodes wait for {A}: tool get_weather, for 10 s; "
        f"`ajet inspect stop my_run {A}` ends it"
    ]


def test_the_last_of_several_that_stays_as_long_again_is_the_one_to_stop(tmp_path, warnings):
    episodes, waves = Episodes(**{A: tool(600), B: tool(600)}), Waves(WaveWait(7, 139, (A, B)))
    run = Run(tmp_path, episodes, waves)
    for _ in range(13):
        run.look(1)
    episodes.now, waves.wait = {A: tool(600)}, WaveWait(7, 139, (A,))
    for _ in range(60):
        run.look(1)
    assert [("ajet inspect stop" in line) for line in warnings] == [False, True]
    assert f"{A}: tool get_weather, for 26 s" in warnings[1]


def test_an_episode_that_has_just_begun_its_call_holds_up_nobody(tmp_path, warnings):
    run = Run(tmp_path, Episodes(**{B: tool(3)}), Waves(WaveWait(7, 31, (B,))))
    run.look(0)
    run.look(20)
    assert run.shown == [] and warnings == []


@pytest.mark.parametrize(
    ("calls", "is_said"),
    [
        ({A: tool(30), B: tool(12)}, True),
        ({A: tool(30), B: tool(2)}, False),  # B has only begun
        ({A: tool(30), B: MODEL}, False),  # B is computed meanwhile
        ({}, False),
    ],
)
def test_without_waves_a_step_waits_when_no_episode_calls_the_model(
    tmp_path, warnings, calls, is_said
):
    run = Run(tmp_path, Episodes(**calls))
    run.look(0)
    assert bool(run.shown) == is_said
    if is_said:
        assert run.shown[0].startswith(f"the step waits for {A}: tool get_weather, for 30 s; {B}")


def test_a_bound_ends_the_episode_whose_call_holds_up_the_wave_for_longer(tmp_path, warnings):
    waves = Waves(WaveWait(7, 31, (A, B)))
    calls = {A: tool(60), B: tool(2)}
    run = Run(tmp_path, Episodes(**calls), waves, max_wave_wait_s=5.0)
    run.look(0)
    run.look(4)
    assert run.episodes.stopped == {}
    run.look(2)
    assert list(run.episodes.stopped) == [A]
    stop = run.episodes.stopped[A]
    assert stop.status is EpisodeStatus.TIMEOUT
    assert stop.reason == (
        "it held up the other episodes for 5 s (ajet.rollout.max_wave_wait_s), in tool get_weather"
    )


def test_a_request_of_an_episode_that_runs_is_taken_and_others_are_left(tmp_path):
    run = Run(tmp_path, Episodes(**{A: tool(1)}))
    folder = tmp_path / "stops"
    with held_request(folder / A), held_request(folder / B), held_request(folder / "notes.txt"):
        run.look(0)
    assert list(run.episodes.stopped) == [A]
    assert sorted(p.name for p in folder.iterdir()) == sorted([f"{A}.taken", B, "notes.txt"])


def test_what_runs_is_shown_at_each_look_and_nothing_after_the_rollout(tmp_path):
    episodes = Episodes(**{A: MODEL, B: tool(3)})
    run = Run(tmp_path, episodes)
    run.look(1)
    assert run.running == {A: MODEL, B: tool(3)}


async def test_the_display_is_cleared_when_the_last_rollout_ends(tmp_path):
    run = Run(tmp_path, Episodes(**{A: MODEL}))
    with run.watch, run.watch:
        run.look(1)
        assert run.running == {A: MODEL}
    assert run.running == {}
