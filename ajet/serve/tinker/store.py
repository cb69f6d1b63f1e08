"""What is on disk: a folder for each training run, with its checkpoints and the record of its
steps, so that `ajet view` and other readers understand it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.checkpoint.manifest import newest_checkpoint
from ajet.core.config import AjetConfig
from ajet.core.config.nested import with_values
from ajet.core.errors import AjetError
from ajet.core.record.atomic_file import write_text_atomically, writing
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.update.settings import LoraSettings
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker.step_data import StepData, StepEpisodes, TextOf
from ajet.serve.tinker.wire import Datum, LossResult


@dataclass(frozen=True)
class RunInputs:
    """What a run folder gets when its training run begins, so that it can be read by itself."""

    config: AjetConfig
    stop_token_ids: tuple[int, ...]
    tokenizer: Path
    text_of: TextOf

    def write(self, folder: RunFolder, lora: LoraSettings | None) -> None:
        folder.logs.mkdir(parents=True, exist_ok=True)
        numbers = {"rank": lora.rank, "alpha": lora.alpha} if lora else {"rank": 0}
        section = "ajet.trainer_common.lora"
        changed = {f"{section}.{name}": number for name, number in numbers.items()}
        folder.save_config(with_values(self.config, changed))
        begun = datetime.now().isoformat(timespec="seconds")
        RunOrigin.from_config(self.config, self.stop_token_ids, begun).write(folder.origin_json)
        with writing(folder.tokenizer):
            shutil.copytree(self.tokenizer, folder.tokenizer, dirs_exist_ok=True)


class StepRecord:
    """Records the steps of one training run; used by the thread that trains. It only reads what
    training has computed. Where it cannot be written, training continues."""

    def __init__(self, folder: RunFolder, text_of: TextOf, last_step: int = 0) -> None:
        """Continues after `last_step`: what was recorded of later steps is removed."""
        self.last_step = last_step
        self._folder, self._text_of, self._since = folder, text_of, StepData()
        self._store = EpisodeStore(folder.episodes_db)
        self._store.truncate_from(last_step + 1)
        self._metrics = MetricsLogger([], folder, start_step=last_step + 1)

    def add(
        self, loss_fn: str, config: Mapping[str, float], data: Sequence[Datum], result: LossResult
    ) -> None:
        """Adds a request whose gradients the next step takes."""
        self._since.add(loss_fn, config, data, result)

    def clear(self) -> None:
        """Drops the data since the last step, whose gradients were dropped after a failure."""
        self._since = StepData()

    def step(self, metrics: Mapping[str, float]) -> None:
        """Writes the data since the last step as the next one; `metrics` are the optimizer's."""
        self.last_step += 1
        since, self._since = self._since, StepData()
        groups = since.groups()
        episodes = StepEpisodes(self.last_step, groups, self._text_of)
        parts = episodes.groups, episodes.advantages, episodes.samples, episodes.tokens
        try:
            self._store.write(self.last_step, *parts)
            self._metrics.log(self.last_step, {**since.metrics(groups), **metrics})
        except AjetError as error:
            logger.warning(f"step {self.last_step} of {self._folder.path} is not recorded: {error}")

    def close(self) -> None:
        self._metrics.close()
        self._store.close()


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
