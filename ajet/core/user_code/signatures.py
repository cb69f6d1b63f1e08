"""Which arguments a user's function accepts, and which it requires."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def accepted_arguments(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that the function accepts by name: all, if it has `**kwargs`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def required_names(function: Any) -> list[str]:
    """Returns the names of the parameters without a default."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
