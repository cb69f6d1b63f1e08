"""Checkpoints: each is either whole or absent (promise 8).

    checkpoints/step_000123/
        model.safetensors      trainable weights, under the model's own names
        tensors.safetensors    the optimizer's state and any other tensor
        state.json             counters, data cursor, seeds and any other JSON
        manifest.json          size and sha256 of every file above, and its own digest

Several ranks write one shard each instead of the two files of tensors (shard_files.py):

        shards/                shard-00001-….safetensors and so on

Any number of ranks can read either kind. Ranks that do not all see the folder leave it to rank 0:
it gathers the tensors, one after another, into the two files, and sends each rank its parts.

A save writes into `.writing_step_…`, flushes every file, the manifest last, renames the folder and
flushes the parent. Killed at any moment, it leaves either the whole folder or a `.writing_` one,
which the next save removes. No pickle is used. Files that fit their checksums and still hold no
checkpoint (forged, or of another version) are a `CheckpointError` that names the folder.

All ranks call these functions together; a failure on one rank raises the same `CheckpointError` on
all.

Not covered: which checkpoint is whole (manifest.py), remote storage.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from loguru import logger
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError
from ajet.core.update.manifest import (
    FORMAT,
    MANIFEST,
    REPLACED,
    candidates,
    digest,
    find_fault,
    fingerprint,
    reason_of,
    step_of,
)
from ajet.core.update.ranks import ONE_RANK, Ranks
from ajet.core.update.shard_files import files_of_rank, has_shards, read_shards, write_shards
from ajet.core.update.whole_tensors import WholeTensor, gather_tensors, scatter_tensors

WEIGHT_PREFIX = "model."
WEIGHTS_FILE, TENSORS_FILE, STATE_FILE = "model.safetensors", "tensors.safetensors", "state.json"
WRITING, DISCARDED = ".writing_", ".discarded_"
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Holds a loaded checkpoint."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    files: Mapping[str, bytes] | None = None,
    ranks: Ranks = ONE_RANK,
    shares_folder: bool = True,
) -> Path:
    """Writes ``folder/step_{step:06d}``; when it is durable, removes all but the `keep` newest.

    From one rank, or where ranks do not share the folder, tensors named ``model.…`` go to
    model.safetensors without that prefix. `files` are written beside them (a config.json and a
    tokenizer make the folder loadable as a model).
    """
    writer = _CheckpointWriter(folder, folder / f"step_{step:06d}", ranks)
    writer.on_rank_0(writer.begin)
    if ranks.size == 1 or not shares_folder:
        whole = gather_tensors(tensors, ranks.rank)
        writer.on_rank_0(lambda: _write_tensors(writer.writing, whole))
    else:
        writer.on_all_ranks(writer.check_folder)
        writer.on_all_ranks(lambda: write_shards(writer.writing, tensors))
    fingerprints = writer.on_all_ranks(lambda: _fingerprints(writer.writing, ranks.rank))
    writer.on_rank_0(lambda: _write_state(writer.writing, state, files or {}))
    known = {name: each for of_rank in fingerprints for name, each in of_rank.items()}
    writer.on_rank_0(lambda: _write_manifest(writer.writing, step, known))
    writer.on_rank_0(lambda: _rename_into_place(writer.writing, writer.target))
    if ranks.rank == 0:
        try:
            _remove_older(folder, step, max(keep, 2))
        except OSError as error:
            reason = reason_of(error)
            logger.warning(f"older checkpoints in {folder} could not be removed: {reason}")
    return writer.target


@dataclass(frozen=True, slots=True)
class _CheckpointWriter:
    """Runs the steps of a save; all ranks finish one before the next begins."""

    folder: Path
    target: Path
    ranks: Ranks

    @property
    def writing(self) -> Path:
        return self.folder / f"{WRITING}{self.target.name}"

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():  # what a killed save has left
            if path.name.startswith((WRITING, DISCARDED)):
                shutil.rmtree(path)
        self.writing.mkdir()

    def check_folder(self) -> None:
        if not self.writing.is_dir():
            raise OSError(f"rank {self.ranks.rank} does not see the folder that rank 0 made")

    def on_rank_0(self, act: Callable[[], None]) -> None:
        self.on_all_ranks(act if self.ranks.rank == 0 else lambda: None)

    def on_all_ranks(self, act: Callable[[], Any]) -> list[Any]:
        """Runs `act` on every rank, and returns the results of all ranks."""
        cause: Exception | None = None
        result: Any = None
        try:
            result = act()
        except (OSError, SafetensorError) as error:
            cause = error
        pairs = self.ranks.all_gather((result, None if cause is None else reason_of(cause)))
        failed = [reason for _, reason in pairs if reason is not None]
        if failed:
            self._abort(failed[0], cause)
        return [each for each, _ in pairs]

    def _abort(self, reason: str, cause: Exception | None) -> NoReturn:
        if self.ranks.rank == 0:
            shutil.rmtree(self.writing, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint {self.target} was not saved: {reason}; earlier checkpoints are intact, "
            "make room, mend the disk or choose another folder, and resume",
            code=Code.CHECKPOINT_NOT_SAVED,
        ) from cause


def read_checkpoint(
    path: Path,
    *,
    like: Mapping[str, Tensor] | None = None,
    ranks: Ranks = ONE_RANK,
    shares_folder: bool = True,
) -> Checkpoint:
    """Reads the checkpoint at `path`, which must be whole. With `like` (`Learner.template()`) its
    tensors are sharded as those are. Unless the ranks share the folder, rank 0 alone reads it."""
    fault = _from_rank_0(ranks, lambda: find_fault(path))
    if fault is not None:
        raise unusable(path, fault)
    if like is None or shares_folder:
        return _read(path, like)
    return _read_on_rank_0(path, like, ranks)


def read_state(path: Path, *, is_checked: bool = False) -> dict[str, Any]:
    """Reads state.json of the checkpoint at `path`, which must be whole.

    Unless `is_checked`, all files are read and hashed first.
    """
    fault = None if is_checked else find_fault(path)
    if fault is not None:
        raise unusable(path, fault)
    with _reading(path):
        return _state(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads only the weights of the checkpoint at `path`, which must be whole."""
    fault = find_fault(path)
    if fault is not None:
        raise unusable(path, fault)
    with _reading(path):
        if has_shards(path):
            return read_shards(path, wanted=lambda name: name.startswith(WEIGHT_PREFIX))
        return {f"{WEIGHT_PREFIX}{n}": t for n, t in load_file(path / WEIGHTS_FILE).items()}


