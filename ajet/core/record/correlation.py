"""Measures how far the reward follows the form of the replies, within groups.

    correlation/reply_length    Pearson's r of the reward and the sampled tokens of a reply, on
                                average over the episode's replies
    correlation/reply_format    the same with the share of well-formed replies: ended by the model
                                itself, every tool call readable, no check of the run failed
    correlation/episodes        the episodes behind them, less one for each group

The group's mean is subtracted from both values, so that harder tasks with longer replies do not
count. Only groups with different rewards are used. A value that does not vary in them has no
metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.turn import Turn

Measure = Callable[[Sequence[Turn]], float]


def correlation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the correlations of one step."""
    metrics: dict[str, float] = {}
    judged = [[t for t in g.valid if _replies(t)] for g in groups if g.has_signal]
    metrics["correlation/episodes"] = float(sum(max(len(members) - 1, 0) for members in judged))
    for name, measure in (("reply_length", _length), ("reply_format", _format)):
        r = _within_groups(judged, measure)
        if r is not None:
            metrics[f"correlation/{name}"] = r
    return metrics


def is_well_formed(turn: Turn) -> bool:
    """Tells whether the model ended the reply itself, all calls in it could be read, and it passed
    the run's checks."""
    is_ended = turn.completion.finish_reason == "stop"
    return is_ended and not turn.notes.malformed and not turn.notes.malformed_calls


def _replies(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if turn.trainable]


def _length(turns: Sequence[Turn]) -> float:
    return fmean(len(turn.completion.token_ids) for turn in turns)


def _format(turns: Sequence[Turn]) -> float:
    return fmean(is_well_formed(turn) for turn in turns)


def _within_groups(groups: Sequence[Sequence[Trajectory]], measure: Measure) -> float | None:
    """Returns Pearson's r of reward and measure, both minus their group's mean; None if one of them
    does not vary."""
    rewards: list[float] = []
    values: list[float] = []
    for members in groups:
        rewards += _centred([t.reward or 0.0 for t in members])
        values += _centred([measure(_replies(t)) for t in members])
    spread = math.sqrt(math.fsum(x * x for x in rewards) * math.fsum(x * x for x in values))
    if spread < 1e-12:
        return None
    r = math.fsum(x * y for x, y in zip(rewards, values, strict=True)) / spread
    return min(1.0, max(-1.0, r))  # rounding may exceed the bounds


def _centred(values: Sequence[float]) -> list[float]:
    mean = fmean(values) if values else 0.0
    return [value - mean for value in values]
