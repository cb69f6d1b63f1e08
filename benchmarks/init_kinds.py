"""Does each kind of project that `ajet init` writes learn with the command of its README?

    python benchmarks/init_kinds.py                          # seven runs, one after another
    python benchmarks/init_kinds.py --only chat tools --note "other programs ran"

A kind is written into a folder of its own by `ajet init`, and trained there as its README says, in
a process of its own with OMP_NUM_THREADS=1. `cpu_seconds` is that process's user and system time
with its children's, start and validations included; `command_seconds` is how long it ran. `--only`
keeps what the file has of the other kinds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from learning import ROOT, write_report

from ajet.projects.kind import KINDS

KEPT = ("success_before", "success_after", "num_held_out", "wall_seconds", "episodes", "steps")
TRAIN = ["--conf", "train.yaml", "--backbone", "debug"]
AJET = [sys.executable, "-m", "ajet.cli.launcher"]


def run(kind: str, above: Path) -> dict[str, Any]:
    """Writes a project and trains it; returns what its summary says."""
    project = above / kind
    subprocess.run(
        [*AJET, "init", str(project), "--kind", kind], check=True, stdout=subprocess.DEVNULL
    )
    started_s = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*AJET, *TRAIN], cwd=project, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{kind}: exit code {process.returncode}")
    summary = json.loads((project / "launcher_record" / kind / "summary.json").read_text())
    return {
        "kind": kind,
        **{key: summary[key] for key in KEPT},
        "command_seconds": time.perf_counter() - started_s,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns by how much each kind's held-out success rose."""
    return {run["kind"]: round(run["success_after"] - run["success_before"], 4) for run in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/init_kinds.json")
    parser.add_argument("--note", help="what else the machine did, for example")
    args = parser.parse_args()
    runs = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    with tempfile.TemporaryDirectory(prefix="ajet-init-") as above:
        for kind in args.only:
            runs = [each for each in runs if each["kind"] != kind] + [run(kind, Path(above))]
            print(runs[-1], flush=True)
            write_report(args.out, verdict(runs), runs, args.note)


if __name__ == "__main__":
    main()
