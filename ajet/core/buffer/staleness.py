"""One bound on the age of tokens, and what follows from it for beginning and for training groups.

core/config/renames.py reads the keys of other systems for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict
from ajet.core.rollout.batch import BatchSettings
from ajet.core.trajectory.trajectory import Group
from ajet.core.trajectory.turn import Turn

PartialRollout = Literal["continue", "recompute", "finish"]


@dataclass(frozen=True, slots=True)
class StalenessBound:
    """The bound, and by how many groups the explorer may be ahead of the trainer.

    A version is a number of updates. A step that trains at version v on a group whose oldest token
    was sampled at version w trains on tokens that are v - w old; that is at most `max_staleness`,
    always.

        version of the trainer   0     1     2     3         max_staleness 1, 1 step ahead
        batch that it trains     0     1     2     3
        weights of its tokens    0     0     1     2

    Only as many groups begin as the trainer can train in time: those up to the next weight sync,
    and `groups_ahead` more. With 0 ahead and a sync after each step that is exactly the synchronous
    order. A group that is too old is not trained. If the bound `waits`, a step also waits for a
    group in flight that no later step could train; without, a slow group expires and is counted.
    """

    max_staleness: int
    groups_per_step: int
    sync_interval: int = 1
    groups_ahead: int = 0
    waits: bool = True

    def __post_init__(self) -> None:
        lead = self.sync_interval - 1 + math.ceil(self.groups_ahead / self.groups_per_step)
        if lead > self.max_staleness:
            raise KeysConflict(
                f"trinity.max_staleness={self.max_staleness}: weights every {self.sync_interval} "
                f"steps and {self.groups_ahead} groups ahead need {lead}; raise it or lower those"
            )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Makes the bound of backbone trinity. Steps wait for slow groups with the sync styles
        `fixed` and `explorer_driven`; `fully_async` publishes weights after every step."""
        trinity, size = config.trinity, BatchSettings.from_config(config).first_round
        sync = trinity.synchronizer
        if trinity.mode == "colocate":
            return cls(0, size)
        interval, ahead = sync.sync_interval, trinity.steps_ahead
        if sync.sync_style == "fully_async":
            interval, ahead = 1, trinity.staleness if sync.sync_offset is None else ahead
        waits = sync.sync_style in ("fixed", "explorer_driven")
        return cls(trinity.staleness, size, interval, ahead * size, waits)

    def capacity_left(
        self, version: int, published: int, outstanding: int, last: int | None = None
    ) -> int:
        """Returns how many groups may begin while the trainer is at `version` and the explorer has
        the weights of `published`. `outstanding` groups began and are not trained yet; none may
        begin for a step after `last`."""
        # All counts are groups since the start of the run, at `groups_per_step` a version.
        until = (published + self.sync_interval) * self.groups_per_step + self.groups_ahead
        if last is not None:
            until = min(until, last * self.groups_per_step)
        return max(0, until - version * self.groups_per_step - outstanding)

    def is_due(self, version: int, published: int) -> bool:
        """Tells whether weights must be published after the update to `version`."""
        return version - published >= self.sync_interval

    def oldest_allowed(self, version: int) -> int:
        """Returns the version of the oldest token that a step at `version` may train."""
        return version - self.max_staleness

    def must_wait(self, version: int, in_flight: Sequence[int], ready: Sequence[int]) -> bool:
        """Tells whether a step at `version` must wait for a group in flight, because later steps
        could not train it in time. `in_flight` and `ready` are the versions of the groups that the
        step does not take."""
        if not self.waits:
            return False
        # Earliest deadline first: groups up to version `due` must be trained by the next `steps`
        # steps, which have room for so many groups.
        for steps in range(self.max_staleness + 1):
            due = self.oldest_allowed(version) + steps
            num_in_flight = sum(oldest <= due for oldest in in_flight)
            num_ready = sum(oldest <= due for oldest in ready)
            if num_in_flight and num_in_flight + num_ready > steps * self.groups_per_step:
                return True
        return False


def version_range(group: Group) -> tuple[int, int] | None:
    """Returns the versions of the oldest and the newest trained token; None without one."""
    versions = [version for turn in _sampled_turns(group) for _, version in turn.versions]
    return (min(versions), max(versions)) if versions else None


def age_histogram(group: Group, version: int, lost_after: int | None = None) -> Counter[int]:
    """Returns the number of trained tokens by their age, in updates, at `version`. Updates
    after `lost_after` are lost: a token of the n-th of them has the age of one that is n updates
    older than `lost_after` (`GroupBuffer.reopen`)."""
    counts: Counter[int] = Counter()
    for turn in _sampled_turns(group):
        for number, sampled_by in turn.versions:
            if lost_after is not None and sampled_by > lost_after:
                sampled_by = 2 * lost_after - sampled_by
            counts[version - sampled_by] += number
    return counts


def old_key_metrics(groups: Iterable[Group]) -> dict[str, float]:
    """Returns the tokens before a trained call, on average, whose keys and values older weights
    than those that sampled the call had computed, as ``staleness/old_keys``; nothing where no call
    has such tokens."""
    calls = [turn.notes.old_keys for group in groups for turn in _sampled_turns(group)]
    return {"staleness/old_keys": sum(calls) / len(calls)} if any(calls) else {}


def staleness_metrics(counts: Mapping[int, int]) -> dict[str, float]:
    """Returns the histogram as metrics: ``staleness/max``, ``staleness/mean``, and the share of the
    tokens of each age, ``staleness/age_0`` and so on."""
    total = sum(counts.values())
    if not total:
        return {}
    mean = sum(age * number for age, number in counts.items()) / total
    shares = {f"staleness/age_{age}": counts[age] / total for age in sorted(counts)}
    return {"staleness/max": float(max(counts)), "staleness/mean": mean, **shares}


def _sampled_turns(group: Group) -> Iterator[Turn]:
    """Yields the group's calls whose sampled tokens are trained."""
    for trajectory in group.valid:
        for turn in trajectory.turns:
            if turn.trainable and not turn.is_given:
                yield turn
