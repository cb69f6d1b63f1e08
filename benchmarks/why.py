"""Does `ajet why` name the cause of a flat reward? Twenty planted faults and twenty healthy runs.

    python benchmarks/why.py                        # about half an hour of one core
    python benchmarks/why.py --only inverted_judge demo_0 --out some.json

Each run is a short one of the demo (or, of the healthy ones, of a game), in a process of its own.
A fault is overrides, a judge or a workflow of this file, or a patch of ajet's own code, which the
process makes before it starts the command (`--patched NAME`). `--only` keeps what the file has of
the others. Claim: the planted cause comes first in at least 17 of 20, and at most one of the
healthy runs has a cause.
"""

import copy
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from report import ROOT, measured_on, options, read, write
from runs import DEMO as CONF
from runs import TRAINER as T

sys.path.insert(0, str(ROOT))  # the judge and the workflow are the tutorial's own

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from tutorial.example_math_agent.math_answer_as_judge import MathAnswerAsJudge
from tutorial.example_math_agent.workflow import MathAgentWorkflow

HERE = Path(__file__).resolve()
DEMO = [
    *CONF,
    "ajet.data.train_batch_size=8", "ajet.data.val_max_tasks=16", f"{T}.total_training_steps=8",
    f"{T}.test_freq=8", f"{T}.save_freq=8", f"{T}.val_second_decoding=false",
    f"{T}.optim.lr_schedule=constant",
]  # fmt: skip


class Judge(MathAnswerAsJudge):
    """The demo's judge, whose reward each fault changes; success stays true."""

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reward, is_success = await super().compute_reward(workflow_task, workflow_output)
        return self.changed(reward, workflow_output), is_success

    def changed(self, reward: float, output: WorkflowOutput) -> float:
        return reward


class ScaledJudge(Judge):
    def changed(self, reward: float, output: WorkflowOutput) -> float:
        return reward / 100


class InvertedJudge(Judge):
    def changed(self, reward: float, output: WorkflowOutput) -> float:
        return 1 - reward


class ConstantJudge(Judge):
    def changed(self, reward: float, output: WorkflowOutput) -> float:
        return 0.5


class LaterJudge(Judge):
    """Gives each episode the reward of the one before it."""

    before = 0.0

    def changed(self, reward: float, output: WorkflowOutput) -> float:
        LaterJudge.before, reward = reward, LaterJudge.before
        return reward


class LeakingWorkflow(MathAgentWorkflow):
    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        task = workflow_task.task
        answer = task.metadata["answer"].rpartition("#### ")[2]
        task = replace(task, main_query=f"{task.main_query} The answer is {answer}.")
        return await super().execute(replace(workflow_task, task=task), model_tuner)


class LongerWorkflow(Workflow):
    """Pays for the length of one reply."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        question = {"role": "user", "content": workflow_task.task.main_query}
        reply = await model_tuner.chat([question])
        return WorkflowOutput(reward=len(str(reply["content"])) / 100, is_success=False)


class UntrainedWorkflow(MathAgentWorkflow):
    """Most of its calls are a helper's, who is not trained."""

    trainable_targets = ["default"]

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        question = {"role": "user", "content": workflow_task.task.main_query}
        for _ in range(10):
            await model_tuner.chat([question], agent_name="helper", target_tag="helper")
        return await super().execute(workflow_task, model_tuner)


