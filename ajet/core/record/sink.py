"""The interface of a metrics logger's backend, and what it gets to know about the run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.core.record.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class RunInfo:
    folder: RunFolder
    project: str
    experiment: str
    start_step: int
    config: Mapping[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Receives the metrics of each step and writes them somewhere."""

    def __init__(self, run: RunInfo) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...
