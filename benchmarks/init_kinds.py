"""Does each kind of project that `ajet init` writes learn with the command of its README?

    python benchmarks/init_kinds.py                          # seven runs, one after another
    python benchmarks/init_kinds.py --only chat tools --first 1 --seeds 5 --workers 2

A kind is written into a folder of its own by `ajet init`, and trained there as its README says, in
a process of its own with OMP_NUM_THREADS=1. Claim: greedy held-out success rises from at most 40 %
to at least 85 %. Runs of other kinds and seeds in the file are kept.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from controls import ajet
from learning import ROOT, greedy, run_all, run_training, write_report

from ajet.projects.kind import KINDS


def run(kind: str, seed: int, above: Path) -> dict[str, Any]:
    """Writes a project and trains it; returns what its summary says."""
    folder = above / f"{kind}_{seed}"
    project = folder / kind
    ajet("init", str(project), "--kind", kind, folder=above)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = ["--conf", str(project / "train.yaml")]
    return {
        "kind": kind,
        "seed": seed,
        **run_training(arguments, project, "run", seed, environment),
    }


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns each kind's greedy success before and after, by its seeds."""
    shown: dict[str, Any] = {}
    for each in runs:
        of_kind = shown.setdefault(each["kind"], {"before": [], "after": []})
        for moment, rates in of_kind.items():
            rates.append(greedy(each, moment))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed; earlier ones stay")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/init_kinds.json")
    args = parser.parse_args()
    wanted = [(kind, seed) for seed in range(args.first, args.seeds) for kind in args.only]
    known = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    runs = [each for each in known if (each["kind"], each.get("seed", 0)) not in wanted]

    def write() -> None:
        runs.sort(key=lambda each: (list(KINDS).index(each["kind"]), each["seed"]))
        write_report(args.out, verdict(runs), runs)

    with tempfile.TemporaryDirectory(prefix="ajet-init-") as above:
        run_all(run, [(*each, Path(above)) for each in wanted], args.workers, runs, write)


if __name__ == "__main__":
    main()
