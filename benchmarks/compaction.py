"""Does compaction win a game that is longer than the context, and does training its summaries help?

    python benchmarks/compaction.py                       # three seeds of four arms, an hour
    python benchmarks/compaction.py --seeds 1 --only learn --out one.json

The game and its tiny model are those of compaction_game.py, the settings those of compaction.yaml.
Each run is the command `ajet --conf compaction.yaml` in a process of its own, with 256 held-out
instances before and after:

    learn       the conversation is compacted; summaries are trained with the episode's reward
    shuffled    the same, with rewards of other episodes: no gain, an interval that holds 0
    truncated   without compaction: the episode is cut when the context is full
    dropped     without compaction, the oldest messages are dropped: a step is shown alone

`code_in_summaries` is the share of held-out episodes whose every summary is the code, before and
after. The unit is the run: a change's 95 % interval is Student's over the seeds.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from compaction_game import build_model
from report import ROOT
from runs import TRAINER, Run, by, changes, interval, is_flat, run_all, run_options, run_training

from ajet.read.episode_reader import EpisodeFilter, EpisodeReader

AGENT = "ajet.environment.custom_envs.Vault.env_manager_cls"
STEPS = f"{TRAINER}.total_training_steps"
SHUFFLED = f"ajet.rollout.agent_modules=[{Path(__file__).with_name('shuffled_agents.py')}]"
ARMS = {
    "learn": [],
    "shuffled": [SHUFFLED, f"{AGENT}=shuffled_traj_env_agent"],
    "truncated": ["ajet.rollout.compaction.enable=false", f"{STEPS}=20"],
    "dropped": [f"{AGENT}=step_env_agent", f"{STEPS}=40"],
}


AXES = {"only": ("arm", list(ARMS))}


def run(arm: str, seed: int, folder: Path, model: Path) -> Run:
    """One training run, and what its summary and its record say."""
    experiment = f"{arm}-{seed}"
    arguments = ["--conf", str(ROOT / "benchmarks/compaction.yaml"), "--project-dir", str(ROOT)]
    arguments += [f"ajet.model.path={model}", *ARMS[arm]]
    found = run_training(arguments, folder, experiment, seed)
    return found | carried(folder / experiment / "episodes.sqlite")


def carried(record: Path) -> dict[str, Any]:
    """The share of held-out episodes whose every summary is the code, before and after."""
    shares: dict[int, list[bool]] = {}
    with EpisodeReader(record) as reader:
        for episode in reader.walk(EpisodeFilter(mode="eval")):
            turns = episode.turns
            shown = [str(each["content"]) for turn in turns for each in turn.messages]
            code = next((text.split()[-1] for text in shown if " code\n" in text), None)
            summaries = [turn.reply["content"] for turn in turns if turn.notes.is_summary]
            if summaries:
                shares.setdefault(episode.row.step, []).append({*summaries} == {code})
    if not shares:
        return {}
    values = {step: sum(each) / len(each) for step, each in sorted(shares.items())}
    ends = {"before": values[min(values)], "after": values[max(values)]}
    return {"code_in_summaries": ends}


def verdict(runs: list[Run]) -> dict[str, Any]:
    """What the runs show, one entry an arm."""
    shown: dict[str, Any] = {}
    for arm, found in by("arm", runs).items():
        entry: dict[str, Any] = {"after": [run["success_after"] for run in found]}
        entry |= {"changes": changes(found), **interval(changes(found))}
        if arm == "learn":
            entry["passed"] = min(changes(found)) > 0.3
        elif arm == "shuffled" and len(found) > 1:
            entry["passed"] = is_flat("lr0", entry)
        shown[arm] = entry
    return shown


def main() -> None:
    parser = run_options(__doc__, "compaction", AXES, seeds=3)
    parser.add_argument("--model", type=Path, help="the model's folder [it is built]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-compaction-") as folder:
        model = args.model or Path(folder) / "vault"
        if args.model is None:
            build_model(model)
        run_all(args, AXES, partial(run, model=model.resolve()), verdict)


if __name__ == "__main__":
    main()
