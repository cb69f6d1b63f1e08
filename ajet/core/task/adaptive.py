"""`ajet.data.sampler: adaptive` takes the tasks whose groups are likely to have signal.

    never taken, or with signal the last time     drawn, in proportion to the chance that a group
                                                  has both successes and failures
    solved or hopeless the last time              rests for `rest` batches; again without signal,
                                                  for 2, 4, 8 and then always 16 times as many
    one place in four                             is for the task whose rest has been over longest,
                                                  or is drawn if there is none

With quotas each tag (a field of the row) has its share of places, over the whole run. The choice is
a function of the seed and the results so far.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.errors import UnknownName
from ajet.core.seeding import derive
from ajet.core.task.results import ResultLog, TaskResults
from ajet.core.task.task import Task

ASK_AGAIN_EVERY = 4
LONGEST_REST = 16
"""The longest rest of a task, in units of its first rest."""
QUOTAS = "ajet.data.curriculum.quotas"


@dataclass(frozen=True)
class AdaptiveSettings:
    """Holds the settings of the adaptive order. `quotas` maps a tag to its share of places; with
    quotas, tasks of other tags are not taken."""

    batch_size: int
    group_size: int
    seed: int
    rest: int = 8
    tag_field: str = "tag"
    quotas: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: AjetConfig) -> AdaptiveSettings:
        data = config.ajet.data
        return cls(
            batch_size=data.train_batch_size,
            # A group of one never has two outcomes; its episode is compared with other groups'.
            group_size=max(config.ajet.rollout.num_repeat, 2),
            seed=config.ajet.seed,
            **same_named(cls, data.curriculum),
        )


class AdaptiveSampler:
    """Chooses the next tasks by their results."""

    def __init__(self, tasks: Sequence[Task], settings: AdaptiveSettings) -> None:
        self._settings = settings
        name = settings.tag_field
        self._tags = [str(t.metadata.get(name)) if settings.quotas else None for t in tasks]
        for tag in settings.quotas:
            if tag not in self._tags:
                tags = ", ".join(sorted(set(map(str, self._tags))))
                raise UnknownName(
                    f"{QUOTAS}: no training task has the {settings.tag_field} {tag!r}; there are "
                    f"{tags}"
                )

    def choose(self, log: ResultLog, size: int) -> list[int]:
        """Returns the indices of the next `size` tasks. One is there twice only where there are
        fewer tasks than places."""
        chosen: list[int] = []
        counts = Counter[str | None]()
        for tag, results in zip(self._tags, log.of_task, strict=True):
            counts[tag] += results.taken
        queues = self._queues(log)
        while len(chosen) < size:
            if not any(map(len, queues.values())):
                queues = self._queues(log)  # the batch is larger than the data set
            tag = self._next_tag(counts, queues)
            asks_again = (log.num_taken + len(chosen)) % ASK_AGAIN_EVERY == ASK_AGAIN_EVERY - 1
            chosen.append(queues[tag].take(asks_again))
            counts[tag] += 1
        return chosen

    def _next_tag(
        self, counts: Counter[str | None], queues: Mapping[str | None, _Queue]
    ) -> str | None:
        """Returns the tag that is furthest behind its quota, of those with a task left."""
        quotas = self._settings.quotas
        if not quotas:
            return None
        total = sum(counts[tag] for tag in quotas) + 1
        open_tags = [tag for tag in quotas if len(queues[tag])]
        return max(open_tags, key=lambda tag: quotas[tag] * total - counts[tag])

    def _queues(self, log: ResultLog) -> dict[str | None, _Queue]:
        """Returns the tasks of each tag in the order in which they are taken."""
        settings = self._settings
        batch = log.num_taken // settings.batch_size
        draw = random.Random(derive(settings.seed, "adaptive", log.num_taken))
        drawn: defaultdict[str | None, list[tuple[float, int]]] = defaultdict(list)
        rested: defaultdict[str | None, list[tuple[int, int]]] = defaultdict(list)
        later: defaultdict[str | None, list[tuple[int, int]]] = defaultdict(list)
        for index, (tag, results) in enumerate(zip(self._tags, log.of_task, strict=True)):
            # Sorting by exponential draws with these rates draws tasks without replacement, in
            # proportion to the rates (Efraimidis and Spirakis 2006). Every task takes a draw, so
            # that the other tasks' keys do not depend on its state.
            key = -math.log(1 - draw.random()) / results.signal_chance(settings.group_size)
            due = self._due(results)
            if results.is_waiting and batch < due:
                later[tag].append((due, index))
            elif not results.blank or not results.groups:
                drawn[tag].append((key, index))
            else:
                (rested if due <= batch else later)[tag].append((due, index))
        tags = settings.quotas or [None]
        return {
            tag: _Queue(*(_in_order(pool[tag]) for pool in (drawn, rested, later))) for tag in tags
        }

    def _due(self, results: TaskResults) -> int:
        """Returns the batch from which a task may be taken again, though its last group may not
        have ended by then."""
        times = min(2 ** max(results.blank - 1, 0), LONGEST_REST)
        return results.last_batch + self._settings.rest * times


def _in_order(keyed: Sequence[tuple[float, int]]) -> list[int]:
    """Returns the indices with the smallest key last, where `pop` takes it."""
    return [index for _, index in sorted(keyed, reverse=True)]


@dataclass
class _Queue:
    """Holds the tasks of a tag: those that are drawn, those whose rest is over, and those that
    rest or wait, each list with its next task last."""

    drawn: list[int]
    rested: list[int]
    later: list[int]

    def __len__(self) -> int:
        return len(self.drawn) + len(self.rested) + len(self.later)

    def take(self, asks_again: bool) -> int:
        """Removes and returns the next task, one that has rested if `asks_again` and there is
        one."""
        first = (self.rested, self.drawn) if asks_again else (self.drawn, self.rested)
        return next(queue for queue in (*first, self.later) if queue).pop()
