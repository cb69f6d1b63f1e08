"""Does an agent that sees a game as a picture learn, and only because of what it sees?

    python benchmarks/learning_pixels.py --workers 2          # five seeds, two hours of two cores
    python benchmarks/learning_pixels.py --arms learn --seeds 1 --out one.json

    learn           tutorial/example_frozen_lake/pixels.yaml
    other           the same with the picture of another lake (other_boards.py)
    sokoban         tutorial/example_sokoban/pixels.yaml
    sokoban_other   the same with the picture of another room

Goal: greedy success on 256 held-out boards rises from at most 15 % to at least 80 % on each of five
seeds, in at most 15 minutes of two cores; with another board's picture it does not come near. What
one route reaches on all lakes (`best_route`) stands next to it. Runs of other arms and seeds in the
file are kept.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

from report import ROOT
from runs import Run, by, greedy, greedy_changes, interval, run_all, run_options, run_training

from ajet.environments.frozen_lake import FrozenLake

OTHER = Path(__file__).with_name("other_boards.py")
ENVIRONMENTS = "ajet.environment.custom_envs"
ARMS = {
    "learn": ("frozen_lake", []),
    "other": ("frozen_lake", [f"{ENVIRONMENTS}.FrozenLake4.env_type={OTHER}->OtherLake"]),
    "sokoban": ("sokoban", []),
    "sokoban_other": (
        "sokoban",
        [
            f"{ENVIRONMENTS}.{tag}.env_type={OTHER}->OtherRoom"
            for tag in ("ThreeMoves", "FiveMoves")
        ],
    ),
}
MOST_BEFORE, LEAST_AFTER, MOST_SECONDS = 0.15, 0.80, 900


AXES = {"arms": ("arm", list(ARMS))}


def run(arm: str, seed: int, folder: Path) -> Run:
    game, changes = ARMS[arm]
    conf = ["--conf", str(ROOT / f"tutorial/example_{game}/pixels.yaml"), *changes]
    return run_training(conf, folder, f"{arm}-{seed}", seed)


def best_route(num_lakes: int = 2000) -> float:
    """Returns the share of held-out lakes that one route of six steps crosses, of the twenty the
    one that crosses most training lakes: what a player reaches that never looks."""
    crossed: dict[str, list[float]] = {}
    for split in ("train", "validation"):
        lakes = []
        for seed in range(num_lakes):
            lake = FrozenLake(view="image", show_neighbours=False)
            lake.reset(seed=seed, options={"split": split})
            lakes.append(lake.map)
        crossed[split] = []
        for rights in combinations(range(6), 3):
            places = [(0, 0)]
            for step in range(6):
                y, x = places[-1]
                places.append((y, x + 1) if step in rights else (y + 1, x))
            safe = [all(lake[y][x] != "H" for y, x in places) for lake in lakes]
            crossed[split].append(sum(safe) / num_lakes)
    return crossed["validation"][crossed["train"].index(max(crossed["train"]))]


def verdict(runs: list[Run]) -> dict[str, Any]:
    shown: dict[str, Any] = {"best_route": best_route()}
    for arm, found in by("arm", runs).items():
        pairs = [(greedy(each, "before"), greedy(each)) for each in found]
        shown[arm] = {"greedy": pairs, **interval(greedy_changes(found))}
        if arm in ("learn", "sokoban"):
            shown[arm]["seeds_that_learn"] = sum(
                before <= MOST_BEFORE and after >= LEAST_AFTER for before, after in pairs
            )
            shown[arm]["within_time"] = all(each["wall_seconds"] <= MOST_SECONDS for each in found)
    return shown


def main() -> None:
    args = run_options(__doc__, "learning_pixels", AXES).parse_args()
    run_all(args, AXES, run, verdict)


if __name__ == "__main__":
    main()
