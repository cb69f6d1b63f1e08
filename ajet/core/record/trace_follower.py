"""Runs `ajet inspect trace RUN --follow` during a run: a process that sends episodes.

The run waits for it only at its end, and continues without it if it fails.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from loguru import logger

from ajet.core.process.process_guard import guarded
from ajet.core.record.run_folder import RunFolder

MODULES = {"otlp": "opentelemetry.exporter.otlp.proto.http", "mlflow": "mlflow"}
"""The module that each receiver needs; its name is also that of ajet's extra."""
END_S = 60.0
"""Seconds at the end of the run for the episodes that are not sent yet."""


def launcher() -> str:
    """Returns the module of the console script `ajet`."""
    [script] = entry_points(group="console_scripts", name="ajet")
    return script.module


class TraceFollower:
    """Sends the episodes of a run to one trace receiver until it is closed."""

    def __init__(self, trace_format: str, folder: RunFolder) -> None:
        self._trace_format = trace_format
        self._log = folder.logs / f"traces_{trace_format}.log"
        command = [sys.executable, "-m", launcher(), "inspect", "trace", str(folder.path)]
        # It ends when its stdin does, so it cannot outlive a run that is killed.
        command += [f"--{trace_format}", "default", "--follow", "--until-eof"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        self._is_over = False

    def check(self) -> None:
        """Warns, once, if the process has ended."""
        if not self._is_over and self._process.poll() is not None:
            self._warn()

    def close(self) -> None:
        """Lets the process send the rest, and waits for its end."""
        if self._is_over:
            return
        self._is_over = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            failed = self._process.wait(END_S) != 0
        except subprocess.TimeoutExpired:
            self._process.terminate()
            failed = self._process.wait() != 0
        if failed:
            self._warn()

    def _warn(self) -> None:
        self._is_over = True
        logger.warning(
            f"traces are not sent to {self._trace_format} any more: {_last_line(self._log)} "
            f"({self._log}); `ajet inspect trace` sends what is recorded"
        )


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it ended without a word")
