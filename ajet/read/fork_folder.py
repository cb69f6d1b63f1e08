"""Writes and reads the forks of an episode: a folder in the run folder that reads like a run's, so
that `ajet view`, `ajet inspect replay` and `ajet inspect audit` can read it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.record.atomic_file import writing
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder, read_bytes_of
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.read.episode_reader import EpisodeRecord

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.read.recorded_run import RecordedRun

FORK_JSON = "fork.json"


def write_forks(
    run: RecordedRun, config: AjetConfig, members: Sequence[Trajectory], name: str
) -> Path:
    """Writes the original and its forks as a group into a new folder, and returns it:

        launcher_record/{experiment}/forks/{episode}-turn-{K}/     a second one: -2, …
        ├── episodes.sqlite    one group: the original, then its forks
        ├── fork.json          the table of `ajet inspect fork`
        ├── config.yaml, origin.json
        └── tokenizer          a link to the run's

    `members` get new indices in the group: all of them have that of the original."""
    folder = RunFolder(_new_folder(run.folder.forks, name))
    folder.save_config(config)
    run.origin.write(folder.origin_json)
    with writing(folder.tokenizer):
        folder.tokenizer.symlink_to(Path("..") / ".." / run.folder.tokenizer.name)
    plan = members[0].workflow_task
    numbered = tuple(
        replace(member, workflow_task=replace(member.workflow_task, rollout_index=number))
        for number, member in enumerate(members)
    )
    with EpisodeStore(folder.episodes_db) as store:
        store.write(plan.step, [Group(plan.group_id, numbered, plan.task)])
    return folder.path


def read_forks(run: RunFolder, episode_id: str) -> list[dict[str, Any]]:
    """Returns the tables of `ajet inspect fork` for one episode, by turn, each with its `folder`.
    Damaged and unfinished ones are left out."""
    if not run.forks.is_dir():
        return []
    forks = []
    for folder in sorted(run.forks.iterdir()):
        if not folder.name.startswith(f"{episode_id}-turn-"):
            continue
        try:
            table = json.loads(read_bytes_of(folder / FORK_JSON))
            names = ("turn", "model", "success", "reward")
            row = {**{name: table[name] for name in names}, "num_forks": len(table["forks"])}
            if table["episode"] == episode_id:
                forks.append({**row, "turn": int(row["turn"]), "folder": folder.name})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return sorted(forks, key=lambda row: row["turn"])


def recorded_trajectory(record: EpisodeRecord, plan: WorkflowTask) -> Trajectory:
    """Returns the trajectory of a recorded episode, without advantages and selection."""
    row, outcome = record.row, EpisodeStatus(record.outcome)
    is_whole = row.reward is not None or record.metadata or record.log_metrics
    output = WorkflowOutput(
        metadata=record.metadata,
        log_metrics=record.log_metrics,
        agent_rewards=record.agent_rewards,
    )
    return Trajectory(
        plan,
        tuple(Turn(*(getattr(turn, f.name) for f in fields(Turn))) for turn in record.turns),
        outcome,
        output=output if is_whole else None,
        reward=row.reward,
        is_success=row.is_success,
        reward_breakdown=record.reward_breakdown,
        failure=None if record.truncation else row.error,
        truncation=record.truncation,
        timings=record.timings,
        began_unix_s=record.began_unix_s or 0.0,
        calls=record.calls,
    )


def _new_folder(parent: Path, name: str) -> Path:
    """Makes a folder with this name, or with the next free number after it."""
    with writing(parent):
        parent.mkdir(exist_ok=True)
        for number in count(1):
            folder = parent / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    raise AssertionError("count() has no end")