def masked_ends() -> None:
    """Leaves the last token of each reply out of the loss, after ajet has checked the masks."""
    from ajet.core.trajectory import samples

    original = samples.to_samples

    def patched(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        for sample in made:
            for span in sample.spans:
                sample.loss_mask[span.stop - 1] = False
        return made

    import ajet.backbones.debug.training  # noqa: F401  all users of the function are imported

    for module in list(sys.modules.values()):
        if vars(module).get("to_samples") is original:
            vars(module)["to_samples"] = patched


def stale_engine() -> None:
    """Lets the engine sample with a copy of the start model."""
    from ajet.engines import in_process

    original = in_process.InProcessEngine.__init__

    def patched(self: Any, model: Any, **kwargs: Any) -> None:
        original(self, copy.deepcopy(model), **kwargs)

    in_process.InProcessEngine.__init__ = patched


PATCHES = {"masked_ends": masked_ends, "stale_engine": stale_engine}


@dataclass(frozen=True)
class Fault:
    """A planted fault: what makes it, and the cause that must come first."""

    overrides: Sequence[str]
    cause: str
    patch: str | None = None


def judge(name: str) -> str:
    return f"ajet.task_judge.judge_protocol={HERE}->{name}"


def workflow(name: str) -> str:
    return f"ajet.rollout.user_workflow={HERE}->{name}"


FAULTS = {
    "reward_scaled_down": Fault(
        [judge("ScaledJudge"), f"{T}.algorithm.normalize_std=false"], "reward_scale"
    ),
    "inverted_judge": Fault([judge("InvertedJudge")], "inverted_judge"),
    "foreign_template": Fault(
        [f"ajet.model.chat_template={ROOT}/tests/chat_templates/deepseek_v3_1.jinja"], "template"
    ),
    "foreign_parser": Fault(["ajet.rollout.tool_parser=llama3"], "tool_parser"),
    "rate_zeroed_by_schedule": Fault([f"{T}.optim.warmup_steps=100000"], "learning_rate"),
    "equal_rewards": Fault([judge("ConstantJudge")], "no_signal"),
    "stale_weights": Fault([f"{T}.optim.lr=2e-3"], "stale_weights", "stale_engine"),
    "truncated_replies": Fault(["ajet.rollout.max_response_length_in_one_turn=12"], "truncated"),
    "leaked_answer": Fault([workflow("LeakingWorkflow")], "leaked_answer"),
    "length_exploit": Fault(
        [workflow("LongerWorkflow"), "ajet.task_judge.judge_protocol=null"], "length_exploit"
    ),
    "end_token_masked": Fault([], "end_token", "masked_ends"),
    "temperature_0": Fault(["ajet.rollout.temperature=0.01"], "temperature"),
    "group_of_one": Fault(
        ["ajet.rollout.num_repeat=1", "ajet.data.train_batch_size=64"], "group_of_one"
    ),
    "strong_kl": Fault([f"{T}.kl_loss_coef=100"], "strong_kl"),
    "held_out_leak": Fault(
        ["ajet.task_reader.huggingface_dat_repo.validation_split=train"], "held_out_leak"
    ),
    "reward_of_another_episode": Fault([judge("LaterJudge")], "reward_of_another"),
    "everything_clipped": Fault(
        [f"{T}.algorithm.clip_low=1e-9", f"{T}.algorithm.clip_high=1e-9"], "clipped"
    ),
    "wrong_betas": Fault([f"{T}.optim.betas=[0.999,0.9]"], "betas"),
    "untrained_tokens": Fault([workflow("UntrainedWorkflow")], "untrained_tokens"),
    "too_few_tasks": Fault(
        [
            "ajet.task_reader.type=jsonl_dataset_file",
            "++ajet.task_reader.jsonl_dataset_file.training.file_path={folder}/few.jsonl",
            "ajet.data.train_batch_size=4",
        ],
        "few_tasks",
    ),
}
GAMES = {
    "frozen_lake": [f"{T}.total_training_steps=40"],
    "guess_number": [f"{T}.total_training_steps=20"],
    "countdown": [f"{T}.total_training_steps=40"],
}
HEALTHY: dict[str, list[str]] = {
    **{f"demo_{seed}": [*DEMO, f"ajet.seed={seed}"] for seed in range(6)},
    **{
        f"demo_{name}": [*DEMO, f"{T}.algorithm.adv_estimator={name}"]
        for name in ("rloo", "opo", "reinforce_plus_plus_baseline")
    },
    **{
        f"demo_{name}": [*DEMO, f"{T}.algorithm.policy_loss={name}"]
        for name in ("gspo", "cispo", "sapo")
    },
    "demo_without_kl": [*DEMO, f"{T}.use_kl_loss=false", f"{T}.optim.lr=5e-4"],
    "demo_cosine": [*DEMO, f"{T}.optim.lr_schedule=cosine"],
    **{
        f"{name}_{seed}": [
            "--conf", str(ROOT / f"tutorial/example_{name}/demo.yaml"), *changes,
            f"{T}.val_second_decoding=false", f"ajet.seed={seed}",
        ]
        for name, changes in GAMES.items()
        for seed in (0, 1)
    },
}  # fmt: skip


def run(name: str, arguments: Sequence[str], folder: Path, patch: str | None = None) -> Any:
    """Trains, asks why, and returns the names of the causes and what the run came to."""
    command = [sys.executable, str(HERE), "--patched", str(patch), *arguments]
    command += ["--backbone", "debug", "--exp-dir", str(folder), f"ajet.experiment_name={name}"]
    command = [word.format(folder=folder) if "{folder}" in word else word for word in command]
    # A fault may end the run early; what is recorded until then must do.
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    asked = [sys.executable, "-m", "ajet.cli.launcher", "why", str(folder / name), "--out", "-"]
    answer = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
    shutil.rmtree(folder / name, ignore_errors=True)
    commit = measured_on()["commit"]
    if answer.returncode:
        error = (ran.stderr + answer.stderr).strip()[-300:]
        return {"causes": [], "error": error, "commit": commit}
    report = json.loads(answer.stdout)
    causes = [cause["name"] for cause in report["causes"]]
    kept = {"steps": report["num_steps"], "trend": report["trend"]}
    return {"causes": causes, **kept, "commit": commit}


def patched_command(arguments: list[str]) -> None:
    """Is the process of a run: patches ajet and starts its command line."""
    from ajet.cli.launcher import main as ajet_main

    patch, *rest = arguments
    if patch in PATCHES:
        PATCHES[patch]()
    sys.argv = ["ajet", *rest]
    ajet_main()


def main() -> None:
    parser = options(__doc__, "why")
    parser.add_argument("--only", nargs="*", choices=[*FAULTS, *HEALTHY])
    args = parser.parse_args()
    known = read(args.out)
    planted: dict[str, Any] = known.get("faults", {})
    healthy: dict[str, Any] = known.get("healthy_runs", {})

    def keep(runs: dict[str, Any], name: str, answer: dict[str, Any]) -> None:
        runs[name] = answer
        print(name, answer, flush=True)
        shown = {
            "planted": len(planted),
            "named_first": sum(each["first"] for each in planted.values()),
            "healthy": len(healthy),
            "with_a_cause": sum(bool(each["causes"]) for each in healthy.values()),
        }
        write(args.out, {"verdict": shown, "faults": planted, "healthy_runs": healthy})

    with tempfile.TemporaryDirectory(prefix="ajet-why-") as made:
        folder = Path(made)
        rows = (ROOT / "ajet/embedded/arithmetic/train.jsonl").read_text().splitlines()
        (folder / "few.jsonl").write_text("\n".join(rows[:4]) + "\n")
        for name, fault in FAULTS.items():
            if args.only is None or name in args.only:
                answer = run(name, [*DEMO, *fault.overrides], folder, fault.patch)
                is_first = answer["causes"][:1] == [fault.cause]
                keep(planted, name, {"cause": fault.cause, "first": is_first, **answer})
        for name, arguments in HEALTHY.items():
            if args.only is None or name in args.only:
                keep(healthy, name, run(name, arguments, folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--patched"]:
        patched_command(sys.argv[2:])
    else:
        main()
