"""Displays a training run: reward, success, speed and the time left.

A terminal gets a live panel; a pipe or a log file gets one plain line a step. Metrics that are not
there are left out.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ajet.core.text.terminal import Console, can_redraw
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import CurrentCall

RECENT_STEPS = 10  # the time left is estimated from these, as late steps take longer
LEVELS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 16
MAX_WIDTH = 92
SHOWN_WARNINGS = 3
SHOWN_EPISODES = 3
MAX_CALL_WIDTH = 56


class TrainingProgress:
    """Displays one run live; `first_step` is 1, or the step after the one resumed from."""

    def __init__(
        self,
        total_steps: int,
        console: Console | None = None,
        *,
        title: str = "training",
        first_step: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps = total_steps
        self.console = console or Console()
        self._title = title
        self._clock = clock
        self._steps_done = first_step - 1
        self._started = self._step_started = self._phase_started = clock()
        self._phase, self._phase_total, self._phase_done = "set-up", 0.0, 0.0
        self._is_fraction = False
        self._phase_seconds: dict[str, float] = {}
        self._step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._metrics: Mapping[str, float] = {}
        self._rewards: list[float] = []
        self._successes: list[float] = []
        self._signal: list[float] = []
        self._held_out: list[tuple[int, float]] = []
        self._warned: list[tuple[int, str]] = []
        self._waiting = ""
        self._calls: Mapping[str, CurrentCall] = {}
        self._failed: Counter[str] = Counter()
        self._last_error = ""
        self._live: Live | None = None

    def __enter__(self) -> TrainingProgress:
        if can_redraw(self.console):
            self._live = Live(self, console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._phase = "done" if error is None else "stopped"
            self._live.stop()
            self._live = None

    def phase(self, name: str, total: float = 0) -> None:
        """Starts a phase; `total` is the number that `advance` counts to (0: unknown)."""
        now = self._clock()
        self._phase_seconds[self._phase] = now - self._phase_started
        if self._phase == "set-up":
            self._step_started = now  # loading the model does not count as a step
        self._phase, self._phase_total, self._phase_done = name, total, 0.0
        self._is_fraction = False
        self._phase_started = now

    def episode_ended(self, trajectory: Trajectory) -> None:
        """Counts an ended episode; a failure is shown with its reason until the next step."""
        self.advance()
        if trajectory.outcome not in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED):
            self._failed[str(trajectory.outcome)] += 1
            self._last_error = trajectory.error or self._last_error

    def advance(self, amount: float = 1) -> None:
        """Adds to what is done of the phase."""
        # On trinity, episodes end during the update, whose share is reported separately.
        if not self._is_fraction:
            self._phase_done += amount

    def fraction(self, done: float) -> None:
        """Sets the share of the phase that is done, from 0 to 1."""
        self._is_fraction = True
        self._phase_total, self._phase_done = 1.0, done

    def held_out(self, step: int, success: float, decoding: str) -> None:
        """Shows the success on held-out tasks after `step` steps, from 0 to 1."""
        self._held_out.append((step, success))
        if self._live is None:
            self._line(
                f"step {step}/{self.total_steps}  held-out success {success:.3f}, {decoding}"
            )

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a finished step until the next one's."""
        now = self._clock()
        self._step_seconds.append(now - self._step_started)
        self._step_started = now
        self._steps_done, self._metrics = step, metrics
        self._failed.clear()
        self._last_error = ""
        self._successes += _finite(metrics.get("reward/success"))
        if "groups/with_advantage" in metrics and metrics.get("groups/total"):
            self._signal.append(metrics["groups/with_advantage"] / metrics["groups/total"])
        self._rewards += _finite(metrics.get("reward/mean"))
        if self._live is None:
            self._line("  ".join([f"step {step}/{self.total_steps}", *self._facts()]))

    def warned(self, step: int, name: str) -> None:
        """Keeps the name of a warning in view; the log has its text."""
        self._warned.append((step, name.replace("_", " ")))

    def waiting(self, text: str) -> None:
        """Shows what everybody waits for, until it is called with an empty text."""
        self._waiting = text

    def in_flight(self, calls: Mapping[str, CurrentCall]) -> None:
        """Shows what each running episode does, the ones that began first by name."""
        self._calls = calls

    def note(self, text: str) -> None:
        """Prints one line that stays above the display."""
        self._line(text)

    @property
    def seconds_left(self) -> float | None:
        """Returns the seconds until the end of the run at the pace of the last steps, if any."""
        if not self._step_seconds:
            return None
        pace = sum(self._step_seconds) / len(self._step_seconds)
        spent = min(self._clock() - self._step_started, pace)
        return max(0.0, pace * (self.total_steps - self._steps_done) - spent)

    @property
    def phase_seconds_left(self) -> float | None:
        """Returns the seconds until the end of the phase, by its progress or its last duration."""
        spent = self._clock() - self._phase_started
        if self._phase_total and self._phase_done:
            return spent * max(0.0, self._phase_total / self._phase_done - 1)
        before = self._phase_seconds.get(self._phase)
        return None if before is None else max(0.0, before - spent)

    def __rich__(self) -> RenderableType:
        return Panel(
            Group(self._bars(), Text(), self._numbers(), *self._episodes(), *self._alerts()),
            title=f"[bold]ajet[/] · {self._title}",
            title_align="left",
            subtitle=f"{_clock_text(self._clock() - self._started)} elapsed",
            subtitle_align="right",
            border_style="cyan",
            padding=(1, 2),
            width=min(MAX_WIDTH, self.console.width),
        )

    def _bars(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=10, style="bold")
        table.add_column(ratio=1)
        table.add_column(width=9, justify="right", style="cyan")
        table.add_column(width=13, justify="right", style="dim")
        is_running = self._phase not in ("done", "stopped")
        count = f"{self._steps_done}/{self.total_steps}"
        run_bar = ProgressBar(max(self.total_steps, 1), self._steps_done, complete_style="green")
        table.add_row("training", run_bar, count, _left(self.seconds_left) if is_running else "")
        if not is_running:
            return table
        has_total = self._phase_total > 0
        bar = ProgressBar(
            self._phase_total or 1, self._phase_done, pulse=not has_total, complete_style="cyan"
        )
        count = f"{self._phase_done:.0f}/{self._phase_total:.0f}" if self._phase_total > 1 else ""
        if self._phase_total == 1:
            count = f"{self._phase_done:.0%}"
        table.add_row(self._phase, bar, count, _left(self.phase_seconds_left))
        return table

    def _numbers(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=10, style="bold")
        table.add_column(ratio=1)
        table.add_column(width=10, style="bold")
        table.add_column(ratio=1)
        reward = Text(_number(self._metrics.get("reward/mean"), ".3f"))
        reward.append(f"  {sparkline(self._rewards, SPARKLINE_WIDTH)}", style="green")
        success = Text(_number(self._metrics.get("reward/success"), ".1%"))
        success.append(f"  {sparkline(self._successes, SPARKLINE_WIDTH)}", style="green")
        episodes = _number(self._metrics.get("rollout/episodes_per_s"), ".1f")
        tokens = _number(self._metrics.get("rollout/tokens_per_s"), ",.0f")
        table.add_row("reward", reward, "success", success)
        speed = f"{episodes} ep/s  {tokens} tok/s"
        table.add_row("held-out", self._held_out_text(), "speed", speed)
        signal = _signal_text(self._metrics)
        signal.append(f"  {sparkline(self._signal, SPARKLINE_WIDTH)}", style="green")
        table.add_row("signal", signal, "failed", self._failures())
        return table

    def _failures(self) -> Text:
        """Returns how many episodes of this step failed, by reason."""
        if not self._failed:
            return Text("none" if self._calls or self._metrics else "–", style="dim")
        counts = ", ".join(f"{number} {name}" for name, number in self._failed.most_common())
        return Text(counts, style="yellow")

    def _episodes(self) -> list[RenderableType]:
        """Returns the number of running episodes, and what the oldest ones do."""
        is_over = self._phase in ("done", "stopped")
        if not self._calls or is_over:
            return []
        in_model = sum(call.is_model for call in self._calls.values())
        elsewhere = len(self._calls) - in_model
        head = Text(f"{len(self._calls)} episodes in flight", style="bold")
        head.append(f"  {in_model} in the model, {elsewhere} elsewhere", style="dim")
        table = Table.grid(padding=(0, 2))
        oldest = sorted(self._calls.items(), key=lambda item: -item[1].episode_s)
        for name, call in oldest[:SHOWN_EPISODES]:
            does = Text(f"{call.name}, for {_clock_text(call.seconds)}")
            does.truncate(MAX_CALL_WIDTH, overflow="ellipsis")
            table.add_row(name, Text(_clock_text(call.episode_s), style="cyan"), does)
        return [Text(), head, table]

    def _alerts(self) -> list[Text]:
        """Returns what a person should notice: failures, late episodes and the last warnings."""
        alerts: list[Text] = []
        if self._failed and self._last_error:
            alerts.append(Text(f"last failure  {self._last_error}", style="yellow"))
        if self._waiting and self._phase not in ("done", "stopped"):
            alerts.append(Text(self._waiting, style="bold yellow"))
        if self._warned:
            last = ", ".join(
                f"{name} (step {step})" for step, name in self._warned[-SHOWN_WARNINGS:]
            )
            more = len(self._warned) - SHOWN_WARNINGS
            earlier = f", {more} earlier" if more > 0 else ""
            alerts.append(Text(f"warned of  {last}{earlier}", style="yellow"))
        return [Text(), *alerts] if alerts else []

    def _held_out_text(self) -> Text:
        if not self._held_out:
            return Text("–")
        (_, first), (step, last) = self._held_out[0], self._held_out[-1]
        text = Text(f"{first:.1%}")
        if len(self._held_out) > 1:
            style = "bold green" if last > first else "bold"
            text.append(" → ", style="dim").append(f"{last:.1%}", style=style)
        return text.append(f"  step {step}", style="dim")

    def _facts(self) -> list[str]:
        """Returns the parts of the plain line that are known."""
        metrics = (
            ("preference/loss", "loss {:.4f}"),
            ("preference/accuracy", "accuracy {:.3f}"),
            ("update/cross_entropy", "cross-entropy {:.3f}"),
            ("reward/mean", "reward {:.3f}"),
            ("reward/success", "success {:.3f}"),
            ("rollout/episodes_per_s", "{:.1f} ep/s"),
            ("rollout/tokens_per_s", "{:,.0f} tok/s"),
        )
        facts = [
            form.format(self._metrics[name]) for name, form in metrics if name in self._metrics
        ]
        if "groups/with_advantage" in self._metrics and self._metrics.get("groups/total"):
            facts.append(f"signal {_signal_text(self._metrics).plain} groups")
        facts.append(f"elapsed {_clock_text(self._clock() - self._started)}")
        return [*facts, f"left {_clock_text(self.seconds_left)}"]

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws `values` in at most `width` characters, each for the mean of an equal share of them."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round((m - low) / span * top) if span else 0] for m in means)


def _finite(value: float | None) -> list[float]:
    return [] if value is None or not math.isfinite(value) else [value]


def _signal_text(metrics: Mapping[str, float]) -> Text:
    """Returns how many groups of the last step have signal, of how many."""
    total, number = metrics.get("groups/total"), metrics.get("groups/with_advantage")
    if not total or number is None:
        return Text("–")
    return Text(f"{number:.0f}/{total:.0f}", style="" if number else "bold red")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not math.isfinite(value) else format(value, form)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{_clock_text(seconds)} left"


def _clock_text(seconds: float | None) -> str:
    """Formats seconds as 1:05 for minutes and 2:01:05 for hours."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
