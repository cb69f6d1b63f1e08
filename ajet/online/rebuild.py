"""Makes the promoted versions again from the base model, the config and the log alone.

    version 0 ── round 1 ──> version 1 ── round 3 ──> version 3      (round 2 was rolled back)
                             = checksum?              = checksum?

Of several adapters each round trains one, and the checksum is that of its weights.
No checkpoint is read. Equal checksums say that every weight has the same bits as the one that was
served. Not covered: other packages or another machine, which may round otherwise; then the first
version that differs is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError
from ajet.core.record.recorded_run import RecordedRun
from ajet.online.log import FILE, SessionLog
from ajet.online.round import RoundLearner, groups_of


@dataclass(frozen=True, slots=True)
class RebuiltVersion:
    """Holds a version's checksum in the log, and that of the weights that were made again."""

    version: int
    recorded: str | None
    rebuilt: str
    adapter: str = ""

    @property
    def is_same(self) -> bool:
        return self.recorded == self.rebuilt


def rebuild(run: RecordedRun, out: Path | None = None) -> Iterator[RebuiltVersion]:
    """Yields each promoted version as it is made again, the first one that differs being the last.
    `out` is a folder that the versions are saved in, as checkpoints."""
    if not (run.folder.path / FILE).exists():
        raise CheckpointError(
            f"{run.folder.path} is no run of `ajet serve --learn`: it has no {FILE}",
            code=Code.RUN_NOT_FOUND,
        )
    log = SessionLog(run.folder.path)
    os.chdir(run.current_folder)  # the model's path may be relative
    learner, versions = RoundLearner(run.config), dict[str, int]()
    for promoted in (each for each in log.rounds() if each.state == "promoted"):
        version, adapter = promoted.number, promoted.adapter
        base = versions.get(adapter, 0)
        assert promoted.base == base, f"round {version} began from {promoted.base}"
        versions[adapter] = version
        learner.train(groups_of(log.sessions_of(version), version), version)
        made = learner.checksum(version, adapter)
        found = RebuiltVersion(version, promoted.checksum, made, adapter)
        if out is not None:
            learner.save(out, version)
        yield found
        if not found.is_same:
            break
    log.close()
