"""Compares two evaluations on the tasks that both have played, task by task. A difference is B's
minus A's. Its interval is over tasks: that of `paired_difference` for shares (success, pass@k),
Student's t for rewards. Episodes that failed count as unsuccessful, with reward 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ajet.core.record.evaluation import (
    IntervalEstimate,
    difference_of_shares,
    ks_up_to,
    mean_of_few,
    mean_over_tasks,
    pass_at_k,
    share_over_tasks,
)


@dataclass(frozen=True, slots=True)
class PlayedTask:
    """Holds a task's episodes in one evaluation: success, reward, status and answer of each (the
    workflow's `final_answer`, else the last reply)."""

    success: Sequence[bool]
    reward: Sequence[float | None]
    status: Sequence[str]
    query: str = ""
    tag: str | None = None
    answers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.success:
            raise ValueError("a task has no episode")

    @property
    def share(self) -> float:
        """Returns the share of the episodes that succeeded."""
        return fmean(self.success)

    def answer(self, of_success: bool) -> str | None:
        """Returns the first answer that succeeded, or that did not; without one, the first."""
        answers = list(zip(self.success, self.answers, strict=False))
        matching = [answer for success, answer in answers if success == of_success]
        return next(iter([*matching, *(answer for _, answer in answers)]), None)


Tasks = Mapping[str, PlayedTask]


@dataclass(frozen=True, slots=True)
class Pair:
    """Holds a figure of A and of B on the same tasks, and B's minus A's."""

    a: IntervalEstimate
    b: IntervalEstimate
    difference: IntervalEstimate
    num_tasks: int

    def as_json(self) -> dict[str, Any]:
        sides = {"a": self.a, "b": self.b, "difference": self.difference}
        plain = {name: estimate.as_json() for name, estimate in sides.items()}
        return plain | {"num_tasks": self.num_tasks}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds the figures of two evaluations. `rose` and `fell` are the tasks whose share of
    successes changed, those that changed most first; `pass_at_k` is by k = 1, 2, 4, …"""

    num_tasks: tuple[int, int]
    num_compared: int
    success: Pair
    reward: Pair
    pass_at_k: dict[int, Pair]
    by_tag: dict[str, Pair] = field(default_factory=dict)
    rose: Sequence[str] = ()
    fell: Sequence[str] = ()

    @property
    def num_same(self) -> int:
        return self.num_compared - len(self.rose) - len(self.fell)

    def as_json(self) -> dict[str, Any]:
        return {
            "num_tasks": dict(zip("ab", self.num_tasks, strict=True)),
            "num_compared": self.num_compared,
            "success": self.success.as_json(),
            "reward": self.reward.as_json(),
            "pass_at_k": {k: pair.as_json() for k, pair in self.pass_at_k.items()},
            "by_tag": {tag: pair.as_json() for tag, pair in self.by_tag.items()},
            "num_rose": len(self.rose),
            "num_fell": len(self.fell),
            "num_same": self.num_same,
        }


def compare(a: Tasks, b: Tasks) -> Comparison:
    """Returns the figures over the tasks that both have. Raises ValueError if there are none."""
    both = [task for task in a if task in b]
    if not both:
        raise ValueError("no task in common")
    moves = {task: b[task].share - a[task].share for task in both}
    order = sorted(both, key=lambda task: -abs(moves[task]))
    by_tag: defaultdict[str, list[str]] = defaultdict(list)
    for task in both:
        if (tag := a[task].tag or b[task].tag) is not None:
            by_tag[tag].append(task)
    before, after = (
        [fmean(reward or 0.0 for reward in side[task].reward) for task in both] for side in (a, b)
    )
    earned = mean_of_few([new - old for old, new in zip(before, after, strict=True)])
    return Comparison(
        num_tasks=(len(a), len(b)),
        num_compared=len(both),
        success=_shares(a, b, both, 1),
        reward=Pair(mean_over_tasks(before), mean_over_tasks(after), earned, len(both)),
        pass_at_k={k: _shares(a, b, both, k) for k in ks_up_to(_fewest(a, b, both))},
        by_tag={tag: _shares(a, b, tasks, 1) for tag, tasks in sorted(by_tag.items())},
        rose=[task for task in order if moves[task] > 0],
        fell=[task for task in order if moves[task] < 0],
    )


def _shares(a: Tasks, b: Tasks, tasks: Sequence[str], k: int) -> Pair:
    """Returns pass@k of both over these tasks."""
    sides = [
        [pass_at_k(len(side[t].success), sum(side[t].success), k) for t in tasks] for side in (a, b)
    ]
    estimates = [
        share_over_tasks(shares, min(len(side[task].success) for task in tasks))
        for side, shares in zip((a, b), sides, strict=True)
    ]
    # n episodes hold n / k independent draws of k.
    differences = [after - before for before, after in zip(*sides, strict=True)]
    difference = difference_of_shares(differences, _fewest(a, b, tasks) / k)
    return Pair(estimates[0], estimates[1], difference, len(tasks))


def _fewest(a: Tasks, b: Tasks, tasks: Sequence[str]) -> int:
    """Returns the smallest number of episodes of a task on either side."""
    return min(len(side[task].success) for side in (a, b) for task in tasks)
