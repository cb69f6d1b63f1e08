"""Sends numbers by step to every logger that the config names.

The part of a name before the "/" is the group under which a page shows it. `logs/metrics.jsonl` is
always written, a line for each call. On resume, rows from `start_step` on are cut off, in
TensorBoard by its own mark.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.redacted import redacted_config
from ajet.core.errors import UnknownName
from ajet.core.record.atomic_file import write_text_atomically, writing
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.trackers import (
    MlflowSink,
    PrometheusSink,
    RunInfo,
    Sink,
    SwanlabSink,
    WandbSink,
)
from ajet.core.text.error_text import did_you_mean


class MetricsLogger:
    """Sends each step's metrics to all sinks. A run uses one object."""

    def __init__(
        self,
        names: str | Sequence[str],
        folder: RunFolder,
        *,
        experiment: str = "experiment",
        project: str = "ajet",
        config: AjetConfig | None = None,
        start_step: int = 0,
    ) -> None:
        redacted = {} if config is None else redacted_config(config)
        run = RunInfo(folder, project, experiment, start_step, redacted)
        names = [names] if isinstance(names, str) else list(names)
        sink_classes = [_sink_class(name) for name in dict.fromkeys(names)]
        with writing(f"the metrics in {folder.path}"):
            self._sinks: list[Sink] = [JsonLinesSink(run), *(sink(run) for sink in sink_classes)]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs plain numbers. An evaluation may log its own at the step after which it ran."""
        numbers = {name: float(value) for name, value in metrics.items()}
        for sink in self._sinks:
            with writing(f"metrics of step {step}"):
                sink.log(step, numbers)

    def close(self) -> None:
        """Flushes and closes every sink; what does not fit on a full disk is lost."""
        for sink in self._sinks:
            with suppress(OSError):
                sink.close()


class JsonLinesSink:
    """Writes `logs/metrics.jsonl`: ``{"step": 3, "time": 1790000000.0, "reward/mean": 0.4, …}``."""

    def __init__(self, run: RunInfo) -> None:
        path = run.folder.metrics_jsonl
        content = path.read_bytes() if path.exists() else b""
        lines, num_damaged = _lines_before(content, run.start_step)
        if num_damaged:
            logger.warning(f"{path}: {num_damaged} damaged lines are left out")
        # Rows of steps that run again are removed, so that a step has one row.
        write_text_atomically(path, lines)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # JSON has no NaN; readers of other languages would refuse the line.
        finite = {name: v if math.isfinite(v) else None for name, v in metrics.items()}
        self._file.write(json.dumps({"step": step, "time": time.time(), **finite}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Writes scalars as TensorBoard event files, with its protocol classes only (no TensorFlow)."""

    def __init__(self, run: RunInfo) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        events: Any = event_pb2  # protobuf makes the classes at run time
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        now = time.time()
        # TensorBoard reads the files of a folder in the order of their names. With nanoseconds, no
        # two attempts of a run share a name.
        name = f"events.out.tfevents.{time.time_ns():019d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((run.folder.tensorboard / name).open("wb"))
        self._write(events.Event(wall_time=now, file_version="brain.Event:2"))
        # TensorBoard drops what earlier files have from this step on.
        start = events.SessionLog(status=events.SessionLog.START)
        self._write(events.Event(wall_time=now, step=run.start_step, session_log=start))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=n, simple_value=v) for n, v in metrics.items()]
        summary = self._summary(value=values)
        self._write(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


class ConsoleSink:
    """Prints one line a step on standard output, for logs that a machine collects."""

    def __init__(self, run: RunInfo) -> None:
        pass

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from ajet.core.text.terminal import Console

        line = "  ".join(f"{name}={value:.4g}" for name, value in sorted(metrics.items()))
        Console().print(f"step {step}  {line}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


SINKS: dict[str, type[Sink]] = {
    "tensorboard": TensorBoardSink,
    "console": ConsoleSink,
    "wandb": WandbSink,
    "swanlab": SwanlabSink,
    "mlflow": MlflowSink,
    "prometheus": PrometheusSink,
}


def _sink_class(name: str) -> type[Sink]:
    if name not in SINKS:
        hint = did_you_mean(name, SINKS, f"choose from {', '.join(SINKS)}")
        raise UnknownName(f"ajet.trainer_common.logger: no logger {name!r}; {hint}")
    return SINKS[name]


def _lines_before(content: bytes, step: int) -> tuple[str, int]:
    """Returns the complete lines of earlier steps, and the number of damaged ones; a line that was
    cut by a kill is dropped."""
    kept, num_damaged = "", 0
    for line in content.split(b"\n")[:-1]:  # the last piece is empty, or has no line end
        try:
            is_earlier = json.loads(line)["step"] < step
        except (ValueError, TypeError, KeyError, IndexError, RecursionError):
            num_damaged += 1
            continue
        kept += f"{line.decode()}\n" if is_earlier else ""
    return kept, num_damaged
