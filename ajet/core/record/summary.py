"""Writes the result of a run in numbers: `summary.json`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ajet.core.errors import RecordError
from ajet.core.process.process_guard import descendants
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.record.run_folder import read_bytes_of


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Holds the content of `summary.json`; the keys of `extra` are written next to the fields.

    Success is the share of held-out tasks solved, None when it was not evaluated;
    `success_by_decoding` has it "greedy" and "sampled", "before" and "after". `timelines` is
    `TimelineCounts.report()` over all steps. `signal` counts groups and steps with something to
    learn from (`RunRecorder.signal`), `warnings` are the rows of logs/warnings.jsonl.
    `wall_seconds` counts from the start of training, over all attempts of a resumed run.
    """

    steps: int
    episodes: int
    seed: int
    wall_seconds: float
    peak_rss_bytes: int
    success_before: float | None = None
    success_after: float | None = None
    success_by_decoding: dict[str, dict[str, float | None]] = field(default_factory=dict)
    num_held_out: int = 0
    num_held_out_available: int = 0
    timelines: dict[str, Any] = field(default_factory=dict)
    signal: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, tuple[float | None, float | None]]:
        """Returns held-out success before and after by decoding; the only decoding of a summary of
        an older release has an empty name."""
        by_decoding = self.success_by_decoding
        rates = {name: (rate["before"], rate["after"]) for name, rate in by_decoding.items()}
        return rates or {"": (self.success_before, self.success_after)}

    def write(self, path: Path) -> None:
        """Writes the file completely or not at all."""
        write_text_atomically(path, json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Returns the content of the file."""
        content = asdict(self)
        return content | content.pop("extra")

    @classmethod
    def read(cls, path: Path) -> RunSummary:
        """Reads the summary of a finished run."""
        try:
            content = dict(json.loads(read_bytes_of(path)))
            names = {f.name for f in fields(cls)} - {"extra"}
            values = {name: content.pop(name) for name in names if name in content}
            return cls(**values, extra=content)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RecordError(f"{path} cannot be read: {error}") from error


def peak_rss_bytes() -> int:
    """Returns an upper bound on the peak memory in bytes: the peak of this process plus those of
    its living children (sandbox workers), each with the memory that they share; on macOS only that
    of this process, and on Windows 0."""
    own_peak = _peak_bytes(os.getpid())
    if own_peak is None:  # not Linux
        try:
            import resource
        except ModuleNotFoundError:
            return 0
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    # Not getrusage, which keeps the peak of the parent across exec.
    return own_peak + sum(_peak_bytes(pid) or 0 for pid in descendants())


def _peak_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in lines.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a zombie has no memory left
