"""The state of a run in its checkpoint, besides weights, optimizer and random state; finds the
checkpoint from which a run resumes."""

from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict
from typing_extensions import TypedDict

from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.checkpoint.manifest import newest_checkpoint, step_of
from ajet.core.config.rollout import Decoding
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.timeline_counts import TimelineCounts

SuccessByTask = dict[str, float]


class ExplorerState(TypedDict):
    """Holds backbone trinity's position: the next group, the data's cursor before it, the running
    groups with their tasks, the number of groups left out, and the groups whose results the cursor
    does not have yet."""

    next: int
    cursor: dict[str, Any]
    in_flight: list[tuple[int, int]]
    aside: int
    unseen: NotRequired[list[int]]


@dataclass
class RunState:
    """Holds the state after the last complete step.

    `cursor` is the position in the data. `held_out` maps "before" (training) and "after"
    (`validated_step` steps) to the success on each held-out task; `second_held_out` has the same by
    the second decoding, `cross_entropy` that of a supervised run's held-out rows. `seconds` is the
    duration of training. `begun` is the date that a chat template may write into prompts (ISO
    8601). `timelines` counts over all steps. `staleness` counts trained tokens by their age in
    updates (empty on-policy).
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int = 0
    num_episodes: int = 0
    seconds: float = 0.0
    cursor: dict[str, Any] = field(default_factory=dict)
    validated_step: int = -1
    begun: str = field(default_factory=lambda: datetime.now().isoformat())
    held_out: dict[str, SuccessByTask] = field(default_factory=dict)
    second_held_out: dict[Decoding, dict[str, SuccessByTask]] = field(default_factory=dict)
    cross_entropy: dict[str, float] = field(default_factory=dict)
    timelines: TimelineCounts = field(default_factory=TimelineCounts)
    staleness: dict[str, int] = field(default_factory=dict)
    explorer: ExplorerState | None = None

    def __post_init__(self) -> None:
        datetime.fromisoformat(self.begun)  # raises ValueError for a damaged checkpoint

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def success(self, moment: str) -> float | None:
        """Returns the mean success over the held-out tasks, or None without a validation."""
        return _mean(self.held_out.get(moment))

    def success_by_decoding(self, run_decoding: Decoding) -> dict[str, dict[str, float | None]]:
        """Returns the mean success by decoding and moment, the run's main decoding first."""
        results = {run_decoding: self.held_out} | self.second_held_out
        return {
            decoding: {moment: _mean(by_moment.get(moment)) for moment in ("before", "after")}
            for decoding, by_moment in results.items()
            if by_moment
        }


def _mean(success_by_task: SuccessByTask | None) -> float | None:
    return sum(success_by_task.values()) / len(success_by_task) if success_by_task else None


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Holds a complete checkpoint's folder and step, and the run's state in it."""

    path: Path
    step: int
    state: dict[str, Any]


def find_resume_point(folder: RunFolder, resume: str) -> ResumePoint | None:
    """Returns the checkpoint that `trainer_common.resume` names: the newest whole one ("auto"),
    none ("disable") or that of a folder. None starts at step 0."""
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
