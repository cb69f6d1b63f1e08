"""Finds the checkpoint from which a run resumes.

find_resume_point(folder, "auto")         the newest whole checkpoint, or None
find_resume_point(folder, "disable")      None
find_resume_point(folder, "…/step_000040")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.checkpoint.manifest import newest_checkpoint, step_of
from ajet.core.record.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Holds a complete checkpoint's folder and step, and the run's state in it."""

    path: Path
    step: int
    state: dict[str, Any]


def find_resume_point(folder: RunFolder, resume: str) -> ResumePoint | None:
    """Returns the checkpoint that `trainer_common.resume` names; None starts at step 0."""
    if resume == "disable":
        return None
    if resume == "auto":
        path = newest_checkpoint(folder.checkpoints)
        if path is None:
            return None
        return ResumePoint(path, step_of(path), read_state(path, is_checked=True))
    path = Path(resume)
    state = read_state(path)  # raises before anything is moved
    folder.archive_checkpoints_after(step_of(path))
    return ResumePoint(path, step_of(path), state)
