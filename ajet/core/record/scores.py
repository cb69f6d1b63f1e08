"""Stores the log-probabilities of an episode's tokens under checkpoints (see `ajet inspect score`).

    scores/000012-train-0003-01.json    [{"step": 0, "turns": [[-1.2, -0.03], …]}, {"step": 20, …}]

One list for each call, with the natural log-probability of each sampled token. Step 0 is the model
that the run began with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from ajet.core.errors import RecordError
from ajet.core.record.atomic_file import write_text_atomically, writing
from ajet.core.record.run_folder import RunFolder, is_file


@dataclass(frozen=True, slots=True)
class EpisodeScores:
    """Holds the log-probabilities of an episode's sampled tokens after one step, by call."""

    step: int
    turns: Sequence[Sequence[float]]


def scores_file(folder: RunFolder, episode_id: str) -> Path:
    # Quoted, because a damaged record may hold an id that is a path.
    return folder.scores / f"{quote(episode_id, safe='')}.json"


def read_scores(folder: RunFolder, episode_id: str) -> list[EpisodeScores]:
    """Returns the scores of an episode in the order of steps."""
    file = scores_file(folder, episode_id)
    if not is_file(file):
        return []
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        return [
            EpisodeScores(int(row["step"]), [list(map(float, turn)) for turn in row["turns"]])
            for row in rows
        ]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(
            f"{file} cannot be read: {reason}; remove it, and use ajet inspect score again"
        ) from error


def add_scores(folder: RunFolder, episode_id: str, new_scores: Sequence[EpisodeScores]) -> Path:
    """Adds scores to those of other steps, and returns the file."""
    kept = {scores.step: scores for scores in (*read_scores(folder, episode_id), *new_scores)}
    rows = [asdict(kept[step]) for step in sorted(kept)]
    file = scores_file(folder, episode_id)
    with writing(file):
        file.parent.mkdir(exist_ok=True)
    write_text_atomically(file, json.dumps(rows))
    return file
