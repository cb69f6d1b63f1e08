"""Checks what an environment returned and converts it to plain values. A value that is not allowed
is an EnvironmentFault of one line.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ajet.core.environment.environment import Environment
from ajet.core.environment.observations import read_observation
from ajet.core.errors import EnvironmentFault
from ajet.core.text.plain_value import is_bool, kind_of

AGGREGATIONS = ("mean", "sum", "last", "min", "max")
EMPTY: Mapping[str, Any] = {}


class ResetResult(NamedTuple):
    """Holds the result of `reset`. `instruction` is `info["env_instruction"]`, if any; `images` are
    those that the observation names (observations.py)."""

    observation: str
    state_key: str | None
    instruction: str | None = None
    images: Mapping[str, str] = EMPTY


class StepResult(NamedTuple):
    """Holds the result of `step`. `state_key` names the state in which the next action is taken."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]
    metrics_agg_mode: Mapping[str, str]
    state_key: str | None
    images: Mapping[str, str] = EMPTY


def checked_instruction(environment: Environment, name: str) -> str:
    """Returns the environment's instruction, which must be text."""
    instruction = environment.instruction
    if not isinstance(instruction, str):
        _raise_fault(f"{name}.instruction", f"is {kind_of(instruction)}, not text")
    return str.__str__(instruction)


def checked_reset(returned: Any, call_name: str) -> ResetResult:
    """Checks the result of `reset`; `call_name` is ``Maze.reset()``, for errors."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        _raise_fault(call_name, f"returned {kind_of(returned)}, not (observation, info)")
    observation, info = returned
    observation, images = _observation(observation, call_name)
    info = _info(info, call_name)
    instruction = info.get("env_instruction")
    if not isinstance(instruction, str | None):
        _raise_fault(call_name, f"info['env_instruction'] is {kind_of(instruction)}, not text")
    return ResetResult(observation, _state_key(info, call_name), instruction, images)


def text_alone(result: ResetResult | StepResult) -> str:
    """Returns the observation; raises EnvironmentFault if it has an image, for what serves text."""
    if result.images:
        raise EnvironmentFault("an observation has an image, and this protocol serves text")
    return result.observation


def checked_step(returned: Any, call_name: str) -> StepResult:
    """Checks the result of `step`; `call_name` is ``Maze.step()``, for errors."""
    if not isinstance(returned, tuple) or len(returned) != 5:
        _raise_fault(
            call_name,
            f"returned {kind_of(returned)}, not (observation, reward, terminated, truncated, info)",
        )
    observation, reward, terminated, truncated, info = returned
    # This runs at every step, so values of plain types skip the calls that check and convert.
    images = EMPTY
    if type(observation) is not str:
        observation, images = _observation(observation, call_name)
    if type(info) is not dict:
        info = _info(info, call_name)
    key = info.get("state_key")
    return StepResult(
        observation,
        reward
        if type(reward) is float and math.isfinite(reward)
        else _number(reward, "the reward", call_name),
        terminated if type(terminated) is bool else _flag(terminated, "terminated", call_name),
        truncated if type(truncated) is bool else _flag(truncated, "truncated", call_name),
        _metrics(info, call_name) if "metrics" in info else EMPTY,
        _agg_mode(info, call_name) if "metrics_agg_mode" in info else EMPTY,
        key if key is None or type(key) is str else _state_key(info, call_name),
        images,
    )


def _observation(observation: Any, call_name: str) -> tuple[str, Mapping[str, str]]:
    """Returns the observation's text, and the images that it names."""
    if isinstance(observation, str):
        return observation, EMPTY
    read = read_observation(observation, call_name)
    if read is None:
        _raise_fault(call_name, f"the observation is {kind_of(observation)}, not text or a picture")
    return read


def _info(info: Any, call_name: str) -> Mapping[str, Any]:
    if not isinstance(info, dict):
        _raise_fault(call_name, f"info is {kind_of(info)}, not a dict")
    return info


def _number(value: Any, name: str, call_name: str) -> float:
    """Converts Python's and numpy's numbers to a float; a bool becomes 0 or 1."""
    if type(value) is not float:
        if not isinstance(value, numbers.Real) and not is_bool(value):
            _raise_fault(call_name, f"{name} is {kind_of(value)}, not a number")
        try:
            value = float(value)
        except OverflowError:
            _raise_fault(call_name, f"{name} is too large for a float")
    if not math.isfinite(value):
        _raise_fault(call_name, f"{name} is {value}, not a finite number")
    return value


def _flag(value: Any, name: str, call_name: str) -> bool:
    if not is_bool(value):
        _raise_fault(call_name, f"{name} is {kind_of(value)}, not a bool")
    return bool(value)


def _metrics(info: Mapping[str, Any], call_name: str) -> Mapping[str, float]:
    metrics = info.get("metrics")
    if metrics is None:
        return EMPTY
    if not isinstance(metrics, dict):
        _raise_fault(call_name, f"info['metrics'] is {kind_of(metrics)}, not a dict")
    plain = metrics.copy()  # the environment may change its dict later
    for name, value in metrics.items():
        if not isinstance(name, str):
            _raise_fault(call_name, f"info['metrics'] has {kind_of(name)} as a name, not text")
        if value is not True and value is not False:
            plain[name] = _number(value, f"info['metrics'][{name!r}]", call_name)
    return plain


def _agg_mode(info: Mapping[str, Any], call_name: str) -> Mapping[str, str]:
    modes = info.get("metrics_agg_mode")
    if modes is None:
        return EMPTY
    if not isinstance(modes, dict) or not all(
        isinstance(name, str) and mode in AGGREGATIONS for name, mode in modes.items()
    ):
        _raise_fault(
            call_name,
            f"info['metrics_agg_mode'] may only have {', '.join(AGGREGATIONS)}",
        )
    return modes


def _state_key(info: Mapping[str, Any], call_name: str) -> str | None:
    key = info.get("state_key")
    if key is not None and not isinstance(key, str):
        _raise_fault(call_name, f"info['state_key'] is {kind_of(key)}, not text")
    return key


def _raise_fault(call_name: str, problem: str) -> NoReturn:
    raise EnvironmentFault(f"{call_name}: {problem}")
