"""Draw the live display of a finished run as an SVG, from the run's own metrics.

    python scripts/picture_of_display.py launcher_record/math_demo --out docs/live_display.svg

The numbers are those that the run logged; the clock is the time of each log line.
"""

import argparse
import io
import json
import re
from pathlib import Path

import yaml
from rich._export_format import CONSOLE_SVG_FORMAT

from ajet.core.record.progress import TrainingProgress
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.record.warning_log import read_warnings
from ajet.core.text.terminal import Console
from ajet.read.reports.summary_table import print_summary

WIDTH = 106


class LoggedTime:
    """The clock of the display: the time of the line that is being replayed."""

    def __init__(self, start: float) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now


def draw(run: Path, conf: Path, out: Path) -> None:
    """Replays `metrics.jsonl` with the warnings, then prints the table at the end."""
    folder = RunFolder(run)
    warnings = read_warnings(folder.warnings_jsonl)
    lines = [json.loads(line) for line in folder.metrics_jsonl.read_text().splitlines()]
    summary = RunSummary.read(folder.summary_json)
    config = yaml.safe_load(folder.config_yaml.read_text())["ajet"]
    clock = LoggedTime(lines[-1]["time"] - summary.wall_seconds)
    progress = TrainingProgress(
        summary.steps, Console(file=io.StringIO()), title=config["experiment_name"], clock=clock
    )
    for line in lines:
        progress.phase("rollout", 1)
        clock.now = line["time"]
        if "held_out/success" in line:
            progress.held_out(line["step"], line["held_out/success"], "sampled")
        elif "reward/mean" in line:
            progress.step_done(line["step"], line)
        for warning in (each for each in warnings if each.step == line["step"]):
            progress.warned(warning.step, warning.name)
    progress.phase("done")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(progress)
    console.print()
    print_summary(console, summary, run, conf)
    own_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    out.write_text(console.export_svg(title="make demo", code_format=own_fonts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--conf", type=Path, default=Path("tutorial/example_math_agent/demo.yaml"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    draw(args.run, args.conf, args.out)


if __name__ == "__main__":
    main()
