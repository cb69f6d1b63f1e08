"""What an environment returned, checked once and made plain.

    ("You are at 3.", np.float32(1), True, np.bool_(False), {"metrics": {"success": True}})
        -> Step("You are at 3.", 1.0, True, False, {"success": 1.0}, {}, None)
    ("You are at 3.", nan, True, False, {})     -> EnvironmentFault of one line

Not covered: pictures (frames.py).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ajet.core.rollout.failure import EnvironmentFault

AGGREGATIONS = ("mean", "sum", "last", "min", "max")
NOTHING: Mapping[str, Any] = {}


class Shown(NamedTuple):
    """The beginning of an episode."""

    observation: str
    state_key: str | None


class Step(NamedTuple):
    """What came of an action. `state_key` is that of the state which the next action meets."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]
    metrics_agg_mode: Mapping[str, str]
    state_key: str | None


def checked_reset(returned: Any, who: str) -> Shown:
    """`who` is the call, as ``Maze.reset()``."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        _refuse(who, f"returned {_kind(returned)}, not (observation, info)")
    observation, info = returned
    _check_observation(observation, who)
    return Shown(observation, _state_key(_info(info, who), who))


def checked_step(returned: Any, who: str) -> Step:
    """`who` is the call, as ``Maze.step()``."""
    if not isinstance(returned, tuple) or len(returned) != 5:
        _refuse(
            who,
            f"returned {_kind(returned)}, not (observation, reward, terminated, truncated, info)",
        )
    observation, reward, terminated, truncated, info = returned
    _check_observation(observation, who)
    info = _info(info, who)
    return Step(
        observation,
        _number(reward, "the reward", who),
        _flag(terminated, "terminated", who),
        _flag(truncated, "truncated", who),
        _metrics(info, who),
        _agg_mode(info, who),
        _state_key(info, who),
    )


def _check_observation(observation: Any, who: str) -> None:
    if not isinstance(observation, str):
        _refuse(who, f"the observation is {_kind(observation)}, not text")


def _info(info: Any, who: str) -> Mapping[str, Any]:
    if not isinstance(info, dict):
        _refuse(who, f"info is {_kind(info)}, not a dict")
    return info


def _number(value: Any, what: str, who: str) -> float:
    """Python's and numpy's numbers; a bool is 0 or 1."""
    if type(value) is not float:
        if not isinstance(value, numbers.Real) and type(value).__name__ not in ("bool", "bool_"):
            _refuse(who, f"{what} is {_kind(value)}, not a number")
        try:
            value = float(value)
        except OverflowError:
            _refuse(who, f"{what} is too large for a float")
    if not math.isfinite(value):
        _refuse(who, f"{what} is {value}, not a finite number")
    return value


def _flag(value: Any, what: str, who: str) -> bool:
    if type(value) is not bool and type(value).__name__ not in ("bool", "bool_"):
        _refuse(who, f"{what} is {_kind(value)}, not a bool")
    return bool(value)


def _metrics(info: Mapping[str, Any], who: str) -> Mapping[str, float]:
    metrics = info.get("metrics")
    if not metrics and metrics in (None, {}):
        return NOTHING
    if not isinstance(metrics, dict):
        _refuse(who, f"info['metrics'] is {_kind(metrics)}, not a dict")
    return {
        str(name): _number(value, f"info['metrics'][{name!r}]", who)
        for name, value in metrics.items()
    }


def _agg_mode(info: Mapping[str, Any], who: str) -> Mapping[str, str]:
    modes = info.get("metrics_agg_mode")
    if modes is None:
        return NOTHING
    if not isinstance(modes, dict) or not all(mode in AGGREGATIONS for mode in modes.values()):
        _refuse(
            who, f"info['metrics_agg_mode'] names something else than {', '.join(AGGREGATIONS)}"
        )
    return modes


def _state_key(info: Mapping[str, Any], who: str) -> str | None:
    key = info.get("state_key")
    if key is not None and not isinstance(key, str):
        _refuse(who, f"info['state_key'] is {_kind(key)}, not text")
    return key


def _refuse(who: str, what: str) -> NoReturn:
    raise EnvironmentFault(f"{who}: {what}")


def _kind(value: Any) -> str:
    """The type, and how long it is or what it says where that is short."""
    if value is None:
        return "None"
    if isinstance(value, tuple | list | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | int | float):
        return f"the {type(value).__name__} {str(value)[:40]!r}"
    return f"a value of type {type(value).__name__}"
