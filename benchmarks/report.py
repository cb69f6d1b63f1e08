"""What every benchmark has: options, where and when it measured, and a file of results."""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


def options(doc: str | None, result: str, **defaults: Any) -> argparse.ArgumentParser:
    """Returns a parser with the first line of `doc`, `--out`, which is results/RESULT.json unless
    it is given, and an option for each default, of the same type."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{result}.json")
    return parser


def measured_on() -> dict[str, str]:
    """The machine, its processor's widest vectors, the commit and the day."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    widest = next((n for n in ("avx512_bf16", "avx512f", "avx2") if n in flags), "unknown")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "vectors": os.environ.get("ATEN_CPU_CAPABILITY", widest),
        "commit": commit,
        "date": f"{datetime.now():%Y-%m-%d}",
    }


def read(out: Path) -> dict[str, Any]:
    """What an earlier run wrote; nothing where there was none."""
    return json.loads(out.read_text("utf-8")) if out.exists() else {}


def write(out: Path, report: Mapping[str, Any]) -> None:
    """Writes the report below where and when it was measured."""
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**measured_on(), **report}, indent=1, ensure_ascii=False)
    out.write_text(f"{text}\n", "utf-8")


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 3), "p95": round(quantiles(values, n=20)[-1], 3)}


def memory(name: str) -> int:
    """Returns this process's VmRSS, or its VmHWM since `forget_peak`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kilobytes) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
