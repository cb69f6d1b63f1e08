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

import asyncio
import time
from pathlib import Path
from typing import Any

from report import ROOT, read, write
from runs import TRAINER, Run, changes, interval, logged, run_all, run_options, run_training

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.update.many_adapters import sharing_weights
from ajet.engines.in_process import InProcessEngine

TUTORIAL = ROOT / "tutorial/example_many_adapters"
GAMES = ("two_sides", "users")
ARMS = {
    "apart": [],
    "shared": [f"{TRAINER}.lora.adapters=[]"],
    "lr0": [
        f"{TRAINER}.optim.lr=0.0",
        f"{TRAINER}.total_training_steps=3",
        f"{TRAINER}.test_freq=3",
    ],
}
NUM_REQUESTS, NUM_TOKENS = 64, 32


AXES = {"games": ("game", GAMES), "only": ("arm", list(ARMS))}


def run(game: str, arm: str, seed: int, folder: Path) -> Run:
    """One training run, and what its summary and its last step say."""
    experiment = f"{game}-{arm}-{seed}"
    arguments = ["--conf", str(TUTORIAL / f"{game}.yaml"), *ARMS[arm]]
    found = run_training(arguments, folder, experiment, seed)
    steps = [step for step in logged(folder / experiment) if "reward/mean" in step]
    digits = {
        when: {k.removeprefix("workflow/"): v for k, v in step.items() if k.startswith("workflow/")}
        for when, step in (("first", steps[0]), ("last", steps[-1]))
    }
    return found | {"digits": digits}


def sampling() -> dict[str, float]:
    """Tokens per second by the number of adapters, over one base and the same requests."""
    config = load_config(TUTORIAL / "users.yaml", [f"{TRAINER}.lora.adapters=[]"], backbone="debug")
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


def verdict(runs: list[Run]) -> dict[str, Any]:
    """What the runs show, one entry an arm of a game."""
    shown: dict[str, Any] = {}
    for game, arm in dict.fromkeys((run["game"], run["arm"]) for run in runs):
        found = [run for run in runs if (run["game"], run["arm"]) == (game, arm)]
        after = [run["success_after"] for run in found]
        entry = {"after": after, "changes": changes(found), **interval(changes(found))}
        most = {"two_sides": 0.3, "users": 0.6}[game]  # one that serves a single user has a half
        entry["passed"] = min(after) >= 0.9 if arm == "apart" else max(after) <= most
        shown[f"{game} {arm}"] = entry
    return shown


def main() -> None:
    args = run_options(__doc__, "many_adapters", AXES, seeds=3).parse_args()
    run_all(args, AXES, run, verdict)
    report = read(args.out)
    report["verdict"]["sampling"] = {"tokens_per_s": sampling()}
    write(args.out, report)


if __name__ == "__main__":
    main()
