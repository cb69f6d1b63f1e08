"""The report of `ajet inspect fork`: an episode and its forks as a table, and the turn's value, the
mean over the forks: what to expect from there on, whatever the reply. Success has Wilson's 95 %
interval, the reward Student's t. A fork that failed counts as unsuccessful with reward 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.record.evaluation import IntervalEstimate, mean_of_few, wilson
from ajet.core.record.run_folder import shown_path
from ajet.core.trajectory.trajectory import Trajectory
from ajet.read.reports.report import Report

MAX_SHOWN = 60


@dataclass(frozen=True)
class ForkReport(Report):
    """An episode and its forks from `turn` on, sampled by `subject` and stored in `folder`."""

    original: Trajectory
    forks: Sequence[Trajectory]
    turn: int
    subject: str
    sampling: SamplingParams
    run: str
    folder: Path | None = None

    @cached_property
    def success(self) -> IntervalEstimate:
        return wilson(sum(map(_succeeded, self.forks)), len(self.forks))

    @cached_property
    def reward(self) -> IntervalEstimate:
        return mean_of_few([fork.reward or 0.0 for fork in self.forks])

    def as_plain(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "episode": self.original.episode_id,
            "turn": self.turn,
            "model": self.subject,
            "temperature": self.sampling.temperature,
            "original": self._row(self.original),
            "forks": [self._row(fork) for fork in self.forks],
            "success": self.success.as_json(),
            "reward": self.reward.as_json(),
        }

    def shown(self) -> RenderableType:
        table = Table()
        table.add_column(no_wrap=True, min_width=len("original"))
        table.add_column(f"reply at turn {self.turn}", no_wrap=True)
        for name in ("turns", "status", "success", "reward"):
            table.add_column(name, justify="right")
        table.add_row("original", *_cells(self._row(self.original)))
        table.add_section()
        for number, fork in enumerate(self.forks):
            table.add_row(f"fork {number}", *_cells(self._row(fork)))
        title = Text(f"{self.original.episode_id}, sampled by {self.subject}", style="bold")
        lines: list[RenderableType] = [title, table, Text(self.summary(), style="bold")]
        if self.folder is not None:
            path = shown_path(self.folder)
            lines.append(Text(f"written: {path}; `ajet view {path}` shows them side by side"))
        return Lines(*lines)

    def summary(self) -> str:
        reward = self.reward if len(self.forks) > 1 else f"{self.reward.value:.3f}"
        forks = f"{len(self.forks)} fork{'s' * (len(self.forks) != 1)}"
        return f"turn {self.turn}: success {self.success}, reward {reward}, {forks}"

    def _row(self, episode: Trajectory) -> dict[str, Any]:
        turns, reply = episode.turns, None
        if self.turn < len(turns):  # the text, followed by the tool calls
            message = turns[self.turn].reply
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            texts = [message.get("content"), *(f"{c['name']}({c['arguments']})" for c in calls)]
            reply = " ".join(str(text) for text in texts if text)
        return {
            "episode_id": episode.episode_id,
            "reply": reply,
            "turns": len(turns),
            "status": str(episode.outcome),
            "success": _succeeded(episode),
            "reward": episode.reward,
            "error": episode.error,
        }


def _succeeded(episode: Trajectory) -> bool:
    return bool(episode.is_success) and episode.is_valid


def _cells(row: dict[str, Any]) -> list[str]:
    reply = " ".join((row["reply"] or "").split())
    return [
        reply if len(reply) <= MAX_SHOWN else f"{reply[: MAX_SHOWN - 1]}…",
        str(row["turns"]),
        row["status"],
        "yes" if row["success"] else "no",
        "none" if row["reward"] is None else f"{row['reward']:g}",
    ]
