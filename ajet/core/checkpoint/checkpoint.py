"""Checkpoints: each is either whole or absent, whenever the process is killed.

    checkpoints/step_000123/
        model.safetensors      trainable weights, under the model's own names
        tensors.safetensors    the optimizer's state and any other tensor
        shards/                instead of these two, where several ranks write (shard_files.py)
        state.json             counters, data cursor, seeds and any other JSON
        manifest.json          size and sha256 of every file above, and its own digest

All ranks call these functions together; a failure on one raises the same `CheckpointError` on all.

    write = prepare_checkpoint(folder, step, tensors, state, copies=True)
    write()                                                    in any thread, during the next step
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from loguru import logger
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ajet.core.checkpoint.manifest import (
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
from ajet.core.checkpoint.shard_files import (
    files_of_rank,
    has_shards,
    names_in,
    read_shards,
    require_shapes,
    shards_to_write,
    write_shards,
)
from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.ranks.shards import copy_tensor, full_tensor

WEIGHT_PREFIX = "model."
WEIGHTS_FILE, TENSORS_FILE, STATE_FILE = "model.safetensors", "tensors.safetensors", "state.json"
WRITING, DISCARDED = ".writing_", ".discarded_"
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def prepare_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    files: Mapping[str, bytes] | None = None,
    ranks: Ranks = ONE_RANK,
    shares_folder: bool = True,
    copies: bool = False,
) -> Callable[[], Path]:
    """Returns the function that writes ``folder/step_{step:06d}`` and, when it is on the disk,
    removes all but the `keep` newest.

    With `copies` the tensors may change before it has returned: it writes their present values.
    With one rank, or where ranks do not share the
    folder, rank 0 writes whole tensors, and those named ``model.…`` go to model.safetensors
    without that prefix. `files` go into the same folder: with a config.json and a tokenizer it
    loads as a model. If an update runs during the write, `ranks` need a separate group
    (`Ranks.apart`)."""
    state_text = json.dumps(state, allow_nan=False)
    if ranks.size == 1 or not shares_folder:
        saved = _gather_tensors(tensors, ranks.rank, copies=copies)
    else:
        saved = shards_to_write(tensors, copies=copies)
    return partial(
        _write_checkpoint,
        folder,
        step,
        saved,
        state_text,
        keep=keep,
        files=files or {},
        ranks=ranks,
        shares_folder=shares_folder,
    )


def _write_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state_text: str,
    *,
    keep: int,
    files: Mapping[str, bytes],
    ranks: Ranks,
    shares_folder: bool,
) -> Path:
    target = folder / f"step_{step:06d}"
    # Everything is written under another name and renamed at the end. A save that is killed leaves
    # this folder or the whole checkpoint, and the next save removes it.
    writing = folder / f"{WRITING}{target.name}"

    def on_all_ranks(act: Callable[[], Any]) -> list[Any]:
        """Runs `act` on every rank, and returns the results of all ranks."""
        cause: Exception | None = None
        result: Any = None
        try:
            result = act()
        except (OSError, SafetensorError) as error:
            cause = error
        # A rank that failed must reach this collective too, or the others would wait for it.
        pairs = ranks.all_gather((result, None if cause is None else reason_of(cause)))
        failures = [reason for _, reason in pairs if reason is not None]
        if failures:
            if ranks.rank == 0:
                shutil.rmtree(writing, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {target} was not saved: {failures[0]}; earlier checkpoints are "
                "intact, make room, repair the disk or choose another folder, and resume",
                code=Code.CHECKPOINT_NOT_SAVED,
            ) from cause
        return [rank_result for rank_result, _ in pairs]

    def on_rank_0(act: Callable[[], None]) -> None:
        on_all_ranks(act if ranks.rank == 0 else lambda: None)

    on_rank_0(lambda: _begin(folder, writing))
    if ranks.size == 1 or not shares_folder:
        on_rank_0(lambda: _write_tensors(writing, tensors))
    else:
        on_all_ranks(lambda: _check_shared(writing, ranks.rank))
        on_all_ranks(lambda: write_shards(writing, tensors, ranks))
    # Shards are large, so each rank hashes its own; rank 0 hashes the other files.
    by_rank = on_all_ranks(lambda: _fingerprints(writing, ranks.rank))
    fingerprints = {name: entry for entries in by_rank for name, entry in entries.items()}

    def finish() -> None:
        (writing / STATE_FILE).write_text(state_text)
        for name, content in files.items():
            (writing / name).parent.mkdir(parents=True, exist_ok=True)
            (writing / name).write_bytes(content)
        _write_manifest(writing, step, fingerprints)
        _rename_into_place(writing, target)

    on_rank_0(finish)
    if ranks.rank == 0:
        try:
            _remove_older(folder, step, max(keep, 2))
        except OSError as error:
            reason = reason_of(error)
            logger.warning(f"older checkpoints in {folder} could not be removed: {reason}")
    return target


def read_checkpoint(
    path: Path,
    *,
    like: Mapping[str, Tensor] | None = None,
    ranks: Ranks = ONE_RANK,
    shares_folder: bool = True,
) -> Checkpoint:
    """Reads the checkpoint at `path`, which must be whole. With `like` (`Learner.template()`) its
    tensors are sharded as those are. Unless the ranks share the folder, only rank 0 reads it."""
    # Hashing reads every byte, so rank 0 does it for all.
    fault = _from_rank_0(ranks, lambda: find_fault(path))
    if fault is not None:
        raise unusable(path, fault)
    if like is None or shares_folder:
        return _read(path, like)
    return _read_on_rank_0(path, like, ranks)


def read_state(path: Path, *, is_checked: bool = False) -> dict[str, Any]:
    """Reads state.json of the checkpoint at `path`, after hashing its files unless `is_checked`."""
    if not is_checked and (fault := find_fault(path)) is not None:
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
            return read_shards(path, selects=lambda name: name.startswith(WEIGHT_PREFIX))
        return {f"{WEIGHT_PREFIX}{n}": t for n, t in load_file(path / WEIGHTS_FILE).items()}


def checked_state(state_type: type[State], content: Any, path: Path) -> State:
    """Validates a part of the state.json of the checkpoint at `path`."""
    try:
        return TypeAdapter(state_type).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"])) or "its content"
        raise unusable(path, f"{STATE_FILE}: {location}: {first['msg']}") from error


def unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} cannot be used: {reason}; move it away to resume from an earlier one",
        code=Code.CHECKPOINT_UNUSABLE,
    )


def _from_rank_0(ranks: Ranks, find: Callable[[], Any]) -> Any:
    """Returns on every rank what rank 0 finds; an error of rank 0 is raised on every rank."""
    result, fault = None, None
    if ranks.rank == 0:
        try:
            result = find()
        except CheckpointError as error:
            fault = error
    result, fault = ranks.all_gather((result, fault))[0]
    if fault is not None:
        raise CheckpointError(str(fault), code=fault.code)
    return result


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
    """Reads a checkpoint that only rank 0 sees, and shards its tensors as those of `like`."""
    whole: dict[str, Tensor] = {}

    def read() -> tuple[dict[str, Any], dict[str, tuple[torch.Size, torch.dtype]]]:
        checkpoint = _read(path, None)
        whole.update(checkpoint.tensors)
        return checkpoint.state, {n: (t.shape, t.dtype) for n, t in whole.items()}

    state, described = _from_rank_0(ranks, read)
    with _reading(path):
        tensors = _scatter_tensors(whole, described, like)
    return Checkpoint(path, step_of(path), tensors, state)


def _gather_tensors(tensors: Mapping[str, Tensor], rank: int, *, copies: bool) -> dict[str, Tensor]:
    """Returns whole tensors in CPU memory on rank 0, and none on the others."""
    gathered: dict[str, Tensor] = {}
    # One after another: a GPU has room for one whole tensor, not for all.
    for name, tensor in tensors.items():
        whole = full_tensor(tensor.detach())
        if rank == 0:
            gathered[name] = whole.to("cpu", copy=copies).contiguous()
    return gathered


def _scatter_tensors(
    whole: Mapping[str, Tensor],
    described: Mapping[str, tuple[torch.Size, torch.dtype]],
    like: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Returns rank 0's tensors (`whole`, empty on other ranks), sharded as those of `like`.
    `described` has their shapes and dtypes on every rank."""
    names = names_in(described, like)
    require_shapes({n: like[n].shape for n in names}, {n: described[n][0] for n in names})
    scattered = {}
    for name in names:
        tensor = whole.get(name)
        if tensor is None:
            shape, dtype = described[name]
            tensor = torch.empty(shape, dtype=dtype)
        dist.broadcast(tensor, 0)
        scattered[name] = torch.empty_like(like[name])
        copy_tensor(scattered[name], tensor)
    return scattered


