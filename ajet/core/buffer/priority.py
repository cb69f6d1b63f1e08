"""Which of the groups that wait is trained first: a number for each, larger ones first.

    @priority("shortest")
    def shortest(place, group):          # then trinity.buffer.priority: shortest
        return -sum(t.num_sampled for t in group.trajectories)

Equal ones come in the order in which they were planned. A group that many others pass gets too old;
it is then counted and left out.
"""

from collections.abc import Callable
from statistics import pstdev

from ajet.core.errors import ConfigError
from ajet.core.trajectory.trajectory import Group

Priority = Callable[[int, Group], float]
"""The group's place among all that were planned, and the group."""

PRIORITIES: dict[str, Priority] = {}


def priority(name: str) -> Callable[[Priority], Priority]:
    """Makes it known under this name."""

    def register(function: Priority) -> Priority:
        PRIORITIES[name] = function
        return function

    return register


def priority_named(name: str) -> Priority:
    if name not in PRIORITIES:
        raise ConfigError(
            f"trinity.buffer.priority: there is no {name!r}; choose {', '.join(sorted(PRIORITIES))}"
        )
    return PRIORITIES[name]


@priority("oldest")
def oldest(place: int, group: Group) -> float:
    """In the order of the plan."""
    return 0.0


@priority("newest")
def newest(place: int, group: Group) -> float:
    """The latest plan first."""
    return float(place)


@priority("spread")
def spread(place: int, group: Group) -> float:
    """The group whose rewards differ most says most."""
    rewards = [t.reward for t in group.valid if t.reward is not None]
    return pstdev(rewards) if rewards else 0.0
