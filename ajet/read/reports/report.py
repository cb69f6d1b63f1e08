"""The base class of what a command reports: on the screen, as JSON, and as files."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from ajet.core.record.atomic_file import write_output


class Report(ABC):
    @abstractmethod
    def shown(self) -> RenderableType: ...

    @abstractmethod
    def as_plain(self) -> dict[str, Any]: ...

    def as_json(self) -> str:
        return json.dumps(self.as_plain(), indent=1, allow_nan=False) + "\n"

    def write(self, file: Path) -> tuple[Path, ...]:
        """Writes the report, and returns the paths of its files."""
        write_output(file, self.as_json())
        return (file,)