def _state(path: Path) -> dict[str, Any]:
    state = json.loads((path / STATE_FILE).read_bytes())
    if not isinstance(state, dict):
        raise ValueError(f"{STATE_FILE} is not a JSON object")
    return state


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises an error that names the checkpoint: files that fit their checksums may still be
    forged, or written by another version."""
    try:
        yield
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise unusable(path, reason_of(error)) from error


def _begin(folder: Path, writing: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():  # left by a save that was killed
        if path.name.startswith((WRITING, DISCARDED)):
            shutil.rmtree(path)
    writing.mkdir()


def _check_shared(writing: Path, rank: int) -> None:
    if not writing.is_dir():
        raise OSError(f"rank {rank} does not see the folder that rank 0 made")


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    cut = len(WEIGHT_PREFIX)
    weights = {n[cut:]: t for n, t in tensors.items() if n.startswith(WEIGHT_PREFIX)}
    other_tensors = {n: t for n, t in tensors.items() if not n.startswith(WEIGHT_PREFIX)}
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    save_file(other_tensors, folder / TENSORS_FILE)


def _fingerprints(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Flushes and hashes the shards that this rank wrote."""
    files = files_of_rank(folder, rank)
    for file in files:
        _fsync(file)
    return {str(file.relative_to(folder)): fingerprint(file) for file in files}


def _write_manifest(folder: Path, step: int, fingerprints: Mapping[str, dict[str, Any]]) -> None:
    names = {path: str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))}
    for path, name in names.items():
        if name not in fingerprints:  # a shard was flushed by the rank that wrote it
            _fsync(path)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "files": {
            name: fingerprints.get(name) or fingerprint(path)
            for path, name in names.items()
            if path.is_file()
        },
    }
    manifest["digest"] = digest(manifest)
    # Written last: a folder with a manifest has all files that the manifest names.
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _fsync(folder / MANIFEST)
    _fsync(folder)


def _rename_into_place(writing: Path, target: Path) -> None:
    # A folder of this step exists where a load found it damaged and the step ran again. It keeps a
    # name that `candidates` finds until the new one is in place.
    if target.exists():
        replaced = target.with_name(f"{REPLACED}{target.name}")
        if replaced.exists():
            _discard(replaced)
        target.rename(replaced)
    writing.rename(target)
    _fsync(target.parent)  # a rename is durable only once its directory is flushed


def _remove_older(folder: Path, step: int, keep: int) -> None:
    """Removes all but the `keep` newest checkpoints up to `step`, and damaged ones of later steps,
    which are there if the run resumed from an earlier checkpoint."""
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
