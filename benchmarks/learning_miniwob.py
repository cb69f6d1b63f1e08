"""Does a small model learn five click tasks of MiniWoB from the text of their pages?

    pip install --no-deps miniwob                       # and a Chromium
    python benchmarks/learning_miniwob.py                        # three seeds of three arms
    python benchmarks/learning_miniwob.py --seeds 1 --only learn --quick --out one.json

A tiny model is trained first on the form alone: steps that are played at random, of which it learns
to click one of the listed elements, whichever, and what came of it. Each run is then the command
`ajet --conf learning_miniwob.yaml` in a process of its own, with 20 held-out pages of each task
before and after, greedily and sampled:

    learn       reinforcement learning from the tasks' own rewards, 1 and -1
    shuffled    rewards are those of other episodes of the run (shuffled_agents.py): an interval
                that does not lie above 0
    lr0         learning rate 0, for 2 steps: an interval that holds 0

The goal: `learn` adds at least 20 points of success over all tasks, greedily and sampled, in each
run; `tasks` has each task's share. `--quick` has half the steps and half the held-out pages.
`--only` keeps what the file has of the other arms.
"""

import json
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from compaction_game import games
from report import ROOT
from runs import TRAINER, Run, by, changes, greedy_changes, interval, is_flat, run_all, run_options
from runs import run_training as train

from ajet.core.environment.registry import environment_maker
from ajet.core.seeding import derive

CONF = ROOT / "benchmarks/learning_miniwob.yaml"
TASKS = ("click-test-2", "click-tab", "focus-text-2", "click-dialog-2", "click-widget")
MAX_STEPS = 2
GOAL = 0.2
ENDED = "The task is over"
PAGE_WEIGHT = 0.05
SHUFFLED_AGENTS = Path(__file__).with_name("shuffled_agents.py")
ENVIRONMENTS = "ajet.environment.custom_envs"
ARMS = {
    "learn": [],
    "shuffled": [
        f"ajet.rollout.agent_modules=[{SHUFFLED_AGENTS}]",
        *(f"{ENVIRONMENTS}.{task}.env_manager_cls=shuffled_step_env_agent" for task in TASKS),
    ],
    "lr0": [f"{TRAINER}.optim.lr=0.0", f"{TRAINER}.total_training_steps=2"],
}
QUICK = [
    f"{TRAINER}.total_training_steps=75",
    f"{TRAINER}.test_freq=75",
    f"{TRAINER}.save_freq=75",
    "ajet.environment.val_env_manager.num_env_groups=50",
]
AXES = {"only": ("arm", list(ARMS))}


def steps_at_random(task: str, number: int) -> list[tuple[str, str, str]]:
    """Returns what is seen, what is clicked and what is seen next, in one training page that is
    played at random."""
    rng = random.Random(derive(0, "clicks", task, number))
    environment = environment_maker(f"miniwob:{task}", {}, [], task)()
    shown, _ = environment.reset(seed=rng.getrandbits(40), options={"split": "train"})
    steps: list[tuple[str, str, str]] = []
    for _ in range(MAX_STEPS):
        action = environment.sample_action(rng)
        after, _, is_over, _, _ = environment.step(action)
        steps.append((str(shown), action, str(after)))
        shown = after
        if is_over:
            break
    environment.close()
    return steps


def build_model(out: Path, pages_of_task: int = 250, steps: int = 500) -> None:
    """Trains the model on steps that were played at random, and writes it into the folder `out`."""
    torch.set_num_threads(1)
    torch.manual_seed(derive(0, "weights", "clicker") % 2**63)
    pages = [(task, number) for task in TASKS for number in range(pages_of_task)]
    with ThreadPoolExecutor(2) as pool:
        played = [
            step for each in pool.map(lambda page: steps_at_random(*page), pages) for step in each
        ]
    counts = Counter(word for texts in played for text in texts for word in text.split())
    words = [word.strip('".,:') for word, count in sorted(counts.items()) if count >= 5]
    game = games.Game(
        environment_maker(f"miniwob:{TASKS[0]}", {}, [], "the first task"),
        " ".join(["user assistant", *filter(None, words)]),
        MAX_STEPS,
        steps,
        16,
        games.valid_action,
    )
    tokenizer = games.build_tokenizer(game.words)
    model = games.build_model(game, tokenizer)
    texts = [weighted(tokenizer, *step) for step in played]
    rng = random.Random(derive(0, "batches", "clicker"))
    batches = (padded(rng.choices(texts, k=game.batch)) for _ in range(steps))
    games.fit(model, batches, steps)
    games.save(model, tokenizer, out)


