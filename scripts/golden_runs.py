"""Checks that two revisions of ajet compute the same: short training runs, compared bit for bit.

    python scripts/golden_runs.py --against v0.1.0               # this tree and that revision
    python scripts/golden_runs.py --only ppo_critic --save a.json
    python scripts/golden_runs.py --compare a.json               # the same, without a second tree

Each run in `RUNS` trains a few steps by the command line, in a process of its own. What is compared
are SHA-256 digests of the last checkpoint's weights and optimizer state, and of every sampled token
with its log-probability and advantage. A refactoring that is meant to leave the numbers alone is
shown to do so by `--against` the revision before it.

They are not validated: revisions differ in what a validation leaves in the engine's cache of
prefixes, which rounds otherwise (docs/adr/0029-validation.md).

Digests belong to one processor, one torch and one number of threads: they are compared on the
machine that made them. Runs on Ray are in float64, where the order in which engines batch requests
leaves no trace (docs/adr/0022-float64.md).
"""

import argparse
import hashlib
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MATH = "tutorial/example_math_agent/demo.yaml"
LAKE = "tutorial/example_frozen_lake/demo.yaml"
LIMIT_S = 900
UNVALIDATED = ("ajet.trainer_common.val_before_train=false", "ajet.trainer_common.test_freq=0")
Digests = dict[str, str]


@dataclass(frozen=True)
class GoldenRun:
    """One short training run: a config, what is changed in it, and the backbone."""

    conf: str
    overrides: tuple[str, ...]
    backbone: str = "debug"


def _math(*overrides: str, steps: int = 3) -> tuple[str, ...]:
    trainer = "ajet.trainer_common"
    small = ("ajet.data.train_batch_size=8", "ajet.rollout.num_repeat=4", *UNVALIDATED)
    return (*small, f"{trainer}.total_training_steps={steps}", f"{trainer}.save_freq=0", *overrides)


def _lake(*overrides: str, steps: int = 4) -> tuple[str, ...]:
    trainer = "ajet.trainer_common"
    small = ("ajet.data.train_batch_size=8", *UNVALIDATED)
    return (*small, f"{trainer}.total_training_steps={steps}", f"{trainer}.save_freq=0", *overrides)


FLOAT64 = "ajet.model.dtype=float64"
ALGORITHM = "ajet.trainer_common.algorithm"
RUNS = {
    "math_float32": GoldenRun(MATH, _math()),
    "math_float64": GoldenRun(MATH, _math(FLOAT64)),
    "math_verl": GoldenRun(MATH, _math(FLOAT64), "verl"),
    "math_trinity": GoldenRun(MATH, _math(FLOAT64, "trinity.max_staleness=0"), "trinity"),
    "lake_gigpo": GoldenRun(LAKE, _lake()),
    "lake_ppo_critic": GoldenRun(
        LAKE, _lake(f"{ALGORITHM}.adv_estimator=gae", "ajet.trainer_common.critic.lr=1e-4")
    ),
    "math_lora": GoldenRun(MATH, _math("ajet.trainer_common.lora.rank=4")),
    "math_kl_in_reward": GoldenRun(
        MATH,
        _math(
            f"{ALGORITHM}.use_kl_in_reward=true",
            f"{ALGORITHM}.kl_ctrl.type=adaptive",
            f"{ALGORITHM}.policy_loss=gspo",
            f"{ALGORITHM}.loss_agg_mode=seq-mean-token-mean",
        ),
    ),
    "math_selections": GoldenRun(
        MATH,
        _math(
            "ajet.rollout.group_size_redundancy=2",
            "ajet.rollout.enable_oversample=true",
            f"{ALGORITHM}.dynamic_sampling.enable=true",
            f"{ALGORITHM}.overlong.mask_truncated=true",
            "ajet.rollout.max_env_worker=20",
        ),
    ),
    "math_remax": GoldenRun(MATH, _math(f"{ALGORITHM}.adv_estimator=remax")),
}
TURNS = (
    "SELECT group_id, episodes.episode_id, status, seed, episodes.reward, turn_index, token_ids, "
    "logprobs, advantages, policy_version FROM episodes JOIN turns USING (episode_id) "
    "ORDER BY step, mode, episodes.episode_id, turn_index"
)


def digests(tree: Path, run: GoldenRun, folder: Path) -> Digests:
    """Trains with the code of `tree`, and digests what the run folder holds at its end."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(tree / run.conf)]
    command += ["--backbone", run.backbone, "--exp-dir", str(folder), "--project-dir", str(tree)]
    command += ["--with-ray"] if run.backbone != "debug" else []
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    log = folder / "output.txt"
    with log.open("w") as output:
        code = subprocess.run(
            [*command, *run.overrides],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        ).returncode
    if code:
        raise SystemExit(f"{run.conf} on {run.backbone} ended with {code}:\n{log.read_text()}")
    (path,) = (each.parent for each in folder.glob("*/episodes.sqlite"))
    checkpoint = max((path / "checkpoints").glob("step_*"))
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(checkpoint.glob("*.safetensors"))
    }
    with sqlite3.connect(path / "episodes.sqlite") as connection:
        rows = hashlib.sha256()
        for row in connection.execute(TURNS):
            rows.update(repr(row).encode())
    return found | {"episodes": rows.hexdigest()}


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A checkout of the revision, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def all_digests(tree: Path, names: list[str]) -> dict[str, Digests]:
    """Those of each run, by name; says which one is under way."""
    found = {}
    for name in names:
        print(f"{name} …", end=" ", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = digests(tree, RUNS[name], Path(folder))
        print("done", flush=True)
    return found


def differences(before: dict[str, Digests], after: dict[str, Digests]) -> list[str]:
    """A line for each run and file whose bits are others; a run that only one side has is left."""
    lines = []
    for name in sorted(before.keys() & after.keys()):
        files = sorted(before[name].keys() | after[name].keys())
        other = [file for file in files if before[name].get(file) != after[name].get(file)]
        lines += [f"{name}: {', '.join(other)}"] if other else []
    return lines


def machine() -> dict[str, str]:
    """What the digests depend on beside the code."""
    import torch

    return {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Runs, saves, compares; exit code 1 where anything differs."""
    parser = argparse.ArgumentParser(description="Short runs of two revisions, bit for bit.")
    parser.add_argument("--against", help="a git revision that must give the same")
    parser.add_argument("--compare", type=Path, help="a file that --save wrote")
    parser.add_argument("--save", type=Path, help="write the digests of this tree there")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree whose code runs")
    chosen = parser.parse_args()
    if not (chosen.against or chosen.compare or chosen.save):
        parser.error("nothing to compare with: give --against, --compare or --save")
    before: dict[str, Digests] = {}
    if chosen.compare:
        saved = json.loads(chosen.compare.read_text())
        if saved["machine"] != machine():
            raise SystemExit(f"{chosen.compare} was made elsewhere: {saved['machine']}")
        before = saved["runs"]
    if chosen.against:
        with tree_of(chosen.against) as tree:
            before = all_digests(tree, chosen.only)
    after = all_digests(chosen.tree, chosen.only)
    if chosen.save:
        content = {"machine": machine(), "runs": after}
        chosen.save.write_text(json.dumps(content, indent=2) + "\n")
    lines = differences(before, after)
    print(
        "\n".join(lines)
        if lines
        else f"{len(before.keys() & after.keys())} runs compared: the same bits"
    )
    raise SystemExit(1 if lines else 0)


if __name__ == "__main__":
    main()
