"""Priorities decide which of the ready groups are trained first: the larger number comes first.

Groups of equal priority come in the order of the plan. A group that is overtaken too often expires.
"""

from collections.abc import Callable
from statistics import pstdev

from ajet.core.errors import UnknownName
from ajet.core.trajectory.trajectory import Group

Priority = Callable[[int, Group], float]
"""A function of the group's plan index and the group."""

PRIORITIES: dict[str, Priority] = {}


def priority(name: str) -> Callable[[Priority], Priority]:
    """Registers the decorated function under this name, for `trinity.buffer.priority`."""

    def register(function: Priority) -> Priority:
        PRIORITIES[name] = function
        return function

    return register


def priority_named(name: str) -> Priority:
    """Returns the priority with this name. Raises ConfigError if there is none."""
    if name not in PRIORITIES:
        raise UnknownName(
            f"trinity.buffer.priority: there is no {name!r}; choose {', '.join(sorted(PRIORITIES))}"
        )
    return PRIORITIES[name]


@priority("oldest")
def oldest(index: int, group: Group) -> float:
    """Takes groups in the order of the plan."""
    return 0.0


@priority("newest")
def newest(index: int, group: Group) -> float:
    """Takes the group that was planned last first."""
    return float(index)


@priority("spread")
def spread(index: int, group: Group) -> float:
    """Takes the group with the largest standard deviation of rewards first."""
    rewards = [t.reward for t in group.valid if t.reward is not None]
    return pstdev(rewards) if rewards else 0.0
