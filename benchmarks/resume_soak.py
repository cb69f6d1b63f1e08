"""Kill a small run many times, resume it, and compare the final bits with an undisturbed run.

    python benchmarks/resume_soak.py --kills 40 [--seed 0] [--workflow Plain|Sandboxed]

Each round starts a fresh run of six steps, kills it with SIGKILL in parts of a step drawn at random
(a rollout, an update, a checkpoint, or any moment) until it is done, and compares the bytes of the
weights and of the optimizer's state. A kill with its resumption takes about 8 s of one core. Writes
benchmarks/results/resume_soak.json: where the kills hit, and how many rounds were identical. Exit
code 1 when one was not; its folder is then kept and named.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e.kills import MAX_DELAY_S, kill_and_resume  # noqa: E402
from tests.e2e.toy_run import ToyRun  # noqa: E402

KILLS_A_ROUND = 4


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill and resume a run, compare the bits.")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workflow", choices=["Plain", "Sandboxed"], default="Plain")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="resume_soak_"))
    result = soak(folder, arguments.kills, arguments.workflow, random.Random(arguments.seed))
    print(json.dumps(result))
    out = ROOT / "benchmarks" / "results" / "resume_soak.json"
    out.write_text(json.dumps(result | {"seed": arguments.seed}, indent=2) + "\n")
    if result["rounds_identical"] == result["rounds"]:
        shutil.rmtree(folder)
        return 0
    print(f"not identical: see {folder}", file=sys.stderr)
    return 1


def soak(folder: Path, num_kills: int, workflow: str, rng: random.Random) -> dict:
    """Rounds until `num_kills` kills were made."""
    flow = f"ajet.rollout.user_workflow=workflow.py->{workflow}"
    whole = ToyRun(folder / "whole", flow)
    assert whole.finish() == 0, whole.stderr()
    hits: Counter[str] = Counter()
    rounds = identical = 0
    while hits.total() < num_kills:
        rounds += 1
        run = ToyRun(folder / f"round_{rounds}", flow)
        wanted = min(KILLS_A_ROUND, num_kills - hits.total())
        phases = kill_and_resume(run, rng.choices(list(MAX_DELAY_S), k=wanted), rng)
        hits.update(phases)
        same = run.final_tensors() == whole.final_tensors()
        identical += same
        print(f"round {rounds}: killed in {', '.join(phases)}; identical: {same}", flush=True)
        if same:
            shutil.rmtree(run.folder)
    return {
        "workflow": workflow,
        "kills": hits.total(),
        "killed_in": dict(hits),
        "rounds": rounds,
        "rounds_identical": identical,
    }


if __name__ == "__main__":
    sys.exit(main())
