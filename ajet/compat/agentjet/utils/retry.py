"""Provides AgentJet's `ajet.utils.retry`: repeats a function of the user's after an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from loguru import logger

__all__ = ["retry_with_backoff"]

P = ParamSpec("P")
T = TypeVar("T")


def retry_with_backoff(
    max_retry: int = 3,
    backoff_fn: Callable[[int], float] | None = None,
    max_retry_attr: str | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator that calls a function up to `max_retry` times, or as often as the
    attribute `max_retry_attr` of its first argument says. It waits 1, 2, 4, … s in between, or
    `backoff_fn(attempt)`. The last error is raised."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            number = (
                getattr(arguments[0], max_retry_attr, None) if max_retry_attr and arguments else 0
            )
            last = max(1, number if isinstance(number, int) and number > 0 else max_retry) - 1
            for attempt in range(last):
                try:
                    return function(*arguments, **options)
                except Exception as error:  # noqa: BLE001  # the user's function raises anything
                    logger.warning("{}: {!r}; calling it again", function.__name__, error)
                    time.sleep(backoff_fn(attempt) if backoff_fn else 2**attempt)
            return function(*arguments, **options)

        return call

    return decorate
