"""Episodes a second of a whole GRPO step (rollout, reward, update) against TRL's GRPOTrainer.

    python benchmarks/grpo_step_vs_trl.py
    python benchmarks/grpo_step_vs_trl.py --device cuda --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6

The same model (`embedded:math`), tasks, tool (the sandbox), reward, group size, token limit,
sampling, loss (token mean, no KL) and AdamW; one optimizer step for each 8 tasks x 8 episodes; one
thread. Three arms, one after the other, `--rounds` times with another seed:

    trl          GRPOTrainer(tools=[execute_python_code]), max_tool_calling_iterations=1
    agentscope   the tutorial's ReAct agent, as users run it
    chat         the same loop as TRL's in ten lines over `model_tuner.chat`

TRL derives a tool's schema in its own form; here the form that the model was trained with is
written into its template, and the prompt ids of all arms are compared before anything is timed.
TRL gets its quicker settings: no gradient checkpointing, micro-batches of 8, no logging.

The first step of each arm is not timed (imports, allocations), but its rewards are compared: all
arms begin with the same weights there, so that the means must agree within the noise of sampling.

Where the time goes: TRL computes each prompt once an episode, again after the tool, and again in
the update; each `generate` runs until its longest reply ends; conversations wait for each other's
tools one by one. Here a prompt is computed once a step for its group, what follows the tool's
result starts from the kept keys and values, the update computes each shared prefix once and leaves
out groups whose rewards are all equal (they have no gradient; TRL computes them).

Not covered: several threads, TRL with vLLM. On a GPU and with another model nobody has run it.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from report import ROOT, options, write

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask, assembly
from ajet.core.config import AjetConfig, load_config
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.judge import make_judge
from ajet.core.model.load import load_model
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.judges.math import is_equal_answer
from tutorial.example_math_agent.workflow import SYSTEM_PROMPT

DEMO = ROOT / "tutorial/example_math_agent/demo.yaml"
NUM_TASKS, GROUP = 8, 8
LIMIT = 5.0


@dataclass
class Timed:
    """Steps of one arm: seconds of each, and every episode's reward."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rollout_s: list[float] = field(default_factory=list)
    rewards: list[list[float]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # tokens after an episode's first prompt
    prompt_ids: list[int] = field(default_factory=list)  # of the first episode


class Clock:
    """Wall and CPU time of one step."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self, timed: Timed) -> None:
        timed.wall_s.append(time.perf_counter() - self.wall)
        timed.cpu_s.append(time.process_time() - self.cpu)


async def execute_python_code(code: str, timeout: float = 300) -> str:
    """Run a Python program.

    Args:
        code: The Python program to run.
        timeout: The seconds after which the program is stopped.
    """
    from ajet.tools import execute_python_code as in_sandbox

    return (await in_sandbox(code, timeout)).content[0]["text"]


def tool_schema() -> dict[str, Any]:
    """The tool as AgentScope describes it to the model."""
    from agentscope.tool import Toolkit

    from ajet.tools import execute_python_code as in_sandbox

    toolkit = Toolkit()
    toolkit.register_tool_function(in_sandbox)
    return toolkit.get_json_schemas()[0]


def conversation(task: Task) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": task.main_query},
    ]


class ChatWorkflow(Workflow):
    """What TRL's tool loop does with one iteration."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        messages, tools = conversation(workflow_task.task), [tool_schema()]
        reply = await model_tuner.chat(messages, tools)
        if calls := reply.get("tool_calls"):
            messages.append(reply)
            for call in calls:
                content = await _result(call["function"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            reply = await model_tuner.chat(messages, tools)
        return WorkflowOutput(metadata={"final_answer": reply["content"]})


async def _result(function: dict[str, Any]) -> str:
    """An unknown tool or argument is the model's mistake: it is told."""
    try:
        tool = {"execute_python_code": execute_python_code}[function["name"]]
        return await tool(**json.loads(function["arguments"]))
    except (KeyError, TypeError) as error:
        return str({"error": str(error)})


def configured(args: argparse.Namespace, arm: str, seed: int) -> AjetConfig:
    """The demo's config at this benchmark's sizes."""
    overrides: dict[str, Any] = {
        "seed": seed,
        "model.path": args.model,
        "model.device": args.device,
        "data.train_batch_size": NUM_TASKS,
        "rollout.num_repeat": GROUP,
        "rollout.max_response_length_in_one_turn": args.max_tokens,
        "trainer_common.mini_batch_num": 1,
        "trainer_common.optim.lr": args.lr,
    }
    if arm == "chat":
        overrides["rollout.user_workflow"] = f"{Path(__file__).resolve()}->ChatWorkflow"
    lines = [f"ajet.{key}={value}" for key, value in overrides.items()]
    return load_config(DEMO, lines, backbone="debug", project_dir=ROOT)


def with_ajet(config: AjetConfig, batches: Sequence[Sequence[Task]]) -> Timed:
    """One step a batch, as in the debug backbone's loop."""
    loaded = assembly.load_policy_model(config)
    template = ChatTemplate(loaded.tokenizer)
    learner = assembly.make_learner(config, loaded)
    engine = assembly.make_engine(config, loaded, template)
    judge = make_judge(config)
    runner = assembly.make_runner(config, engine, template, judge=judge)
    timed = Timed()

    async def steps() -> None:
        for step, tasks in enumerate(batches, start=1):
            clock = Clock()
            groups = await runner.rollout(
                RolloutRequest(tasks, step=step, mode="train", num_repeat=GROUP)
            )
            timed.rollout_s.append(time.perf_counter() - clock.wall)
            learner.update(step, learner.make_batch(groups))
            engine.publish(step)
            clock.stop(timed)
            timed.rewards.append(_rewards(groups))
            timed.lengths += [_length(t) for group in groups for t in group.trajectories]
            first = groups[0].trajectories[0].turns[0]
            timed.prompt_ids = timed.prompt_ids or list(first.completion.prompt_ids)
        await engine.close()

    asyncio.run(steps())
    return timed


def _rewards(groups: Sequence[Group]) -> list[float]:
    rewards = [t.reward for group in groups for t in group.valid]
    if None in rewards or len(rewards) != NUM_TASKS * GROUP:
        raise SystemExit("an episode failed: the arms would not do the same work")
    return [reward for reward in rewards if reward is not None]


def _length(trajectory: Trajectory) -> int:
    first, last = trajectory.turns[0].completion, trajectory.turns[-1].completion
    return len(last.prompt_ids) + len(last.token_ids) - len(first.prompt_ids)


def with_trl(args: argparse.Namespace, batches: Sequence[Sequence[Task]], seed: int) -> Timed:
    """The same steps in TRL's trainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    # Weights in float32, computed in bfloat16 on a GPU: what TRL does by itself.
    on_cpu = args.device == "cpu"
    loaded, timed = load_model(args.model, device=args.device, dtype="float32"), Timed()
    tokenizer = _prepared(loaded.tokenizer)

    class StepClock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.clock = Clock()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.clock.stop(timed)

    step_clock = StepClock()

    def reward(
        completions: list[Any], answer: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float | None]:
        timed.rollout_s.append(time.perf_counter() - step_clock.clock.wall)
        timed.lengths += map(len, completion_ids)
        said = [completion[-1].get("content") or "" for completion in completions]
        timed.rewards.append(list(map(float, map(is_equal_answer, said, answer))))
        return [*timed.rewards[-1]]

    rows = [
        {"prompt": conversation(task), "answer": task.metadata["answer"].rsplit("#### ")[-1]}
        for tasks in batches
        for task in tasks
    ]
    tools = [execute_python_code]
    timed.prompt_ids = tokenizer.apply_chat_template(
        rows[0]["prompt"], tools=tools, add_generation_prompt=True, return_dict=False
    )
    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            output_dir=folder,
            use_cpu=on_cpu,
            bf16=not on_cpu,
            seed=seed,
            max_steps=len(batches),
            per_device_train_batch_size=args.trl_micro_batch,
            gradient_accumulation_steps=NUM_TASKS * GROUP // args.trl_micro_batch,
            num_generations=GROUP,
            max_completion_length=args.max_tokens,
            max_tool_calling_iterations=1,
            temperature=1.0,
            learning_rate=args.lr,
            lr_scheduler_type="constant",
            loss_type="dapo",
            shuffle_dataset=False,
            gradient_checkpointing=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=loaded.model,
            reward_funcs=[reward],
            args=options,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            tools=tools,
            callbacks=[step_clock],
        )
        with contextlib.redirect_stdout(None):
            trainer.train()
    return timed


def _prepared(tokenizer: Any) -> Any:
    """TRL recognises the template and takes its parser; then the schema is written into it."""
    from trl.chat_template_utils import add_response_schema

    tokenizer = add_response_schema(tokenizer)
    literal = json.dumps(json.dumps(tool_schema()))  # a string in Jinja, of JSON
    tokenizer.chat_template = tokenizer.chat_template.replace("tool | tojson", literal)
    return tokenizer


@dataclass(frozen=True)
class Result:
    """Of the timed steps: medians; of the first ones: rewards."""

    episodes_s: float
    episodes_cpu_s: float
    rollout_s: float
    update_s: float
    first_step_reward: float
    first_step_error: float  # standard error of the mean
    all_steps_reward: float
    tokens_per_episode: float  # after the first prompt, the tool's included
    steps_wall_s: list[float]


def summarize(rounds: Sequence[Timed]) -> Result:
    wall_s = [s for timed in rounds for s in timed.wall_s[1:]]
    cpu_s = [s for timed in rounds for s in timed.cpu_s[1:]]
    rollout_s = [s for timed in rounds for s in timed.rollout_s[1:]]
    first = [reward for timed in rounds for reward in timed.rewards[0]]
    every = [reward for timed in rounds for of_step in timed.rewards for reward in of_step]
    episodes = NUM_TASKS * GROUP
    return Result(
        episodes_s=episodes / statistics.median(wall_s),
        episodes_cpu_s=episodes / statistics.median(cpu_s),
        rollout_s=statistics.median(rollout_s),
        update_s=statistics.median(w - r for w, r in zip(wall_s, rollout_s, strict=True)),
        first_step_reward=statistics.fmean(first),
        first_step_error=statistics.stdev(first) / len(first) ** 0.5,
        all_steps_reward=statistics.fmean(every),
        tokens_per_episode=statistics.fmean(n for timed in rounds for n in timed.lengths),
        steps_wall_s=wall_s,
    )


def measure(args: argparse.Namespace) -> dict[str, Result]:
    """All arms, `--rounds` times."""
    tasks = make_reader(configured(args, "agentscope", 0)).get_training_tasks()
    batches = [tasks[NUM_TASKS * step :][:NUM_TASKS] for step in range(args.steps + 1)]
    arms: dict[str, list[Timed]] = {"trl": [], "agentscope": [], "chat": []}
    for seed in range(args.rounds):
        for arm, rounds in arms.items():
            if arm == "trl":
                rounds.append(with_trl(args, batches, seed))
            else:
                rounds.append(with_ajet(configured(args, arm, seed), batches))
            seconds = ", ".join(f"{s:.2f}" for s in rounds[-1].wall_s)
            rewards = ", ".join(f"{statistics.fmean(r):.2f}" for r in rounds[-1].rewards)
            print(f"{arm}, seed {seed}: seconds {seconds}; rewards {rewards}", flush=True)
    prompts = {tuple(timed.prompt_ids) for rounds in arms.values() for timed in rounds}
    if len(prompts) != 1:
        raise SystemExit("the arms do not send the same prompt")
    return {arm: summarize(rounds) for arm, rounds in arms.items()}


def verdict(results: dict[str, Result], arm: str) -> dict[str, Any]:
    """The arm against TRL."""
    ours, peer = results[arm], results["trl"]
    error = (ours.first_step_error**2 + peer.first_step_error**2) ** 0.5
    difference = ours.first_step_reward - peer.first_step_reward
    return {
        "ratio": ours.episodes_s / peer.episodes_s,
        "ratio_cpu": ours.episodes_cpu_s / peer.episodes_cpu_s,
        "limit": LIMIT,
        "reward_difference": difference,
        "reward_difference_error": error,
        "rewards_agree": abs(difference) <= 2 * error,
    }


def main() -> None:
    """Measure, print, write."""
    parser = options(__doc__, "grpo_step_vs_trl", rounds=3, lr=5e-4, model="embedded:math")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=4, help="timed steps of an arm in a round")
    parser.add_argument("--max-tokens", type=int, default=128, help="of one completion")
    parser.add_argument("--trl-micro-batch", type=int, default=8, help="episodes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    import trl

    results = measure(args)
    document = {
        "trl": trl.__version__,
        "torch": torch.__version__,
        "threads": 1,
        "tasks": NUM_TASKS,
        "group": GROUP,
        "max_tokens": args.max_tokens,
        "verdict": {arm: verdict(results, arm) for arm in ("agentscope", "chat")},
        "arms": {arm: asdict(result) for arm, result in results.items()},
    }
    print(json.dumps(document["verdict"], indent=2))
    write(args.out, document)


if __name__ == "__main__":
    main()
