"""Finds the whole checkpoints of a run by their manifests, without reading a tensor.

    newest_checkpoint(run/checkpoints)  ->  run/checkpoints/step_000123
    find_fault(step_000123)             ->  None, or "model.safetensors does not match its checksum"

It imports no torch, so that `ajet check` can look at a run folder too. Not covered: what is in a
checkpoint, how it is written and read (checkpoint.py).
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1
REPLACED = ".replaced_"
REMEMBERED = 1 << 26
"""The bytes from which a file's hash is remembered. To hash so many takes longer than the clock of
a file system takes to its next tick, so a later change has another time."""
_hashes: dict[tuple[int, ...], str] = {}


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the folder of the newest whole checkpoint, and logs those that it passes over."""
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
            "mend its disk, or remove the folder to start afresh",
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
                found = fingerprint(path / name)
            except FileNotFoundError:
                return f"{Path(name).name} is missing"
            except OSError as error:
                return f"{name} cannot be read: {reason_of(error)}"
            if found != expected:
                return f"{name} does not match its checksum"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} is unreadable: {reason_of(error)}"
    return None


def candidates(folder: Path) -> list[Path]:
    """Returns checkpoint folders, newest step first; a replaced one comes after the one of its
    step.
    """
    if not folder.is_dir():
        return []
    names = (p for p in folder.iterdir() if p.name.removeprefix(REPLACED).startswith("step_"))
    found = [p for p in names if p.is_dir() and p.name.rpartition("_")[2].isdigit()]
    return sorted(found, key=lambda p: (step_of(p), not p.name.startswith(REPLACED)), reverse=True)


def step_of(path: Path) -> int:
    """Returns the step of a checkpoint's folder."""
    return int(path.name.rpartition("_")[2])


def fingerprint(path: Path) -> dict[str, Any]:
    """Returns a file's size and hash, as the manifest has them. A large file is hashed once in a
    process, as long as the file system says that it is the same."""
    with path.open("rb") as file:
        of = os.fstat(file.fileno())
        state = (of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns)
        found = _hashes.get(state) or hashlib.file_digest(file, "sha256").hexdigest()
    if of.st_size >= REMEMBERED:
        _hashes[state] = found
    return {"size": of.st_size, "sha256": found}


def digest(manifest: Mapping[str, Any]) -> str:
    """Returns the hash of a manifest's content; the manifest holds it itself."""
    body = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def reason_of(error: Exception) -> str:
    """Describes the error in a few words, without the path that an `OSError` repeats."""
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
