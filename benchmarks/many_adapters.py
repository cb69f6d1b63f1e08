"""Do adapters over one base learn opposite things at once, and what does sampling them apart cost?

    python benchmarks/many_adapters.py                          # some minutes of one core
    python benchmarks/many_adapters.py --seeds 1 --only apart --out one.json

The games are those of tutorial/example_many_adapters: two_sides (a zero-sum game) and users (two
users who like opposite digits). Nothing in a prompt says who speaks or asks. Each run is the
tutorial's command in a process of its own, with 128 held-out episodes before and after:

    apart      the tutorial: an adapter for each side, or for each user
    shared     one adapter for all calls, with the same rewards: it cannot serve both
    lr0        learning rate 0, for 3 steps (nothing moves, however long)

The unit is the run: a change's 95 % interval is Student's over the seeds. `sampling` has tokens per
second of the in-process engine for 64 requests of 32 tokens, given to 1, 2, 4 and 8 adapters: each
adapter is a pass of its own. It is measured after the runs, alone.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from learning import interval, run_training, write_report

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.update.many_adapters import sharing_weights
from ajet.engines.in_process import InProcessEngine

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "tutorial/example_many_adapters"
GAMES = ("two_sides", "users")
T = "ajet.trainer_common"
ARMS = {
    "apart": [],
    "shared": [f"{T}.lora.adapters=[]"],
    "lr0": [f"{T}.optim.lr=0.0", f"{T}.total_training_steps=3", f"{T}.test_freq=3"],
}
NUM_REQUESTS, NUM_TOKENS = 64, 32


def run(game: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run, and what its summary and its last step say."""
    experiment = f"{game}-{arm}-{seed}"
    arguments = ["--conf", str(TUTORIAL / f"{game}.yaml"), *ARMS[arm]]
    found = run_training(arguments, folder, experiment, seed)
    lines = (folder / experiment / "logs/metrics.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if "reward/mean" in step]
    digits = {
        when: {k.removeprefix("workflow/"): v for k, v in step.items() if k.startswith("workflow/")}
        for when, step in (("first", steps[0]), ("last", steps[-1]))
    }
    return {"game": game, "arm": arm, "seed": seed, **found, "digits": digits}


def sampling() -> dict[str, float]:
    """Tokens per second by the number of adapters, over one base and the same requests."""
    config = load_config(TUTORIAL / "users.yaml", [f"{T}.lora.adapters=[]"], backbone="debug")
    assembly.prepare_torch(config)
    loaded = assembly.load_policy_model(config)
    template = assembly.make_template(loaded)
    prompt = template.prompt_ids([{"role": "user", "content": "Give me one digit."}], None)
    speeds: dict[str, float] = {}
    for number in (1, 2, 4, 8):
        models = {str(n): sharing_weights(loaded.model) for n in range(number)}
        engine = assembly.make_engine(config, loaded, template, adapters=models)
        speeds[str(number)] = asyncio.run(speed(engine, number, prompt))
    return speeds


async def speed(engine: InProcessEngine, num_adapters: int, prompt: list[int]) -> float:
    """The best of three batches; the first warms up."""
    best = 0.0
    for attempt in range(4):
        names = [f"{attempt}-{n}" for n in range(NUM_REQUESTS)]
        for name in names:
            engine.enter(name)
        calls = (
            engine.generate(
                prompt,
                SamplingParams(max_tokens=NUM_TOKENS, seed=n, adapter=str(n % num_adapters)),
                f"{name}/0000",
            )
            for n, name in enumerate(names)
        )
        started_s = time.perf_counter()
        done = await asyncio.gather(*calls)
        tokens = sum(len(each.token_ids) for each in done)
        best = max(best, tokens / (time.perf_counter() - started_s)) if attempt else best
        for name in names:
            engine.leave(name)
    await engine.close()
    return round(best)


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs show, one entry an arm of a game."""
    shown: dict[str, Any] = {}
    for game, arm in dict.fromkeys((run["game"], run["arm"]) for run in runs):
        found = [run for run in runs if (run["game"], run["arm"]) == (game, arm)]
        changes = [run["success_after"] - run["success_before"] for run in found]
        entry: dict[str, Any] = {"after": [run["success_after"] for run in found]}
        entry |= {"changes": changes, **interval(changes)}
        most = {"two_sides": 0.3, "users": 0.6}[game]  # one that serves a single user has a half
        reached = [run["success_after"] for run in found]
        entry["passed"] = min(reached) >= 0.9 if arm == "apart" else max(reached) <= most
        shown[f"{game} {arm}"] = entry
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(ARMS), default=list(ARMS), help="arms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/many_adapters.json")
    parser.add_argument("--note", help="what else the machine did, for example")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-many-adapters-"))
    runs: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        for arm in args.only:
            for game in GAMES:
                runs.append(run(game, arm, seed, folder))
                print(runs[-1], flush=True)
                write_report(args.out, verdict(runs), runs, args.note)
    shutil.rmtree(folder)
    shown = verdict(runs) | {"sampling": {"tokens_per_s": sampling()}}
    write_report(args.out, shown, runs, args.note)
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
