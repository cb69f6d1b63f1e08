"""Writes the result of a run with stages in numbers: `summary.json` of the folder that holds them.

    {"stages": [{"name": "imitate", "kind": "supervised", "folder": "imitate", "steps": 40, …}, …]}

The summary.json of a stage has more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

SHOWN = (
    "steps",
    "episodes",
    "wall_seconds",
    "success_before",
    "success_after",
    "success_by_decoding",
    "num_held_out",
    "cross_entropy",
)
"""Keys that are copied from the summary of a stage."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Holds a finished stage: its name, its kind, its run folder and its summary."""

    name: str
    kind: str
    folder: Path
    summary: RunSummary

    @classmethod
    def read(cls, config: AjetConfig) -> Self:
        """Reads the result of a stage from its run folder."""
        assert config.stage is not None
        summary = RunSummary.read(RunFolder(config.run_folder).summary_json)
        return cls(config.stage, config.ajet.kind, config.run_folder, summary)

    def as_json(self) -> dict[str, Any]:
        """Returns its entry in the summary of the stages."""
        content = self.summary.as_json()
        figures = {name: content[name] for name in SHOWN if name in content}
        return {"name": self.name, "kind": self.kind, "folder": self.folder.name, **figures}


def write_stages(folder: Path, results: Sequence[StageResult]) -> None:
    """Writes the file completely or not at all."""
    content = {"stages": [result.as_json() for result in results]}
    write_text_atomically(folder / "summary.json", json.dumps(content, indent=2) + "\n")
