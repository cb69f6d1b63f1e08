"""Stores what readers of a run need besides its config.yaml.

    {"yaml": "/home/ada/math/math.yaml", "project_dir": null, "current_folder": "/home/ada/math",
     "begun": "2026-03-01T09:30:00", "stop_token_ids": [151645, 151643]}

User classes and paths in the config are relative to those folders; a chat template may write the
date; the model's end tokens may differ from its tokenizer's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError, RecordError
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.record.run_folder import read_bytes_of


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Holds the folders and the start of a run. `begun` (ISO 8601) does not change on resume."""

    yaml: str | None
    project_dir: str | None
    current_folder: str
    begun: str
    stop_token_ids: list[int]

    @classmethod
    def from_config(
        cls, config: AjetConfig, stop_token_ids: Sequence[int], begun: str
    ) -> RunOrigin:
        """Returns the origin of a run of this config, started in the current folder."""
        return cls(
            yaml=str(config.yaml_path) if config.yaml_path else None,
            project_dir=str(config.project_dir) if config.project_dir else None,
            current_folder=str(Path.cwd()),
            begun=begun,
            stop_token_ids=list(stop_token_ids),
        )

    def write(self, file: Path) -> None:
        write_text_atomically(file, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> RunOrigin:
        try:
            origin = cls(**json.loads(read_bytes_of(file)))
            datetime.fromisoformat(origin.begun)
            for folder in (origin.yaml, origin.project_dir, origin.current_folder):
                Path(folder or "")  # raises for other types
            return origin
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{file}: no such file; is this the folder of a run?", code=Code.RUN_NOT_FOUND
            ) from error
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RecordError(f"{file} cannot be read: {error}") from error
