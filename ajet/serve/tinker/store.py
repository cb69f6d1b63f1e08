"""What is on disk: a folder for each training run, with its checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.checkpoint.manifest import newest_checkpoint
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.record.run_folder import RunFolder
from ajet.core.update.settings import LoraSettings
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker.record import RunInputs, StepRecord

SECTIONS = {"weights": "training", "sampler_weights": "sampler"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
PATH = re.compile(rf"tinker://([0-9a-f]+:train:\d+)/({'|'.join(SECTIONS)})/({NAME.pattern})")


class Store:
    """The folders below `root`.

    tinker://RUN/weights/NAME            RUN/weights/NAME/step_N            with the optimizer
    tinker://RUN/sampler_weights/NAME    RUN/sampler_weights/NAME/step_N    to sample with
                                         RUN/run.json                       the client's request
    """

    def __init__(self, root: Path, inputs: RunInputs) -> None:
        self.root, self._inputs = root, inputs
        root.mkdir(parents=True, exist_ok=True)

    def begin_run(self, run_id: str, about: dict[str, Any], lora: LoraSettings | None) -> None:
        folder = self.run_folder(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder / "run.json", json.dumps({"training_run_id": run_id, **about}))
        self._inputs.write(RunFolder(folder), lora)

    def record(self, run_id: str, last_step: int = 0) -> StepRecord:
        """Returns the record of a run, without what it has of steps after `last_step`."""
        folder = RunFolder(self.run_folder(run_id))
        return StepRecord(folder, self._inputs.text_of, last_step)

    def new_checkpoint(
        self, run_id: str, section: str, name: str, request_id: str, *, overwrite: bool = False
    ) -> tuple[Path, str]:
        """Returns the folder of a new checkpoint and its path in the API, after a check of its
        name. One that the same request has written is written again: the server was killed before
        it answered."""
        if not NAME.fullmatch(name):
            raise RequestError(
                f"checkpoint name {name[:200]!r}: letters, digits, '.', '_' and '-' are expected, "
                "at most 128, and no '.' or '-' at the beginning"
            )
        folder = self.run_folder(run_id) / section / name
        existing = None if overwrite else newest_checkpoint(folder)
        if existing and read_state(existing, is_checked=True).get("request_id") != request_id:
            raise RequestError(
                f"{section}/{name} exists already: choose another name, or overwrite"
            )
        return folder, f"tinker://{run_id}/{section}/{name}"

    def folder(self, path: str) -> Path:
        """Returns the folder of a checkpoint that exists."""
        match = PATH.fullmatch(path)
        folder = self.run_folder(match[1]) / match[2] / match[3] if match else None
        if folder is None or not folder.is_dir():
            raise RequestError(f"there is no checkpoint {path[:300]}", status=404)
        return folder

    def delete(self, path: str) -> None:
        shutil.rmtree(self.folder(path))

    def runs(self, limit: int, offset: int) -> dict[str, Any]:
        """Returns a page of the training runs, the latest first, in the form of the API."""
        files = sorted(self.root.glob("*/run.json"), key=lambda file: -file.stat().st_mtime)
        return _page("training_runs", [self._run(file) for file in files], limit, offset)

    def all_checkpoints(self, limit: int, offset: int) -> dict[str, Any]:
        checkpoints = [c for run in self._all() for c in self.checkpoints(run["training_run_id"])]
        return _page("checkpoints", checkpoints, limit, offset)

    def run(self, run_id: str) -> dict[str, Any]:
        file = self.run_folder(run_id) / "run.json"
        if not file.is_file():
            raise RequestError(f"there is no training run {run_id[:200]}", status=404)
        return self._run(file)

    def checkpoints(self, run_id: str) -> list[dict[str, Any]]:
        """Returns the checkpoints of a run, the latest first, in the form of the API."""
        checkpoints = []
        for section, checkpoint_type in SECTIONS.items():
            for folder in (self.run_folder(run_id) / section).glob("*"):
                files = [file for file in folder.rglob("*") if file.is_file()]
                checkpoints.append(
                    {
                        "checkpoint_id": f"{section}/{folder.name}",
                        "checkpoint_type": checkpoint_type,
                        "time": _time(folder),
                        "tinker_path": f"tinker://{run_id}/{section}/{folder.name}",
                        "size_bytes": sum(file.stat().st_size for file in files),
                    }
                )
        return sorted(checkpoints, key=lambda checkpoint: checkpoint["time"], reverse=True)

    def _run(self, file: Path) -> dict[str, Any]:
        about = json.loads(file.read_text())
        newest: dict[str, Any] = {}
        for checkpoint in self.checkpoints(about["training_run_id"]):
            newest.setdefault(checkpoint["checkpoint_type"], checkpoint)
        return about | {
            "last_request_time": _time(file.parent),
            "last_checkpoint": newest.get("training"),
            "last_sampler_checkpoint": newest.get("sampler"),
        }

    def run_ids(self, base_model: str) -> list[str]:
        """Returns the training runs of a base."""
        return [run["training_run_id"] for run in self._all() if run["base_model"] == base_model]

    def _all(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.root.glob("*/run.json")]

    def run_folder(self, run_id: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]+:train:\d+", run_id):
            raise RequestError(f"there is no training run {run_id[:200]}", status=404)
        return self.root / run_id.replace(":", "-")


def _page(name: str, rows: list[dict[str, Any]], limit: int, offset: int) -> dict[str, Any]:
    cursor = {"offset": offset, "limit": limit, "total_count": len(rows)}
    return {name: rows[offset : offset + limit], "cursor": cursor}


def _time(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
