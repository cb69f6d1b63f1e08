"""Counts replies whose calls are in another form than the parser of the run reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from ajet.core.config import AjetConfig
from ajet.core.trajectory.trajectory import Trajectory

REPORTED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class CallForms:
    """Holds the number of sampled replies that were offered tools, and of those whose calls another
    parser would have read, by its name."""

    num_replies: int
    by_parser: Mapping[str, int]

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Self:
        turns = [turn for t in trajectories for a in t.attempts for turn in a.turns]
        # A call in another form can only be a mistake if tools were offered to the model.
        offered = [turn for turn in turns if turn.tools and not turn.is_given]
        forms = [turn.notes.other_form for turn in offered]
        return cls(len(offered), dict(Counter(form for form in forms if form is not None)))

    @property
    def num_other(self) -> int:
        return sum(self.by_parser.values())

    def line(self, config: AjetConfig) -> str | None:
        """Returns the count and the remedy in one line; None if the share is below
        `REPORTED_SHARE`: a model that knows its form writes a stray call now and then."""
        if not self.by_parser or self.num_other < REPORTED_SHARE * self.num_replies:
            return None
        best = max(self.by_parser, key=lambda name: self.by_parser[name])
        listed = ", ".join(f"{num} as {name}" for name, num in self.by_parser.items())
        of_suite = "offer functions in the benchmark's own prompt (+suite.prompting=text), or "
        return (
            f"{self.num_other} of {self.num_replies} replies to an offer of tools have a call that "
            f"ajet.rollout.tool_parser={config.ajet.rollout.tool_parser} does not read, but others "
            f"do ({listed}), so the agent saw no call: set ajet.rollout.tool_parser={best}, or "
            f"{of_suite if 'suite' in config.user_sections() else ''}"
            "teach the model its chat template's form, by the prompt or a supervised stage"
        )
