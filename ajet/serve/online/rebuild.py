"""Trains the promoted versions again from the base model, the config and the log alone.

    version 0 ── round 1 ──> version 1 ── round 3 ──> version 3      (round 2 was rolled back)
                             = checksum?              = checksum?

No checkpoint is read. Equal checksums mean that every weight has the same bits as the one that was
served. Other package versions or another machine may round differently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.read.recorded_run import RecordedRun
from ajet.serve.online.log import FILE, SessionLog
from ajet.serve.online.round import RoundLearner, groups_of


@dataclass(frozen=True, slots=True)
class RebuiltVersion:
    """A version's checksum in the log, and that of the rebuilt weights."""

    version: int
    recorded: str | None
    rebuilt: str
    adapter: str = ""

    @property
    def is_same(self) -> bool:
        return self.recorded == self.rebuilt


def rebuild(run: RecordedRun, out: Path | None = None) -> Iterator[RebuiltVersion]:
    """Yields the promoted versions as they are rebuilt, up to the first one that differs. Saves
    them as checkpoints in the folder `out`, if there is one."""
    if not (run.folder.path / FILE).exists():
        raise CheckpointError(
            f"{run.folder.path} is not a run of `ajet serve --learn`: it has no {FILE}",
            code=Code.RUN_NOT_FOUND,
        )
    log = SessionLog(run.folder.path)
    os.chdir(run.current_folder)  # the model's path may be relative
    learner, versions = RoundLearner(run.config, run.folder), dict[str, int]()
    for round_ in log.rounds():
        if round_.state != "promoted":
            continue
        version, adapter = round_.number, round_.adapter
        base = versions.get(adapter, 0)
        assert round_.base == base, f"round {version} began from {round_.base}"
        versions[adapter] = version
        learner.train(groups_of(log.sessions_of(version), version), version)
        checksum = learner.checksum(version, adapter)
        rebuilt = RebuiltVersion(version, round_.checksum, checksum, adapter)
        if out is not None:
            learner.save(out, version)
        yield rebuilt
        if not rebuilt.is_same:
            break
    log.close()
