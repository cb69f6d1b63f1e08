"""Reads the `sampling_params` that verl's loops and ChatLearn's graphs pass with a call.

    run: temperature 0.9, max_tokens 512
    {"temperature": 0.9, "repetition_penalty": 1.0, "logprobs": True}     nothing
    {"temperature": 0.9, "max_new_tokens": 64}                            max_tokens 64
    {"repetition_penalty": 1.1}                                           TypeError

A value that equals the run's changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed")
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "logprobs": (True, False, None, 0, 1),
    "repetition_penalty": (1, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "min_p": (0, None),
    "n": (1, None),
}
"""Settings that ajet does not support, and the values at which they have no effect."""


def own_sampling(params: Mapping[str, Any] | None, run: Any) -> dict[str, Any]:
    """Returns the settings that differ from the run's, under the names of `SamplingOverrides`.
    `run` has the run's values as attributes. Raises TypeError for what ajet does not support."""
    passed = dict(params or {})
    if "max_new_tokens" in passed:
        passed["max_tokens"] = passed.pop("max_new_tokens")
    unknown = [
        f"{name}={value!r}"
        for name, value in passed.items()
        if name not in NAMES and value not in WITHOUT_EFFECT.get(name, (None,))
    ]
    if unknown:
        raise TypeError(f"sampling_params: tokens are not sampled with {', '.join(unknown)}")
    if isinstance(stop := passed.get("stop"), list):
        passed["stop"] = tuple(stop)
    return {
        name: value
        for name, value in passed.items()
        if name in NAMES and value is not None and value != getattr(run, name, None)
    }
