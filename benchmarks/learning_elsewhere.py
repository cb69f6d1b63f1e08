"""Does a model get better in an environment that nobody here wrote? TextWorld's Coin Collector.

    python benchmarks/learning_elsewhere.py                       # five seeds of three arms
    python benchmarks/learning_elsewhere.py --seeds 1 --only learn --out one.json

A tiny model is trained first on the form alone: games that are played at random, of which it learns
to write one of the commands that it is shown, whichever. Each run is then the command
`ajet --conf learning_elsewhere.yaml` in a process of its own, with 64 episodes in held-out
games before and after:

    learn       reinforcement learning from the game's own score
    shuffled    rewards are those of other episodes of the run (shuffled_agents.py): an interval
                that does not lie above 0
    lr0         learning rate 0: no change but that of sampling, an interval that holds 0

A room is shown alone, without what was done before it: who does not walk on at random where two
ways are open cannot do better than 0.75 here. Of few games the model learns the ways by heart, and
held-out games, which go another way, show it: hence a hundred of them. The unit is the run: a
change's 95 % interval is Student's over the seeds. `--only` keeps what the file has of the other
arms.
"""

import random
import statistics
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from compaction_game import games, weighted
from report import ROOT
from runs import TRAINER, Run, by, interval, is_flat, run_all, run_options, run_training

from ajet.core.environment.environment import Environment
from ajet.core.environment.registry import environment_maker
from ajet.core.seeding import derive

CONF = ROOT / "benchmarks/learning_elsewhere.yaml"
LEVEL, NUM_GAMES = 3, 100
MAX_STEPS, BATCH = 6, 16
SHUFFLED_AGENTS = Path(__file__).with_name("shuffled_agents.py")
ARMS = {
    "learn": [],
    "shuffled": [
        f"ajet.rollout.agent_modules=[{SHUFFLED_AGENTS}]",
        "ajet.environment.custom_envs.Coin.env_manager_cls=shuffled_step_env_agent",
    ],
    "lr0": [f"{TRAINER}.optim.lr=0.0", f"{TRAINER}.total_training_steps=2"],
}


def make_games(folder: Path) -> None:
    """Generates and compiles the games, of which the environment holds some out by their names."""
    textworld = import_module("textworld")
    collector = import_module("textworld.challenges.tw_coin_collector.coin_collector")
    generator = import_module("textworld.generator")

    folder.mkdir()
    for number in range(NUM_GAMES):
        options = textworld.GameOptions()
        options.seeds, options.path = number, str(folder / f"{number}.z8")
        game = collector.make({"level": LEVEL}, options)
        generator.compile_game(game, options)


def steps_at_random(environment: Environment, rng: random.Random) -> list[tuple[str, str]]:
    """Returns the observations of one training game that is played at random, each with the command
    that was written after it."""
    shown, _ = environment.reset(seed=rng.getrandbits(40), options={"split": "train"})
    steps: list[tuple[str, str]] = []
    for _ in range(MAX_STEPS):
        steps.append((str(shown), environment.sample_action(rng)))
        shown, _, is_over, _, _ = environment.step(steps[-1][1])
        if is_over:
            break
    return steps


def build_model(out: Path, folder: Path, steps: int = 500, num_games: int = 300) -> None:
    """Trains the model on steps that were played at random, and writes it into the folder `out`."""
    torch.set_num_threads(1)
    torch.manual_seed(derive(0, "weights", "walker") % 2**63)
    rng = random.Random(derive(0, "games", "walker"))
    environment = environment_maker(f"textworld:{folder}", {}, [], "the games")()
    played = [pair for _ in range(num_games) for pair in steps_at_random(environment, rng)]
    environment.close()
    words = sorted({word for shown, _ in played for word in shown.split()})
    game = games.Game(
        lambda: environment,
        " ".join(["user assistant", *words]),
        MAX_STEPS,
        steps,
        BATCH,
        games.valid_action,
        hidden=48,
        layers=2,
    )
    tokenizer = games.build_tokenizer(game.words)
    model = games.build_model(game, tokenizer)
    written = (
        [
            [{"role": "user", "content": shown}, {"role": "assistant", "content": command}]
            for shown, command in rng.choices(played, k=BATCH)
        ]
        for _ in range(steps)
    )
    games.fit(model, (weighted(tokenizer, batch) for batch in written), steps)
    games.save(model, tokenizer, out)


AXES = {"only": ("arm", list(ARMS))}


def run(arm: str, seed: int, folder: Path, model: Path, compiled: Path) -> Run:
    """One training run, and what its summary says."""
    arguments = ["--conf", str(CONF), f"ajet.model.path={model}", *ARMS[arm]]
    arguments += [f"ajet.environment.custom_envs.Coin.env_type=textworld:{compiled}"]
    return run_training(arguments, folder, f"{arm}-{seed}", seed)


def verdict(runs: list[Run]) -> dict[str, Any]:
    """What the runs show, one entry an arm. Runs of the same seed count as one, their mean."""
    shown: dict[str, Any] = {}
    for arm, found in by("arm", runs).items():
        of_seeds: dict[int, list[float]] = {}
        for run in found:
            change = run["success_after"] - run["success_before"]
            of_seeds.setdefault(run["seed"], []).append(change)
        changes = [statistics.fmean(each) for each in of_seeds.values()]
        entry: dict[str, Any] = {
            "before": [run["success_before"] for run in found],
            "after": [run["success_after"] for run in found],
            "changes": changes,
            **interval(changes),
        }
        if len(changes) > 1:
            entry["passed"] = entry["low"] > 0 if arm == "learn" else is_flat(arm, entry)
        shown[arm] = entry
    return shown


def main() -> None:
    parser = run_options(__doc__, "learning_elsewhere", AXES)
    parser.add_argument("--model", type=Path, help="the model's folder [it is built]")
    parser.add_argument("--games", type=Path, help="the folder of the games [they are made]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-elsewhere-") as made:
        model = (args.model or Path(made) / "walker").resolve()
        compiled = (args.games or Path(made) / "games").resolve()
        if not compiled.exists():
            make_games(compiled)
        if not model.exists():
            build_model(model, compiled)
        run_all(args, AXES, partial(run, model=model, compiled=compiled), verdict)


if __name__ == "__main__":
    main()
