"""Watches a rollout: shows what its episodes do, reports those that everybody waits for, and ends
those that somebody asks to stop.

If the endpoint computes in waves, everybody waits for the live episodes that do not call the model;
without waves, for the last ones of the step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loguru import logger

from ajet.core.inference.endpoint import WaveEndpoint
from ajet.core.rollout.episode import EpisodeExecutor
from ajet.core.rollout.request import RolloutDisplay
from ajet.core.rollout.stops import BY_A_PERSON, Stop, StopRequests
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import CurrentCall

HELD_UP_S = 10.0
POLL_S = 1.0
MAX_NAMED = 2  # episodes in the line


class RolloutWatch:
    """Watches the episodes of one executor while rollouts are in progress.

    With `max_wave_wait_s` an episode that holds up a wave for longer ends with status timeout. That
    depends on the clock, so it is recorded like a person's stop (stops.py).
    """

    def __init__(
        self,
        episodes: EpisodeExecutor,
        waves: Callable[[], WaveEndpoint | None],
        *,
        max_wave_wait_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._episodes, self._waves = episodes, waves
        self._max_wave_wait_s = max_wave_wait_s
        self._clock = clock
        self._requests: StopRequests | None = None
        self._run_folder = "RUN"
        self._display: RolloutDisplay | None = None
        self._num_rollouts = 0
        self._task: asyncio.Task[None] | None = None
        self._stopping: dict[str, Stop] = {}
        self._wave: tuple[int, float] = (-1, 0.0)  # number of the next wave, and since when
        self._alone: tuple[str, float] = ("", 0.0)  # the only late episode, and since when
        self._reported_step, self._has_reported_one = "", False
        self._is_waiting = False

    def attach(
        self, requests: StopRequests, run_folder: str, display: RolloutDisplay | None
    ) -> None:
        """Connects the watch with its run: its requests to stop an episode, and its display.
        `run_folder` is what a person types after `ajet inspect stop`."""
        self._requests, self._run_folder, self._display = requests, run_folder, display
        self._episodes.set_stops(requests.decided)

    def __enter__(self) -> RolloutWatch:
        self._num_rollouts += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._num_rollouts -= 1
        if not self._num_rollouts and self._task is not None:
            self._task.cancel()
            self._task = None
            self._show("")
            if self._display is not None:
                self._display.in_flight({})

    def ended(self, trajectory: Trajectory) -> None:
        """Records the attempts of an ended episode that were stopped."""
        for attempt in trajectory.attempts:
            stop = self._stopping.pop(attempt.episode_id, None)
            if stop is not None and self._requests is not None:
                self._requests.ended(attempt, stop)

    def look(self) -> None:
        """Looks once: takes requests, shows what runs, and reports or ends late episodes."""
        for episode_id in self._requests.pending() if self._requests is not None else ():
            self._stop(episode_id, Stop(EpisodeStatus.STOPPED, BY_A_PERSON))
        for episode_id, stop in list(self._stopping.items()):
            # Repeated, because a stop waits for a number of turns: a call of the model that fails
            # meanwhile leaves none.
            if not self._episodes.stop(episode_id, stop):
                del self._stopping[episode_id]  # it ended by itself meanwhile
        calls = self._episodes.calls()
        if self._display is not None:
            self._display.in_flight(calls)
        self._say(*self._held_up(calls))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                self.look()
            except OSError as error:  # the run continues without requests
                logger.warning(f"requests of `ajet inspect stop` cannot be read: {error}")

    def _stop(self, episode_id: str, stop: Stop) -> None:
        if self._episodes.stop(episode_id, stop):
            self._stopping[episode_id] = stop
            if self._requests is not None:
                self._requests.take(episode_id)

    def _held_up(self, calls: Mapping[str, CurrentCall]) -> tuple[dict[str, CurrentCall], int]:
        """Returns the calls of the episodes that are waited for, by episode, and how many wait."""
        waves = self._waves()
        waiting = waves.waiting() if waves is not None else None
        if waiting is None:
            self._wave = (-1, 0.0)
            # Without waves nobody waits as long as one of them uses the model, or has just begun.
            if any(call.is_model or call.seconds < HELD_UP_S for call in calls.values()):
                return {}, 0
            return dict(calls), 0
        if waiting.wave != self._wave[0]:
            self._wave = (waiting.wave, self._clock())
        # A call that began before its wave was due has held up nobody until then.
        waited_s = self._clock() - self._wave[1]
        late = {
            name: replace(calls[name], seconds=min(calls[name].seconds, waited_s))
            for name in waiting.missing
            if name in calls and not calls[name].is_model
        }
        bound = self._max_wave_wait_s
        for name, call in late.items():
            if bound is not None and call.seconds >= bound and name not in self._stopping:
                reason = (
                    f"it held up the other episodes for {bound:g} s "
                    f"(ajet.rollout.max_wave_wait_s), in {call.name}"
                )
                self._stop(name, Stop(EpisodeStatus.TIMEOUT, reason))
        return late, waiting.num_waiting

    def _say(self, late: Mapping[str, CurrentCall], num_waiting: int) -> None:
        """Shows who is waited for, and logs it once a step; once more if the first line named
        several episodes and one of them remains."""
        names = sorted(late, key=lambda name: -late[name].seconds)
        is_alone = self._is_slow_alone(names, late)
        late_names = [name for name in names if late[name].seconds >= HELD_UP_S]
        if not late_names:
            self._show("")
            return
        late_calls = "; ".join(
            f"{name}: {late[name].name}, for {late[name].seconds:.0f} s"
            for name in late_names[:MAX_NAMED]
        )
        num_more = len(late_names) - MAX_NAMED
        more = f"; and {num_more} more" if num_more > 0 else ""
        who = f"{num_waiting} episodes wait" if num_waiting else "the step waits"
        text = f"{who} for {late_calls}{more}"
        self._show(text)
        step = "-".join(names[0].split("-")[:2])  # 000003-train of 000003-train-0004-02
        if step != self._reported_step:
            self._reported_step, self._has_reported_one = step, False
        elif self._has_reported_one or not is_alone:
            return
        self._has_reported_one = is_alone
        advice = f"; `ajet inspect stop {self._run_folder} {names[0]}` ends it" if is_alone else ""
        logger.warning(text + advice)

    def _is_slow_alone(self, names: Sequence[str], late: Mapping[str, CurrentCall]) -> bool:
        """Tells whether the slowest episode has been waited for alone for at least half of its
        time. If others are nearly as late, the tool or the machine is slow, and ending the one that
        happens to be last would not help."""
        slowest = late[names[0]].seconds if names else 0.0
        if not names or (len(names) > 1 and late[names[1]].seconds * 2 >= slowest):
            self._alone = ("", 0.0)
            return False
        if self._alone[0] != names[0]:
            self._alone = (names[0], self._clock())
        return (self._clock() - self._alone[1]) * 2 >= slowest

    def _show(self, text: str) -> None:
        if text or self._is_waiting:
            self._is_waiting = bool(text)
            if self._display is not None:
                self._display.waiting(text)
