"""Does each kind of project that `ajet init` writes learn with the command of its README?

    python benchmarks/init_kinds.py                          # seven runs, one after another
    python benchmarks/init_kinds.py --only chat tools --first 1 --seeds 5 --workers 2

A kind is written into a folder of its own by `ajet init`, and trained there as its README says, in
a process of its own with OMP_NUM_THREADS=1. Claim: greedy held-out success rises from at most 40 %
to at least 85 %. Runs of other kinds and seeds in the file are kept.
"""

import os
from pathlib import Path

from runs import Run, ajet, by, greedy, run_all, run_options, run_training

from ajet.projects.project import KINDS

AXES = {"only": ("kind", list(KINDS))}


def run(kind: str, seed: int, above: Path) -> Run:
    """Writes a project and trains it; returns what its summary says."""
    project = above / f"{kind}_{seed}" / kind
    ajet("init", project, "--kind", kind, folder=above)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return run_training(["--conf", str(project / "train.yaml")], project, "run", seed, environment)


def verdict(runs: list[Run]) -> dict[str, dict[str, list[float]]]:
    """Returns each kind's greedy success before and after, by its seeds."""
    return {
        kind: {moment: [greedy(run, moment) for run in found] for moment in ("before", "after")}
        for kind, found in by("kind", runs).items()
    }


def main() -> None:
    args = run_options(__doc__, "init_kinds", AXES, seeds=1).parse_args()
    run_all(args, AXES, run, verdict)


if __name__ == "__main__":
    main()