def checked_state(kind: type[State], content: Any, path: Path) -> State:
    """Returns a part of the state.json of the checkpoint at `path` as a value of this type."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise unusable(path, f"{STATE_FILE}: {where}: {first['msg']}") from error


def unusable(path: Path, reason: str) -> CheckpointError:
    """Returns the error of a checkpoint that cannot be used."""
    return CheckpointError(
        f"checkpoint {path} cannot be used: {reason}; move it away to go on from an earlier one",
        code=Code.CHECKPOINT_UNUSABLE,
    )


def _from_rank_0(ranks: Ranks, find: Callable[[], Any]) -> Any:
    """Returns on every rank what rank 0 finds; an error of rank 0 is raised on every rank."""
    found, fault = None, None
    if ranks.rank == 0:
        try:
            found = find()
        except CheckpointError as error:
            fault = error
    found, fault = ranks.all_gather((found, fault))[0]
    if fault is not None:
        raise CheckpointError(str(fault), code=fault.code)
    return found


def _read(path: Path, like: Mapping[str, Tensor] | None) -> Checkpoint:
    with _reading(path):
        if has_shards(path):
            tensors = read_shards(path, like)
        else:
            tensors = load_file(path / TENSORS_FILE)
            tensors |= {f"{WEIGHT_PREFIX}{n}": t for n, t in load_file(path / WEIGHTS_FILE).items()}
        state = _state(path)
    return Checkpoint(path, step_of(path), tensors, state)


def _read_on_rank_0(path: Path, like: Mapping[str, Tensor], ranks: Ranks) -> Checkpoint:
    """Reads a checkpoint that the other ranks do not see; its tensors are sharded as those of
    `like`."""
    whole: dict[str, Tensor] = {}

    def read() -> tuple[dict[str, Any], dict[str, WholeTensor]]:
        found = _read(path, None)
        whole.update(found.tensors)
        return found.state, {n: WholeTensor(t.shape, t.dtype) for n, t in whole.items()}

    state, described = _from_rank_0(ranks, read)
    with _reading(path):
        tensors = scatter_tensors(whole, described, like)
    return Checkpoint(path, step_of(path), tensors, state)


def _state(path: Path) -> dict[str, Any]:
    state = json.loads((path / STATE_FILE).read_bytes())
    if not isinstance(state, dict):
        raise ValueError(f"{STATE_FILE} holds no object")
    return state


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the checkpoint whose files fit their checksums and cannot be read."""
    try:
        yield
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise unusable(path, reason_of(error)) from error


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    cut = len(WEIGHT_PREFIX)
    weights = {n[cut:]: t for n, t in tensors.items() if n.startswith(WEIGHT_PREFIX)}
    others = {n: t for n, t in tensors.items() if not n.startswith(WEIGHT_PREFIX)}
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    save_file(others, folder / TENSORS_FILE)


def _write_state(folder: Path, state: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    (folder / STATE_FILE).write_text(json.dumps(state, allow_nan=False))
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _fingerprints(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Flushes and hashes the shards that this rank wrote: they are large, so all ranks hash."""
    files = files_of_rank(folder, rank)
    for file in files:
        _fsync(file)
    return {str(file.relative_to(folder)): fingerprint(file) for file in files}


def _write_manifest(folder: Path, step: int, known: Mapping[str, dict[str, Any]]) -> None:
    entries = sorted(folder.rglob("*"))
    names = {path: str(path.relative_to(folder)) for path in entries}
    for path in entries:
        if names[path] not in known:
            _fsync(path)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "files": {
            name: known.get(name) or fingerprint(path)
            for path, name in names.items()
            if path.is_file()
        },
    }
    manifest["digest"] = digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _fsync(folder / MANIFEST)
    _fsync(folder)


def _rename_into_place(writing: Path, target: Path) -> None:
    # A folder of this step exists if it was found damaged and the step was run again. It is renamed
    # first, to a name that a load still finds.
    if target.exists():
        replaced = target.with_name(f"{REPLACED}{target.name}")
        if replaced.exists():
            _discard(replaced)
        target.rename(replaced)
    writing.rename(target)
    _fsync(target.parent)


def _remove_older(folder: Path, step: int, keep: int) -> None:
    """Removes checkpoints beyond `keep`, and damaged later ones, which a run that fell back
    leaves.
    """
    kept = 0
    for path in candidates(folder):
        if path.name.startswith(REPLACED):
            _discard(path)
        elif step_of(path) > step:
            if find_fault(path):
                _discard(path)
        else:
            kept += 1
            if kept > keep:
                _discard(path)


def _discard(path: Path) -> None:
    # Renamed first, so that a half-removed folder never has a checkpoint's name.
    aside = path.with_name(f"{DISCARDED}{path.name.lstrip('.')}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
