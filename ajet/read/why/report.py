"""The report of `ajet why RUN`: whether the reward moves, and what holds it back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.record.run_checks import half_width
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.report import Report
from ajet.read.why.causes import Cause, causes
from ajet.read.why.evidence import Evidence

MIN_STEPS = 6
"""Fewer steps say nothing about a trend."""


@dataclass(frozen=True)
class WhyReport(Report):
    """`trend` is "rises", "falls", "flat" or "too short"; `reward` and `held_out` are those of the
    first and of the last steps."""

    run: str
    num_steps: int
    trend: str
    reward: tuple[float, float] | None
    held_out: tuple[float, float] | None
    causes: list[Cause]

    @classmethod
    def of(cls, run: RecordedRun) -> WhyReport:
        """Reads the run folder; works during the run, too. Raises `CheckpointError` for the folder
        of a client's run, which has no agent, and `DataError` for one on given replies."""
        run.require_agent("ajet why")
        if run.config.ajet.rows is not None:
            raise DataError(
                f"{run.folder.path}: a run on given replies has no reward; see its curves with "
                "ajet view",
                code=Code.OPTION_VALUE,
            )
        evidence = Evidence.of(run)
        trend, reward = reward_trend(evidence)
        held_out = [metrics["held_out/success"] for _, metrics in evidence.held_out]
        return cls(
            str(run.folder.path),
            len(evidence.steps),
            trend,
            reward,
            (held_out[0], held_out[-1]) if len(held_out) > 1 else None,
            causes(evidence),
        )

    def as_plain(self) -> dict[str, Any]:
        """Returns the fields, and the sentences that are shown around the causes."""
        return {**asdict(self), "headline": self.headline(), "advice": self.advice()}

    def shown(self) -> RenderableType:
        lines = [Text(self.headline(), style="bold")]
        for number, cause in enumerate(self.causes, 1):
            lines += [Text(), Text(f"{number}. {cause.found}"), Text(f"   {cause.change}", "green")]
            if cause.episode_id is not None:
                lines.append(Text(f"   see episode {cause.episode_id} in ajet view {self.run}"))
        if not self.causes:
            lines += [Text(), Text(self.advice())]
        return Lines(*lines)

    def headline(self) -> str:
        """One sentence about the reward of training and success on held-out tasks."""
        if self.reward is None:
            return f"Steps so far: {self.num_steps}, too few for a trend of the reward"
        first, last = self.reward
        verb = "is flat" if self.trend == "flat" else self.trend
        text = f"The reward {verb}, {first:.3g} to {last:.3g} in {self.num_steps} steps"
        if self.held_out is not None:
            text += f"; held-out success {self.held_out[0]:.0%} to {self.held_out[1]:.0%}"
        return text

    def advice(self) -> str:
        """One sentence for a run in which nothing was found."""
        if self.causes:
            return ""
        if self.trend == "rises":
            return "Nothing found that holds it back; more steps may raise it further."
        return (
            "Nothing found that holds it back. Give it more steps, a higher learning rate, or more "
            "episodes a task; docs/reward_does_not_move.md has the questions in order."
        )


def reward_trend(evidence: Evidence) -> tuple[str, tuple[float, float] | None]:
    """Compares the mean reward of the first steps with that of the last, a third of the run each:
    it moves if the difference is beyond its 99.9 % interval (Welch's, over steps)."""
    rewards = [value for value in evidence.values("reward/mean") if math.isfinite(value)]
    if len(rewards) < MIN_STEPS:
        return "too short", None
    number = max(MIN_STEPS // 2, len(rewards) // 3)
    first, last = rewards[:number], rewards[-number:]
    rise = fmean(last) - fmean(first)
    trend = "flat" if abs(rise) <= half_width(first, last) else "rises" if rise > 0 else "falls"
    return trend, (fmean(first), fmean(last))
