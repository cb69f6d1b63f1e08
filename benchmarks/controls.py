"""Two controls that reinforcement has to beat, from the same start model and with the same command.

    temperatures   the start model as it is, at the best of five temperatures, 0 (greedy) to 1
    rejection      cross-entropy on the start model's own successes: as many episodes of the
                   training tasks as the run samples, drawn with learning rate 0; the good ones
                   become rows (`ajet data distill`), three epochs of them a supervised run
                   (rejection sampling fine-tuning: Yuan et al. 2023, arXiv 2308.01825)

Used by learning.py and learning_games.py. `arguments` are a tutorial's own: `--conf` and overrides.
"""

import json
from pathlib import Path
from typing import Any

from runs import TRAINER, ajet

TEMPERATURES = (0.0, 0.25, 0.5, 0.75, 1.0)
EPOCHS, ROWS_OF_A_STEP = 3, 64
UNMEASURED = [f"{TRAINER}.val_before_train=false", f"{TRAINER}.test_freq=0"]


def drawn_at(temperature: float) -> list[str]:
    """Returns the overrides that measure at a temperature; 0 is greedy."""
    validation = "ajet.rollout.val_kwargs"
    return [f"{validation}.temperature={temperature}", f"{validation}.do_sample=null"]


def success_at(
    temperature: float, arguments: list[str], folder: Path, run: Path | None = None
) -> float:
    """Success on the held-out tasks at a temperature, of the run's last checkpoint or, without one,
    of the start model."""
    out = folder / f"{run.name if run else 'start'}-{temperature}.json"
    subject = ["--checkpoint", str(run)] if run else []
    drawn = drawn_at(temperature)
    ajet("eval", *arguments, *subject, "--overwrite", "--out", str(out), *drawn, folder=folder)
    return float(json.loads(out.read_text())["success"]["value"])


def temperatures(arguments: list[str], folder: Path) -> dict[str, float]:
    """Success of the start model by temperature."""
    return {str(each): success_at(each, arguments, folder) for each in TEMPERATURES}


def rejection_sampling(
    arguments: list[str], folder: Path, experiment: str, seed: int
) -> dict[str, Any]:
    """Success of the model that was trained on the start model's own successes, by decoding."""
    sampled, trained = (folder / f"{experiment}-{part}" for part in ("samples", "supervised"))
    rows = folder / f"{experiment}.jsonl"
    command = [*arguments, "--backbone", "debug", "--exp-dir", str(folder), f"ajet.seed={seed}"]
    ajet(
        *command,
        *UNMEASURED,
        f"ajet.experiment_name={sampled.name}",
        f"{TRAINER}.optim.lr=0.0",
        folder=folder,
    )
    # A rerun that was stopped in the supervised stage writes the same rows again.
    ajet("data", "distill", str(sampled), "--out", str(rows), "--overwrite", folder=folder)
    reader = "ajet.task_reader.jsonl_dataset_file"
    ajet(
        *command,
        *UNMEASURED,
        f"ajet.experiment_name={trained.name}",
        "ajet.kind=supervised",
        "ajet.task_reader.type=jsonl_dataset_file",
        f"++{reader}.training.file_path={rows}",
        f"ajet.data.train_batch_size={ROWS_OF_A_STEP}",
        f"{TRAINER}.total_training_steps=null",
        f"{TRAINER}.optim.lr_schedule=constant",  # a cosine needs the number of steps
        f"{TRAINER}.total_epochs={EPOCHS}",
        folder=folder,
    )
    return {
        "episodes": json.loads((sampled / "summary.json").read_text())["episodes"],
        "successes": sum(1 for _ in rows.open()),
        "success_by_decoding": {
            name: {"after": success_at(temperature, arguments, folder, trained)}
            for name, temperature in (("sampled", 1.0), ("greedy", 0.0))
        },
    }