def weighted(tokenizer: Any, shown: str, action: str, after: str) -> tuple[list[int], list[float]]:
    """Returns the token ids of a step and their weights in the loss: the action and how the task
    ended count in full, what pages show hardly."""
    seen = [{"role": "user", "content": shown}]
    acted = [*seen, {"role": "assistant", "content": action}]
    whole = games.encoded(tokenizer, [*acted, {"role": "user", "content": after}])
    start, end = len(games.encoded(tokenizer, seen)), len(games.encoded(tokenizer, acted))
    if after.startswith(ENDED):
        end = len(whole)
    return whole, [1.0 if start <= at < end else PAGE_WEIGHT for at in range(len(whole))]


def padded(texts: list[tuple[list[int], list[float]]]) -> Any:
    """Returns a batch for `games.fit`."""
    tokens_BT, weights_BT, others = games.padded([ids for ids, _ in texts])
    for row, (_, weights) in enumerate(texts):
        weights_BT[row, : len(weights)] = torch.tensor(weights)
    return tokens_BT, weights_BT, others


def run(arm: str, seed: int, folder: Path, model: Path, overrides: list[str]) -> Run:
    """One training run, and what its summary says."""
    # The later of two overrides counts, so an arm's number of steps is that of quick runs, too.
    arguments = ["--conf", str(CONF), f"ajet.model.path={model}", *overrides, *ARMS[arm]]
    made = train(arguments, folder, f"{arm}-{seed}", seed)
    summary = json.loads((folder / f"{arm}-{seed}" / "summary.json").read_text())
    decodings = {"sampled": summary["held_out"], "greedy": summary["held_out_greedy"]}
    return made | {
        "tasks": {
            task: {name: shares(found, task) for name, found in decodings.items()} for task in TASKS
        }
    }


def shares(found: dict[str, dict[str, float]], task: str) -> dict[str, float]:
    """The success in one task before and after; an id is the task's name and a number."""
    return {
        moment: fmean(value for each, value in of.items() if each.rpartition("-")[0] == task)
        for moment, of in found.items()
    }


def verdict(runs: list[Run]) -> dict[str, Any]:
    """What the runs show, one entry an arm."""
    shown: dict[str, Any] = {}
    for arm, found in by("arm", runs).items():
        added = {"sampled": changes(found), "greedy": greedy_changes(found)}
        entry: dict[str, Any] = {
            "tasks": [each["tasks"] for each in found],
            "changes": added,
            **{name: interval(values) for name, values in added.items()},
        }
        if arm == "learn":
            entry["passed"] = min(added["sampled"] + added["greedy"]) >= GOAL
        elif len(found) > 1:
            entry["passed"] = is_flat(arm, entry["sampled"])
        shown[arm] = entry
    return shown


def main() -> None:
    parser = run_options(__doc__, "learning_miniwob", AXES, seeds=3)
    parser.add_argument("--model", type=Path, help="the model's folder [it is built]")
    parser.add_argument("--quick", action="store_true", help="half the steps, half the pages")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-miniwob-") as made:
        model = (args.model or Path(made) / "clicker").resolve()
        if not model.exists():
            build_model(model)
        overrides = QUICK if args.quick else []
        run_all(args, AXES, partial(run, model=model, overrides=overrides), verdict)


if __name__ == "__main__":
    main()
