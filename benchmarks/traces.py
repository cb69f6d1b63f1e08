"""What do the record and traces cost? Their CPU seconds, beside those of the run itself.

    python benchmarks/traces.py                # needs the packages mlflow and opentelemetry

The run is four steps of the demo. In one in this process the CPU seconds of recording a step (its
episodes, metrics and warnings) are compared with those of the whole step: at most 3 %. Then
`ajet inspect trace` sends all episodes of another one over OTLP to a receiver on loopback that
answers at once, into a new SQLite store of MLflow, and into a file for Perfetto. During a run
the same command runs in a separate process: its share of the run's CPU seconds is what traces cost.
Its figure includes the start of the process, which a run pays once; `per_episode_ms` does not.
"""

import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from report import options, write
from runs import DEMO, TRAINER, ajet

from ajet.backbones.debug.training import DebugTraining
from ajet.cli.launcher import app
from ajet.core.record.run_recorder import RunRecorder
from ajet.core.record.timeline_counts import TimelineCounts

STEPS = 4


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Runs a command of ajet and returns the CPU seconds of it and of its children."""
    used = ajet(*command, folder=folder)
    return used.ru_utime + used.ru_stime


def share_of_recording(train: list[str]) -> dict[str, float]:
    """Trains in this process and returns the CPU seconds of its steps, and of recording them."""
    seconds = {"steps": 0.0, "recording": 0.0}
    train_step, record_step = DebugTraining._train_step, RunRecorder.step

    async def timed_step(training: DebugTraining, step: int) -> None:
        before = time.process_time()
        await train_step(training, step)
        seconds["steps"] += time.process_time() - before

    def timed_record(recorder: RunRecorder, *of_step: Any) -> TimelineCounts:
        before = time.process_time()
        counts = record_step(recorder, *of_step)
        seconds["recording"] += time.process_time() - before
        return counts

    with (
        patch.object(DebugTraining, "_train_step", timed_step),
        patch.object(RunRecorder, "step", timed_record),
    ):
        app(train, standalone_mode=False)
    return {
        "cpu_seconds_of_steps": seconds["steps"],
        "cpu_seconds": seconds["recording"],
        "share_of_steps": seconds["recording"] / seconds["steps"],
    }


class Receiver(BaseHTTPRequestHandler):
    """Reads what is sent and answers at once."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    """Measures each receiver and writes the figures."""
    args = options(__doc__, "traces").parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = folder / "traced"
        train = [*DEMO, "--exp-dir", str(folder), f"{TRAINER}.total_training_steps={STEPS}"]
        train += [f"{TRAINER}.test_freq=0", f"{TRAINER}.val_before_train=false"]
        recording = share_of_recording([*train, "ajet.experiment_name=in_process"])
        of_run = cpu_seconds([*train, "ajet.experiment_name=traced"], folder)
        ways = {
            "otlp": ["--otlp", f"http://127.0.0.1:{server.server_port}"],
            "mlflow": ["--mlflow", f"sqlite:///{folder / 'mlflow.db'}"],
            "perfetto": ["--perfetto", str(folder / "trace.json"), "--overwrite"],
        }
        if find_spec("mlflow") is None:
            del ways["mlflow"]
        episodes = json.loads((run / "summary.json").read_text())["episodes"]
        rows = {}
        for way, sent_to in ways.items():
            trace = ["inspect", "trace", str(run), *sent_to]
            start = cpu_seconds([*trace, "--episode", "000001-train-0000-00"], folder)
            seconds = cpu_seconds(trace, folder)
            rows[way] = {
                "cpu_seconds": seconds,
                "share_of_run": seconds / of_run,
                "per_episode_ms": 1000 * (seconds - start) / (episodes - 1),
            }
    report = {
        "steps": STEPS,
        "episodes": episodes,
        "run_cpu_seconds": of_run,
        "run_per_episode_ms": 1000 * of_run / episodes,
        "recording": recording,
        "sent": rows,
    }
    write(args.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
