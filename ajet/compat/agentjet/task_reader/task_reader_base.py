"""Provides AgentJet's `ajet.task_reader.task_reader_base`."""

from __future__ import annotations

from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.task.reader import BaseTaskReader as OwnBaseTaskReader
from ajet.core.task.task import Task

__all__ = ["BaseTaskReader", "Task"]


class BaseTaskReader(OwnBaseTaskReader):
    """Base class of readers that are made with the section `ajet.task_reader` instead of the
    config, which is their `self.config` afterwards."""

    def __init__(self, reader_config: Any) -> None:
        self.reader_config = reader_config

    @classmethod
    def constructor_argument(cls, config: AjetConfig) -> Any:
        return config.ajet.task_reader
