"""Defines `ajet.rollout.router` and `.server`: several inference engines, and server processes."""

from typing import Annotated

from pydantic import Field

from ajet.core.config.section import NoEffect, Section

IN_PROCESS = ("debug",)
ONE_ENGINE = NoEffect("there is one engine, in process", on=IN_PROCESS)


class RouterConfig(Section):
    """Configures which engine takes a request, and how engines' health is checked."""

    skew: Annotated[int, ONE_ENGINE] = Field(
        default=32,
        ge=0,
        description="An episode leaves its engine, and the prefix cached there, when that has more "
        "than so many requests above the least busy one.",
    )
    max_tries: Annotated[int, ONE_ENGINE] = Field(
        default=3, ge=1, description="Engines that a request is sent to until it fails."
    )
    health_interval_s: Annotated[float, ONE_ENGINE] = Field(
        default=5.0, gt=0, description="Seconds between two health checks of an engine."
    )
    max_failed_checks: Annotated[int, ONE_ENGINE] = Field(
        default=3, ge=1, description="Failed checks in a row after which an engine is replaced."
    )


class InferenceServerConfig(Section):
    """Configures vLLM and SGLang servers."""

    python: str | None = Field(
        default=None,
        description="The Python that has the server installed; null is that of `ajet servers "
        "install`, or the one that runs ajet.",
    )
    start_timeout_s: float = Field(
        default=900.0, gt=0, description="Seconds until a server that is not healthy is an error."
    )
