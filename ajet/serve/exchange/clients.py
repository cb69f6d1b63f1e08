"""The clients of a run: the groups that they have begun, how their episodes ended, and how many
groups of a batch each may begin.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.core.rollout.request import step_of_group
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode

if TYPE_CHECKING:
    from ajet.core.config.services import SharesConfig

MAX_CLIENTS = 1_000
"""The number of names of clients whose episodes are counted; the oldest are forgotten first."""


@dataclass(frozen=True)
class Shares:
    """The shares of named clients in batches of `batch_size` groups, by `ajet.serve.shares`. A
    client's weight is `start` at step 1 and `end` from step `steps + 1` on; between them it follows
    a line or half a cosine."""

    config: SharesConfig
    batch_size: int

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.config.start)

    def groups(self, step: int) -> dict[str, int]:
        """Returns the number of groups of each client in the batch of `step`, which counts from 1:
        the weights' shares, rounded by largest remainders so that they add up to the batch. Of
        equal remainders, the client that is named first gets the group."""
        weights = self._weights(step)
        total = sum(weights.values())
        exact = {name: self.batch_size * weight / total for name, weight in weights.items()}
        groups = {name: math.floor(number) for name, number in exact.items()}
        missing = self.batch_size - sum(groups.values())
        by_remainder = sorted(exact, key=lambda name: groups[name] - exact[name])
        return groups | {name: groups[name] + 1 for name in by_remainder[:missing]}

    def _weights(self, step: int) -> Mapping[str, float]:
        start, end = self.config.start, self.config.end
        if not end:
            return start
        done = min(max(step - 1, 0) / self.config.steps, 1.0)
        if self.config.schedule == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return {name: weight + done * (end[name] - weight) for name, weight in start.items()}


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """A group of a client's task, and the client that began it."""

    task: Task
    client: str
    mode: Mode


class Clients:
    """Counts what each client has begun and ended. The exchange calls it with its lock held."""

    def __init__(self, shares: Shares | None) -> None:
        self.shares = shares
        self.groups: dict[str, ClientGroup] = {}  # of clients' tasks, by the group's id
        self._num_ended: dict[str, Counter[str]] = {}  # by the client's name and the outcome

    def may_begin_group(self, client: str, step: int, max_groups: int | None) -> bool:
        """Tells whether the client's training groups of this step are fewer than its limits. The
        limits of `shares` add up to the batch, so that a full batch has exactly these."""
        limits = [] if max_groups is None else [max_groups]
        if self.shares is not None:
            limits.append(self.shares.groups(step)[client])
        begun = self._num_groups(client, step) if limits else 0
        return all(begun < limit for limit in limits)

    def forget_groups(self, step: int) -> None:
        """Forgets the groups up to this step."""
        groups = self.groups.items()
        self.groups = {name: group for name, group in groups if step_of_group(name) > step}

    def count_ended(self, client: str, status: str) -> None:
        self._num_ended.setdefault(client, Counter())[status] += 1
        while len(self._num_ended) > MAX_CLIENTS:
            del self._num_ended[next(iter(self._num_ended))]

    def status(
        self, step: int, silent_s: Mapping[str, Sequence[float]], num_waiting: Counter[str]
    ) -> list[dict[str, Any]]:
        """Returns what each client runs, has begun in this step, and has ended. `silent_s` are the
        times since the last signs of life of the episodes that it runs."""
        groups = {} if self.shares is None else self.shares.groups(step)
        return [
            {
                "client": name,
                "num_running": len(silent_s.get(name, ())),
                "num_waiting": num_waiting[name],
                "silent_s": min(silent_s.get(name, ()), default=None),
                "num_groups": self._num_groups(name, step),
                "max_groups": groups.get(name),
                "num_ended": dict(self._num_ended.get(name, ())),
            }
            for name in dict.fromkeys([*groups, *self._num_ended, *silent_s, *num_waiting])
        ]

    def _num_groups(self, client: str, step: int) -> int:
        return sum(
            (group.client, group.mode, step_of_group(name)) == (client, "train", step)
            for name, group in self.groups.items()
        )
