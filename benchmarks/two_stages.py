"""Measures an example that trains a pretrained model in two stages, against controls.

Used by function_calling.py, function_calling_qwen.py and gsm8k_learning.py, which say what they
claim. Each arm is the
example's command, from the project's root, in a process of its own; the same command goes on where
a run was stopped.

    trained      the supervised stage, then reinforcement
    shuffled     reinforcement from the same supervised model; an episode has another one's reward
    lr0          the same with learning rate 0, for 10 steps: its weights stay the same bits
    unprepared   reinforcement from the model as it is, without the supervised stage
    temperatures the supervised model at five temperatures (controls.py)
    rejection    cross-entropy on the supervised model's own successes, as many episodes as
                 reinforcement samples (controls.py)

Measured are the model as it is, after the supervised stage and at the end of an arm: the mean
success of several sampled replies to each held-out task, and of one greedy reply. Differences are
paired by task, with 95 % intervals over tasks (core/record/evaluation.py). The successes of each
held-out task are kept.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from controls import drawn_at, rejection_sampling, temperatures
from report import ROOT, measured_on, options, read, write
from runs import ajet

from ajet.core.record.evaluation import paired_difference

SHUFFLED = ROOT / "tutorial/example_function_calling/shuffled.py"
SUPERVISED, REINFORCEMENT = "supervised", "reinforcement"
WITHOUT_SUPERVISED = f"~ajet.stages.{SUPERVISED}"
TRAINER = f"ajet.stages.{REINFORCEMENT}.trainer_common"
ARMS: dict[str, list[str]] = {
    "trained": [],
    "shuffled": [
        WITHOUT_SUPERVISED,
        f"++{TRAINER}.algorithm.reward_shaping={SHUFFLED}->shuffled",
    ],
    "lr0": [
        WITHOUT_SUPERVISED,
        f"++{TRAINER}.optim.lr=0.0",
        f"++{TRAINER}.total_training_steps=10",
    ],
    "unprepared": [WITHOUT_SUPERVISED],
}
CONTROLS = ("temperatures", "rejection")
FROM_SUPERVISED = ("shuffled", "lr0")

Wins = dict[str, list[bool]]


@dataclass(frozen=True)
class TwoStages:
    """An example with stages `supervised` and `reinforcement`.

    `samples` has the files in `data` that models are measured on, and the replies to each of their
    tasks; the first file is the held-out one, whose gain `goal` is for. `categories` are the parts
    of it that have figures of their own: a task's id is its category and a number. `forms` are
    overrides by name; the model as it is is measured with each of them, too. Where `data` says
    which tasks leak, the report says so.
    """

    conf: Path
    data: Path
    samples: dict[str, int]
    result: str
    goal: float
    categories: tuple[str, ...] = ()
    forms: dict[str, list[str]] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)

    @property
    def held_out(self) -> str:
        return next(iter(self.samples))

    def train(self, arm: str, seed: int, folder: Path) -> Path:
        """Runs the arm, or the rest of it, and returns its folder."""
        name = f"{arm}_{seed}"
        given = ["--conf", str(self.conf), "--backbone", "debug", "--exp-dir", str(folder)]
        overrides = [f"ajet.seed={seed}", f"ajet.experiment_name={name}", *ARMS[arm]]
        overrides += self.overrides
        if arm in FROM_SUPERVISED:
            overrides.append(f"ajet.model.path={last_checkpoint(folder / f'trained_{seed}')}")
        # Where it is complete this says so; where it was stopped it goes on.
        ajet(*given, *overrides, folder=Path.cwd())
        return folder / name

    @property
    def data_sets(self) -> tuple[str, ...]:
        return *self.samples, *self.categories

    def wins_of(
        self, subject: list[str], run: Path, out: Path, *, greedy: bool = False
    ) -> dict[str, Wins]:
        """Measures a model, unless it was before; returns each task's successes by data set."""
        found: dict[str, Wins] = {}
        for name, num_sampled in self.samples.items():
            samples, decoding = (1, drawn_at(0.0)) if greedy else (num_sampled, [])
            file = out / f"{name}{'.greedy' if greedy else ''}.json"
            if not file.exists():
                out.mkdir(parents=True, exist_ok=True)
                validation = "ajet.task_reader.jsonl_dataset_file.validation.file_path"
                conf = run / REINFORCEMENT / "config.yaml"
                given = ["eval", "--conf", str(conf), *subject, "-k", str(samples)]
                every_task = [
                    f"{validation}={self.data / name}.jsonl",
                    "ajet.data.val_max_tasks=null",
                ]
                ajet(*given, "--out", file, *every_task, *decoding, folder=Path.cwd())
            tasks = json.loads(file.read_text())["tasks"]
            found[name] = {task: tasks[task]["success"] for task in tasks}
        for category in self.categories:
            found[category] = {
                task: each
                for task, each in found[self.held_out].items()
                if task.rpartition("_")[0] == category
            }
        return found

    def measure(self, arm: str, seed: int, folder: Path) -> dict[str, Any]:
        """Trains one arm and measures its models; returns what they come to."""
        if arm in CONTROLS:
            return {"arm": arm, "seed": seed, **measured_on(), **self.control(arm, seed, folder)}
        run = self.train(arm, seed, folder)
        stages = {
            each["name"]: each for each in json.loads((run / "summary.json").read_text())["stages"]
        }
        measured = folder / "measured"
        model = yaml.safe_load(self.conf.read_text())["ajet"]["model"]["path"]
        subjects = {
            "base": (["--model", model], "base"),
            **{form: (["--model", model, *given], form) for form, given in self.forms.items()},
            "before": (
                ["--checkpoint", str(folder / f"trained_{seed}" / SUPERVISED)],
                f"supervised_{seed}",
            ),
            "after": (["--checkpoint", str(run / REINFORCEMENT)], run.name),
        }
        if arm == "unprepared":
            subjects["before"] = subjects["base"]
        if arm != "trained":
            for subject in ("base", *self.forms):
                del subjects[subject]
        result: dict[str, Any] = {
            "arm": arm,
            "seed": seed,
            **measured_on(),
            "seconds": {name: stage["wall_seconds"] for name, stage in stages.items()},
            "peak_rss_bytes": {name: peak_rss(run / name) for name in stages},
        }

        def figures(*, greedy: bool) -> dict[str, Any]:
            wins = {
                when: self.wins_of(subject, run, measured / name, greedy=greedy)
                for when, (subject, name) in subjects.items()
            }
            return self.figures(wins)

        return {**result, **figures(greedy=False), "greedy": figures(greedy=True)}

    def figures(self, wins: dict[str, dict[str, Wins]]) -> dict[str, Any]:
        """Returns the means and differences of models that were measured in one way, with the
        successes of each held-out task."""
        figures: dict[str, Any] = {
            when: {name: mean(of_data) for name, of_data in by_data.items()}
            for when, by_data in wins.items()
        }
        pairs = {"difference": ("after", "before")}
        if "base" in wins:
            pairs["supervised_difference"] = ("before", "base")
        for title, (one, other) in pairs.items():
            figures[title] = {
                name: difference(wins[one][name], wins[other][name]) for name in self.data_sets
            }
        tested = {when: by_data[self.held_out] for when, by_data in wins.items()}
        figures["tasks"] = {
            task: {when: f"{sum(of[task])}/{len(of[task])}" for when, of in tested.items()}
            for task in tested["after"]
        }
        return figures

    def control(self, arm: str, seed: int, folder: Path) -> dict[str, Any]:
        """Measures what reinforcement has to beat, from the supervised model of the seed."""
        trained = folder / f"trained_{seed}"
        supervised = last_checkpoint(trained)
        given = ["--conf", str(trained / REINFORCEMENT / "config.yaml")]
        given += [f"ajet.model.path={supervised}", "ajet.data.val_max_tasks=null"]
        given += ["ajet.experiment_dir=auto"]  # the controls give another
        reader = yaml.safe_load(self.conf.read_text())["ajet"]["task_reader"]["jsonl_dataset_file"]
        for split in ("training", "validation"):  # the controls run in another folder
            file = Path(reader[split]["file_path"]).resolve()
            given.append(f"ajet.task_reader.jsonl_dataset_file.{split}.file_path={file}")
        if arm == "temperatures":
            return {"success_by_temperature": temperatures(given, folder)}
        given.append("ajet.supervised.validation=tasks")  # the held-out file has no replies
        return rejection_sampling(given, folder, f"rejection_{seed}", seed)

    def verdict(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns what the arms show on the held-out tasks."""
        results = [r for r in results if "split" not in r]  # the others are of earlier data
        shown: dict[str, Any] = {}
        for arm in ARMS:
            differences = [r["difference"][self.held_out] for r in results if r["arm"] == arm]
            if not differences:
                continue
            added = [each["value"] for each in differences]
            shown[arm] = {"seeds": len(differences), "added": added}
            if arm == "trained":
                points = round(100 * self.goal)
                shown[arm][f"seeds_with_{points}_points"] = sum(v >= self.goal for v in added)
            else:
                shown[arm]["flat"] = all(each["low"] <= 0 for each in differences)
        return shown

    def main(self, doc: str | None) -> None:
        """Runs and measures one arm, and writes what is known."""
        parser = options(doc, self.result, seed=0)
        parser.add_argument("--arm", choices=[*ARMS, *CONTROLS], required=True)
        parser.add_argument("--folder", type=Path, required=True, help="where the runs are kept")
        parser.add_argument("--note", help="what was unlike the example, kept with the figures")
        parser.add_argument("--override", nargs="*", default=[], help="keys of both stages")
        args = parser.parse_args()
        unlike = replace(self, overrides=args.override)
        found = unlike.measure(args.arm, args.seed, args.folder.resolve())
        if args.note:
            found["note"] = args.note
        known = read(args.out).get("results", [])
        same = (args.arm, args.seed)
        results = [r for r in known if "split" in r or (r["arm"], r["seed"]) != same] + [found]
        results.sort(key=lambda r: ([*ARMS, *CONTROLS].index(r["arm"]), r["seed"]))
        shown = self.verdict(results)
        leaks = read(self.data / "leaks.json")
        told = {"leaks": leaks} if leaks else {}
        write(args.out, {"verdict": shown, **told, "results": results})
        print(json.dumps(shown, indent=2))


def last_checkpoint(run: Path) -> Path:
    """Returns the model of the run's supervised stage: its last checkpoint or, of adapters, the
    model that they were merged into."""
    merged = sorted((run / SUPERVISED).glob("model_*"))
    found = merged or sorted((run / SUPERVISED / "checkpoints").glob("step_*"))
    if not found:
        raise SystemExit(f"{run} has no supervised stage: run --arm trained with this seed first")
    return found[-1].resolve()


def peak_rss(run: Path) -> int:
    return int(json.loads((run / "summary.json").read_text())["peak_rss_bytes"])


def mean(wins: Wins) -> float:
    """Returns the mean over tasks of the share of successes."""
    return sum(sum(each) / len(each) for each in wins.values()) / len(wins)


def difference(wins: Wins, others: Wins) -> dict[str, float]:
    found = paired_difference(wins, others)
    return {"value": found.value, "low": found.low, "high": found.high}
