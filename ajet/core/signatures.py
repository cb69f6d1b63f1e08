"""Tells which of the given arguments a user's function takes, and which it needs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def accepted_arguments(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the arguments that the function takes by name: all, if it has `**kwargs`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def required_names(function: Any) -> list[str]:
    """Returns the names of the parameters that have no default."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if _is_bare(parameter)
    ]


def _is_bare(parameter: inspect.Parameter) -> bool:
    is_variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and not is_variable
