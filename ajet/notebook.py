"""Trains from a notebook's cell, which shows the run live. The command runs in a process that ends
with the notebook's kernel.
"""

from __future__ import annotations

import html
import importlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ajet.core.errors import PackageMissing, RunFailed
from ajet.core.errors.codes import Code

Points = Sequence[tuple[int, float]]
"""The steps and values of a metric."""
Show = Callable[[str], None]
"""Shows HTML, replacing what it showed before."""
CURVES = {"reward/mean": "#4269d0", "reward/success": "#3ca951", "held_out/success": "#ff725c"}
"""The metrics in the chart, and their colours."""
WIDTH, HEIGHT, MARGIN = 560, 140, 8
LINES, TAIL_BYTES, POLL_S = 6, 16384, 1.0


def train(
    conf: str | Path,
    *overrides: str,
    backbone: str | None = None,
    exp_dir: str | Path | None = None,
    show: Show | None = None,
) -> Path:
    """Trains like `ajet --conf CONF [OVERRIDE …]`, and returns the run folder.

        run = notebook.train("math.yaml", "ajet.trainer_common.total_training_steps=20")

    The kernel's interrupt (Stop) is the command's Ctrl-C: the step in progress is finished and
    saved, and a second interrupt ends the run at once. Run the cell again to continue.

    `show` gets the HTML of the view once a second; by default the cell shows it, which needs
    IPython. Raises ConfigError for a mistake in the config, RunFailed with the command's error line
    if it fails, and KeyboardInterrupt after a run that was interrupted.
    """
    from ajet.core.config import load_config

    config = load_config(conf, list(overrides), backbone=backbone, exp_dir=exp_dir)
    show = show or _cell()
    command = [sys.executable, "-m", "ajet.cli.launcher", "train", "--conf", str(conf)]
    command += ["--backbone", config.ajet.backbone]
    command += ["--exp-dir", str(exp_dir)] if exp_dir is not None else []
    with tempfile.TemporaryFile() as output:
        status = _follow([*command, *overrides], config.run_folder, output.fileno(), show)
        last = _lines(output.fileno())[-1:] or ["no output"]
    if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        raise KeyboardInterrupt
    if status != 0:
        text, _, code = last[0].removeprefix("error: ").removesuffix("]").rpartition(" [")
        codes = {code.value: code for code in Code}
        raise RunFailed(text or last[0], code=codes.get(code, Code.PROCESS_LOST))
    return config.run_folder


def _follow(command: Sequence[str], run_folder: Path, output: int, show: Show) -> int:
    """Runs the command with its output in the file `output`, shows the run until it ends, and
    returns the exit code."""
    from ajet.core.process.process_guard import guarded

    is_guarded = sys.platform == "linux"
    earlier = _written_ns(run_folder)
    plain = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    process = subprocess.Popen(
        guarded(command, grace_s=60.0) if is_guarded else list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=plain | {"NO_COLOR": "1"},
        start_new_session=True,  # else the kernel's interrupt would reach it a second time
    )
    try:
        while process.poll() is None:
            try:
                show(_view(run_folder, earlier, output))
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                _interrupt(process.pid, is_guarded)
        show(_view(run_folder, earlier, output))
        return process.returncode
    finally:
        process.terminate()


def _interrupt(pid: int, is_guarded: bool) -> None:
    """Sends SIGINT to the command, which is a grandchild of its guard."""
    try:
        for _ in range(2 if is_guarded else 0):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        os.kill(pid, signal.SIGINT)
    except (OSError, IndexError):
        return  # it is ending, or has not started yet


def _cell() -> Show:
    """Returns a function that shows HTML in the running cell."""
    try:
        display = importlib.import_module("IPython.display")
    except ImportError as error:
        raise PackageMissing(
            "ajet.notebook shows the run in a cell, and IPython is not installed: pip install "
            "ipython, or give show="
        ) from error
    handle = display.DisplayHandle()
    handle.display(display.HTML(""))
    return lambda text: handle.update(display.HTML(text))


def _lines(output: int) -> list[str]:
    size = os.fstat(output).st_size
    text = os.pread(output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _view(run_folder: Path, earlier: int | None, output: int) -> str:
    """Returns the run as HTML: curves, and the command's last lines."""
    lines = html.escape("\n".join(_lines(output)[-LINES:]))
    return (
        f'<div style="font-family:sans-serif;max-width:{WIDTH}px">'
        f"<b>{html.escape(run_folder.name)}</b>{_chart(_curves(run_folder, earlier))}"
        f'<pre style="font-size:11px;white-space:pre-wrap">{lines}</pre></div>'
    )


def _written_ns(run_folder: Path) -> int | None:
    """Returns when the metrics were last written; None if there are none."""
    from ajet.core.record.run_folder import RunFolder

    path = RunFolder(run_folder).metrics_jsonl
    return path.stat().st_mtime_ns if path.is_file() else None


def _curves(run_folder: Path, earlier: int | None) -> dict[str, Points]:
    """Returns the curves so far; none while the metrics are those of `earlier`, before the
    start."""
    from ajet.core.record.run_checks import metrics_rows
    from ajet.core.record.run_folder import RunFolder

    if _written_ns(run_folder) in (None, earlier):
        return {}
    rows = list(metrics_rows(RunFolder(run_folder).metrics_jsonl))
    curves = {name: [(step, row[name]) for step, row in rows if name in row] for name in CURVES}
    return {name: points for name, points in curves.items() if points}


def _chart(curves: dict[str, Points]) -> str:
    """Returns the curves as one SVG with a common scale of at least 0 to 1, and below it each name
    with its first and last value."""
    finite = [point for points in curves.values() for point in points if math.isfinite(point[1])]
    if not finite:
        return ""
    low, high = min(0.0, *(v for _, v in finite)), max(1.0, *(v for _, v in finite))
    last_step = max(1, *(step for step, _ in finite))

    def place(step: int, value: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / last_step
        return x, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / (high - low)

    drawn, legend = [], []
    for name, points in curves.items():
        at = [place(*point) for point in points if math.isfinite(point[1])]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{CURVES[name]}"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{CURVES[name]}"/>' for x, y in at]
        values = " → ".join(f"{value:.3g}" for _, value in (points[0], points[-1])[: len(points)])
        legend.append(
            f'<span style="color:{CURVES[name]};white-space:nowrap">● {name} {values}</span>'
        )
    label = f"Curves of {', '.join(curves)} over {last_step} steps, from {low:g} to {high:g}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{label}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#8888"/>'
        f"{''.join(drawn)}</svg><div>{' '.join(legend)}</div>"
    )
