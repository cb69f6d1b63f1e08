"""One bound on the age of tokens, and what follows from it for who may begin and who may train.

A version is a number of updates. A step that trains at version v on a group whose oldest token was
sampled at version w trains on tokens that are v - w old; that is at most `max_staleness`, always.

    version of the trainer   0     1     2     3         max_staleness 1, 1 step ahead
    batch that it trains     0     1     2     3
    weights of its tokens    0     0     1     2

Two sides keep it:

begin   At most as many groups are begun as the trainer can train in their time: those up to the
        next transfer of weights, and `groups_ahead`. With 0 ahead and a transfer after each step
        that is the synchronous order exactly.
take    What is too old is not trained. And a step waits for a group in flight whose last step it
        is, if the bound `waits`; else a slow group gets too old, and is counted and left out.

Other systems say the same in other words; `published` every k steps, B groups a step:

| setting                                       | max_staleness         | steps ahead  | k        |
|-----------------------------------------------|-----------------------|--------------|----------|
| Trinity `sync_interval` k, `sync_offset` o    | k - 1 + o             | o            | k        |
| ROLL `async_generation_ratio` r               | ceil(r)               | r            | 1        |
| verl `staleness_threshold` s,                 | ceil((1 + s) k) - 1   | s k          | k        |
| `trigger_parameter_sync_step` k               |                       |              |          |

Their keys are read by core/config/async_keys.py. Not covered: the drift that versions do not show,
as between an engine's numbers and the trainer's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.rollout.batch import BatchSettings
from ajet.core.trajectory.trajectory import Group

PartialRollout = Literal["continue", "recompute", "finish"]


@dataclass(frozen=True, slots=True)
class StalenessBound:
    """The bound, and the lead of the explorer that keeps it: `groups_ahead` of the trainer."""

    max_staleness: int
    groups_per_step: int
    sync_interval: int = 1
    groups_ahead: int = 0
    waits: bool = True

    def __post_init__(self) -> None:
        lead = self.sync_interval - 1 + math.ceil(self.groups_ahead / self.groups_per_step)
        if lead > self.max_staleness:
            raise ConfigError(
                f"trinity.max_staleness={self.max_staleness}: weights every {self.sync_interval} "
                f"steps and {self.groups_ahead} groups ahead need {lead}; raise it or lower those"
            )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """The bound of backbone trinity, and how far ahead it lets the explorer be.

        A step of `fixed` or `explorer_driven` waits for a group that would else be too old; the
        other styles never wait: a slow group is left out. `fully_async` sends weights after every
        step."""
        trinity, size = config.trinity, BatchSettings.from_config(config).first_round
        sync = trinity.synchronizer
        if trinity.mode == "colocate":
            return cls(0, size)
        interval, ahead = sync.sync_interval, trinity.steps_ahead
        if sync.sync_style == "fully_async":
            interval, ahead = 1, trinity.staleness if sync.sync_offset is None else ahead
        waits = sync.sync_style in ("fixed", "explorer_driven")
        return cls(trinity.staleness, size, interval, ahead * size, waits)

    def room(self, version: int, published: int, outstanding: int, last: int | None = None) -> int:
        """How many groups may begin while the trainer is at `version` and the explorer has the
        weights of `published`; `outstanding` are begun and not trained. None for after `last`."""
        until = (published + self.sync_interval) * self.groups_per_step + self.groups_ahead
        if last is not None:
            until = min(until, last * self.groups_per_step)
        return max(0, until - version * self.groups_per_step - outstanding)

    def is_due(self, version: int, published: int) -> bool:
        """Whether weights travel after the update to `version`, at the latest."""
        return version - published >= self.sync_interval

    def oldest_allowed(self, version: int) -> int:
        """The oldest token's version that a step at `version` may train."""
        return version - self.max_staleness

    def must_wait(self, version: int, in_flight: Sequence[int], left: Sequence[int]) -> bool:
        """Whether a step at `version` that leaves `left` untrained would have some group in flight
        get too old: there are then more groups for the next steps than these can train. Both are
        versions of oldest tokens."""
        if not self.waits:
            return False
        for steps in range(self.max_staleness + 1):
            due = self.oldest_allowed(version) + steps
            flying = sum(oldest <= due for oldest in in_flight)
            others = sum(oldest <= due for oldest in left)
            if flying and flying + others > steps * self.groups_per_step:
                return True
        return False


def versions(group: Group) -> tuple[int, int] | None:
    """Of its oldest and newest trained token; None where it trains nothing."""
    found = [
        turn.completion.policy_version
        for trajectory in group.valid
        for turn in trajectory.turns
        if turn.trainable and turn.completion.token_ids
    ]
    return (min(found), max(found)) if found else None


def histogram(groups: Iterable[Group], version: int) -> Counter[int]:
    """How many trained tokens were how many updates away from `version`: older, or of updates that
    were lost with an earlier attempt."""
    counts: Counter[int] = Counter()
    for group in groups:
        for trajectory in group.valid:
            for turn in trajectory.turns:
                if turn.trainable and turn.completion.token_ids:
                    age = abs(version - turn.completion.policy_version)
                    counts[age] += len(turn.completion.token_ids)
    return counts


def staleness_metrics(counts: Mapping[int, int]) -> dict[str, float]:
    """The histogram as numbers of a step: ``staleness/max``, ``staleness/mean``, and the share of
    the tokens of each age, ``staleness/age_0`` and so on."""
    total = sum(counts.values())
    if not total:
        return {}
    mean = sum(age * number for age, number in counts.items()) / total
    shares = {f"staleness/age_{age}": counts[age] / total for age in sorted(counts)}
    return {"staleness/max": float(max(counts)), "staleness/mean": mean, **shares}
