r"""Does a pretrained model train alike on the three backbones?

    S=runs/trained_0/supervised/checkpoints/step_000030     # of function_calling.py's --arm trained
    python benchmarks/real_backbones.py --checkpoint $S

Both parts take tutorial/example_function_calling/function_calling.yaml, which says what to install
and make first, with fewer steps; `--with-ray` starts a Ray of its own for verl and trinity.

    stages   the YAML as it is, 4 supervised steps and 2 of reinforcement, on verl and trinity
    step     one step of reinforcement in float32 from a checkpoint of the supervised stage (made by
             function_calling.py), 4 tasks of 8 episodes, on all three; on trinity explorer and
             trainer take turns (`max_staleness: 0`), since they draw tasks otherwise when apart

Of the step are compared: the sampled tokens of each episode, and what the step added to the weights
(the norm of its difference to debug's over the norm of debug's). The weights are float32, so the
engines round alike but for what is computed together. Claims: all stages end, at least 95 % of the
episodes have the same tokens, and with the same tokens the update is the same within 1 %.
"""

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import torch
from report import ROOT, options, write
from runs import ajet
from safetensors.torch import load_file

CONF = ROOT / "tutorial/example_function_calling/function_calling.yaml"
BACKBONES = ("debug", "verl", "trinity")
SUPERVISED, REINFORCEMENT = "ajet.stages.supervised", "ajet.stages.reinforcement"
FEW_STEPS = [
    f"{SUPERVISED}.trainer_common.total_training_steps=4",
    f"{SUPERVISED}.trainer_common.test_freq=0",
    f"{REINFORCEMENT}.trainer_common.total_training_steps=2",
]
SMALL = [
    f"{REINFORCEMENT}.trainer_common.test_freq=0",
    f"++{REINFORCEMENT}.trainer_common.val_before_train=false",
    f"{REINFORCEMENT}.data.train_batch_size=4",
]
Tokens = dict[tuple[str, int], bytes]


def train(backbone: str, name: str, folder: Path, *overrides: str) -> Path:
    """Runs the command to its end and returns the run's folder."""
    command = ["--conf", CONF, "--exp-dir", folder, "--backbone", backbone]
    command += [f"ajet.experiment_name={name}"] + (["--with-ray"] if backbone != "debug" else [])
    ajet(*command, *SMALL, *overrides, folder=Path.cwd())
    return folder / name


def stages(folder: Path) -> list[dict[str, Any]]:
    """Runs the whole YAML with few steps on Ray; returns what each stage says of itself."""
    found = []
    for backbone in BACKBONES[1:]:
        run = train(backbone, f"stages-{backbone}", folder, *FEW_STEPS)
        summary = json.loads((run / "summary.json").read_text())
        keys = ("name", "steps", "episodes", "wall_seconds")
        each = [{key: stage[key] for key in keys} for stage in summary["stages"]]
        found.append({"backbone": backbone, "stages": each})
    return found


def sampled(run: Path) -> Tokens:
    """Returns the tokens of each episode of the first step, by task and number in its group."""
    query = """SELECT task_id, rollout_index, turns.token_ids FROM turns
               JOIN episodes USING (episode_id) WHERE mode = 'train' AND step = 1"""
    with sqlite3.connect(f"file:{run / 'episodes.sqlite'}?mode=ro", uri=True) as record:
        rows = record.execute(query).fetchall()
    record.close()
    return {(task, index): tokens for task, index, tokens in rows}


def added(run: Path, before: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns what the first step added to all weights, as one vector."""
    after = load_file(run / "checkpoints/step_000001/model.safetensors")
    names = sorted(before)
    return torch.cat([(after[name].float() - before[name].float()).flatten() for name in names])


def step(checkpoint: Path, folder: Path) -> dict[str, Any]:
    """Makes one step on each backbone; returns how alike they are."""
    overrides = [
        f"~{SUPERVISED}",
        f"ajet.model.path={checkpoint.resolve()}",
        "ajet.model.dtype=float32",
        f"{REINFORCEMENT}.trainer_common.total_training_steps=1",
        f"{REINFORCEMENT}.trainer_common.save_freq=1",
        "trinity.max_staleness=0",
    ]
    runs = {
        backbone: train(backbone, f"step-{backbone}", folder, *overrides) / "reinforcement"
        for backbone in BACKBONES
    }
    before = load_file(checkpoint / "model.safetensors")
    tokens = {backbone: sampled(run) for backbone, run in runs.items()}
    updates = {backbone: added(run, before) for backbone, run in runs.items()}
    own, norm = tokens["debug"], updates["debug"].norm()
    found: dict[str, Any] = {"episodes": len(own), "norm_of_the_update": float(norm)}
    for backbone in BACKBONES[1:]:
        same = [own[episode] == tokens[backbone].get(episode) for episode in own]
        found[backbone] = {
            "same_tokens": sum(same) / len(same),
            "relative_difference_of_the_update": float(
                (updates[backbone] - updates["debug"]).norm() / norm
            ),
        }
    return found


def main() -> None:
    """Measures both parts and writes the JSON."""
    parser = options(__doc__, "real_backbones")
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compared = step(args.checkpoint, Path(folder))
        report = {"step": compared, "stages": stages(Path(folder))}
    write(args.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
