"""What do recorded episodes teach without playing again? DPO and KTO next to GRPO, on the demo.

    python benchmarks/preference.py --seeds 3          # about 15 minutes on two cores

All arms learn from as many episodes of the demo's tasks, 20 steps of 32 x 8:

    grpo        20 steps of the demo, which plays its episodes with each step's weights
    dpo, kto    three epochs over the best and the worst episode of each group (`ajet data distill
                --pairs`) that the START model has played; KTO reads a pair as two replies
    imitation   three epochs of cross-entropy on the chosen replies alone: what pairs add to it

Measured is success on 256 held-out tasks, greedily and sampled. The learning rate of dpo and kto
was chosen among 3e-4 and 1e-3 on seed 0. Writes benchmarks/results/preference.json.
"""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from controls import UNMEASURED, success_at
from report import options, write
from runs import DEMO, TRAINER, ajet

STEPS, EPOCHS = 20, 3
PREFERENCE_LR = 3e-4
DECODINGS = {"greedy": 0.0, "sampled": 1.0}


def given(kind: str, rows: Path, batch: int, lr: float) -> list[str]:
    """Overrides of the demo for a run on rows."""
    reader = "ajet.task_reader.jsonl_dataset_file.training.file_path"
    return [
        f"ajet.kind={kind}",
        "ajet.task_reader.type=jsonl_dataset_file",
        f"{reader}={rows}",
        f"ajet.data.train_batch_size={batch}",
        f"{TRAINER}.total_training_steps=null",
        f"{TRAINER}.total_epochs={EPOCHS}",
        f"{TRAINER}.optim.lr_schedule=constant",  # a cosine needs the number of steps
        f"{TRAINER}.optim.lr={lr}",
    ]


def chosen_alone(pairs: Path) -> Path:
    """Writes the chosen conversations of the pairs as rows of a supervised run."""
    rows = map(json.loads, pairs.read_text().splitlines())
    file = pairs.with_name(f"chosen-{pairs.name}")
    names = ("task_id", "tools", "vocabulary")
    lines = (
        json.dumps({"messages": row["chosen"], **{name: row[name] for name in names}})
        for row in rows
    )
    file.write_text("\n".join(lines) + "\n")
    return file


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """Trains all arms of a seed and measures them."""
    command = [*DEMO, "--backbone", "debug", "--exp-dir", str(folder), *UNMEASURED]
    command += [f"ajet.seed={seed}", f"{TRAINER}.total_training_steps={STEPS}"]

    def train(name: str, *overrides: str) -> Path:
        ajet(*command, f"ajet.experiment_name={name}-{seed}", *overrides, folder=folder)
        return folder / f"{name}-{seed}"

    samples = train("samples", f"{TRAINER}.optim.lr=0.0")
    pairs = folder / f"pairs-{seed}.jsonl"
    ajet("data", "distill", samples, "--pairs", "--out", pairs, folder=folder)
    preference = given("preference", pairs, 32, PREFERENCE_LR)
    runs = {
        "grpo": train("grpo"),
        "dpo": train("dpo", *preference),
        "kto": train(
            "kto", *preference, "ajet.data.train_batch_size=64", "ajet.preference.loss=kto"
        ),
        "imitation": train("imitation", *given("supervised", chosen_alone(pairs), 32, 1e-3)),
    }
    summary = json.loads((samples / "summary.json").read_text())
    return {
        "seed": seed,
        "episodes": summary["episodes"],
        "pairs": len(pairs.read_text().splitlines()),
        "success": {
            name: {how: success_at(at, DEMO, folder, run) for how, at in DECODINGS.items()}
            for name, run in runs.items()
        },
    }


def main() -> None:
    """Measures the seeds, two at a time (a model this small uses one core), and writes what they
    come to."""
    args = options(__doc__, "preference", seeds=3).parse_args()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        start = {how: success_at(at, DEMO, Path(name)) for how, at in DECODINGS.items()}
        results = list(pool.map(partial(measure, folder=Path(name)), range(args.seeds)))
    means = {
        arm: {how: fmean(r["success"][arm][how] for r in results) for how in DECODINGS}
        for arm in results[0]["success"]
    }
    write(args.out, {"start": start, "mean": means, "results": results})
    print(json.dumps({"start": start, "mean": means}, indent=2))


if __name__ == "__main__":
    main()
