"""Finds the whole checkpoints of a run by their manifests, and says what is wrong
with one. Imports no torch, for `ajet check`.

newest_checkpoint(run/checkpoints)  ->  run/checkpoints/step_000123
find_fault(step_000123)             ->  None, or "model.safetensors does not match its checksum"
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code

MANIFEST = "manifest.json"
FORMAT = 1
REPLACED = ".replaced_"
REMEMBERED = 1 << 26
"""Hashes of files of at least this many bytes are remembered. Hashing them takes longer than a tick
of a file system's clock, so a file that changes afterwards gets another modification time."""
WHAT_TO_DO = "use the model and lora settings of the run that wrote it"
_hashes: dict[tuple[int, ...], str] = {}


def find_checkpoint(path: Path) -> Path:
    """Returns the newest whole checkpoint in the run folder or checkpoints/ at `path`, or `path`
    itself if it is one."""
    for folder in (path / "checkpoints", path):
        newest = newest_checkpoint(folder)
        if newest is not None:
            return newest
    if path.name.startswith("step_") and path.is_dir():
        return path
    siblings = [folder.name for folder in candidates(path.parent)]
    verb = "is" if len(siblings) == 1 else "are"
    there = f"; there {verb} {', '.join(siblings)}" if siblings else ""
    raise CheckpointError(
        f"no checkpoint in {path}{there}; give a run folder or its checkpoints/step_N",
        code=Code.CHECKPOINT_NOT_FOUND,
    )


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the folder of the newest whole checkpoint, and logs the damaged ones it skips."""
    warnings: list[str] = []
    for path in candidates(folder):
        fault = find_fault(path)
        if fault is None:
            return path
        warnings.append(f"checkpoint {path} is damaged ({fault}): passed over")
        logger.warning(warnings[-1])
    if warnings:
        raise CheckpointError(
            f"no usable checkpoint in {folder}: {'; '.join(warnings)}; "
            "repair its disk, or remove the folder to start from scratch",
            code=Code.CHECKPOINT_UNUSABLE,
        )
    return None


def find_fault(path: Path) -> str | None:
    """Returns what is wrong with a checkpoint folder, or None; compares the hash of every file."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["digest"] != digest(manifest) or manifest["format"] != FORMAT:
            return f"{MANIFEST} does not match its own digest"
        if manifest["step"] != step_of(path):
            return f"{MANIFEST} is of step {manifest['step']}"
        for name, expected in manifest["files"].items():
            try:
                actual = fingerprint(path / name)
            except FileNotFoundError:
                return f"{Path(name).name} is missing"
            except OSError as error:
                return f"{name} cannot be read: {reason_of(error)}"
            if actual != expected:
                return f"{name} does not match its checksum"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} is unreadable: {reason_of(error)}"
    return None


def candidates(folder: Path) -> list[Path]:
    """Returns checkpoint folders, newest step first; a replaced one follows that of its step."""
    if not folder.is_dir():
        return []
    names = (p for p in folder.iterdir() if p.name.removeprefix(REPLACED).startswith("step_"))
    folders = [p for p in names if p.is_dir() and p.name.rpartition("_")[2].isdigit()]
    return sorted(
        folders, key=lambda p: (step_of(p), not p.name.startswith(REPLACED)), reverse=True
    )


def step_of(path: Path) -> int:
    """Returns the step of a checkpoint's folder."""
    return int(path.name.rpartition("_")[2])


def fingerprint(path: Path) -> dict[str, Any]:
    """Returns a file's size and hash, as the manifest has them. A large file is hashed once in a
    process, as long as its inode, size and times stay the same."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        times = (status.st_mtime_ns, status.st_ctime_ns)
        key = (status.st_dev, status.st_ino, status.st_size, *times)
        sha256 = _hashes.get(key) or hashlib.file_digest(file, "sha256").hexdigest()
    if status.st_size >= REMEMBERED:
        _hashes[key] = sha256
    return {"size": status.st_size, "sha256": sha256}


def digest(manifest: Mapping[str, Any]) -> str:
    """Returns the hash of a manifest's content without its own `digest`."""
    body = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def reason_of(error: Exception) -> str:
    """Describes the error in a few words, without the path that an `OSError` repeats."""
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


class WeightMismatch(CheckpointError):
    """Raised with the name of a tensor and what is wrong with it."""

    usual_code = Code.CHECKPOINT_DIFFERS

    def __str__(self) -> str:
        return f"checkpoint does not fit the model: {self.args[0]}; {WHAT_TO_DO}"


@contextmanager
def naming_checkpoint(path: Path) -> Iterator[None]:
    """Turns a `WeightMismatch` into a CheckpointError that names the checkpoint: "checkpoint
    …/step_000002 does not fit the model: head.weight (3, 2) is of shape (4, 2); use …"."""
    try:
        yield
    except WeightMismatch as mismatch:
        raise CheckpointError(
            f"checkpoint {path} does not fit the model: {mismatch.args[0]}; {WHAT_TO_DO}",
            code=mismatch.code,
        ) from mismatch
