"""What the rollout itself costs: milliseconds an episode, and whether memory stays flat.

    python benchmarks/rollout_scheduling.py [--episodes 10000] [--out FILE.json]

The model is the scripted engine and the workflow makes one `generate` call, so what is measured is
scheduling, recording, seeding, judging and grouping. Episodes run in rollouts of 1,000 (125 tasks
of 8), 64 at a time. Limits: 1 ms an episode; memory after the last rollout within 8 MB of that
after the second. For comparison the same episodes with one `chat` call, which renders the chat
template and tokenizes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

from measuring import scripted_runner
from report import memory, options, write

from ajet import BaseJudge, ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.request import RolloutRequest
from ajet.engines.scripted import ScriptedEngine

A_ROLLOUT, MEMBERS = 1000, 8
LIMIT_MS, LIMIT_GROWTH_BYTES = 1.0, 8 << 20
PROMPT_IDS = list(range(10, 90))
QUESTION = [{"role": "user", "content": "What is 2+3?"}]


class OneGenerate(Workflow):
    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        completion = await model_tuner.generate(PROMPT_IDS, max_tokens=32)
        return WorkflowOutput(metadata={"final_answer": len(completion.token_ids)})


class OneChat(Workflow):
    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        reply = await model_tuner.chat(QUESTION)
        return WorkflowOutput(metadata={"final_answer": reply["content"]})


class Right(BaseJudge):
    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        return 1.0, True


def runner(workflow: Callable[[], Workflow], template: ChatTemplate) -> GroupRunner:
    script = [*range(40, 72), template.stop_token_ids[0]]
    engine = ScriptedEngine(lambda prompt_ids, sampling, request_id: script)
    return scripted_runner(workflow, template, engine, judge=Right())


async def measure(run: GroupRunner, num_episodes: int) -> dict[str, float]:
    """Milliseconds an episode (the best and the mean rollout) and memory after each rollout."""
    tasks = [Task(f"t{i}", "What is 2+3?") for i in range(A_ROLLOUT // MEMBERS)]
    seconds, resident = [], []
    for step in range(num_episodes // A_ROLLOUT):
        started = time.perf_counter()
        groups = await run.rollout(
            RolloutRequest(tasks, step=step, mode="train", num_repeat=MEMBERS)
        )
        seconds.append(time.perf_counter() - started)
        assert sum(len(group.valid) for group in groups) == A_ROLLOUT
        del groups
        gc.collect()
        resident.append(memory("VmRSS"))
    per_episode = [1000 * s / A_ROLLOUT for s in seconds]
    return {
        "episodes": len(seconds) * A_ROLLOUT,
        "ms_an_episode_mean": round(sum(per_episode) / len(per_episode), 4),
        "ms_an_episode_best": round(min(per_episode), 4),
        "resident_growth_bytes": resident[-1] - resident[min(1, len(resident) - 1)],
    }


def main() -> None:
    parser = options(__doc__, "rollout_scheduling", episodes=10_000)
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    args = parser.parse_args()
    from transformers import AutoTokenizer

    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    scheduling = asyncio.run(measure(runner(OneGenerate, template), args.episodes))
    with_chat = asyncio.run(measure(runner(OneChat, template), args.episodes))
    result = {
        "scheduling": scheduling,
        "with_chat_template": with_chat,
        "limit_ms_an_episode": LIMIT_MS,
        "limit_resident_growth_bytes": LIMIT_GROWTH_BYTES,
        "passed": scheduling["ms_an_episode_mean"] <= LIMIT_MS
        and scheduling["resident_growth_bytes"] <= LIMIT_GROWTH_BYTES,
    }
    write(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
