"""With the in-process engine nothing that is computed depends on timing."""

import asyncio
import random

import torch

from ajet import BaseJudge, Task, Workflow, WorkflowOutput
from ajet.core.rollout.request import RolloutRequest
from ajet.engines.in_process import InProcessEngine
from tests.core.rollout.tiny_model import tiny_model
from tests.fakes import chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = [Task(f"t{i}", f"question {i}") for i in range(4)]


class Zero(BaseJudge):
    async def compute_reward(self, workflow_task, workflow_output):
        await asyncio.sleep(random.random() / 200)
        return 0.0, False


class Jittery(Workflow):
    """Calls one to three times, with tools that take a random while; one member fails."""

    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        for _ in range(1 + workflow_task.rollout_index % 3):
            await asyncio.sleep(random.random() / 200)
            messages.append(await model_tuner.chat(messages))
            messages.append({"role": "user", "content": "go on"})
        if workflow_task.task_batch_index == 1 and "-r" not in workflow_task.episode_id:
            raise ConnectionError("flaky")
        return WorkflowOutput()


async def sampled(model):
    """Every completion by episode, and the prompt tokens that the engine computed itself."""
    stop = TOKENIZER.eos_token_id
    engine = InProcessEngine(model, stop_token_ids=(stop,), max_num_seqs=3)
    runner = episode_runner(
        Jittery,
        engine,
        TOKENIZER,
        Zero(),
        max_env_worker=5,
        max_response_length_in_one_turn=12,
        failure_policy="retry",
    )
    groups = await runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=3))
    stats = engine.stats
    await engine.close()
    turns = {t.episode_id: [x.completion for x in t.turns] for g in groups for t in g.trajectories}
    return turns, (stats.prompt_tokens, stats.cached_prompt_tokens, stats.sampled_tokens)


async def test_two_rollouts_with_jittering_tools_are_bit_identical():
    torch.set_num_threads(1)
    model = tiny_model()
    first, again = await sampled(model), await sampled(model)
    assert first == again
    turns, _ = first
    assert sorted(map(len, turns.values())) == [1] * 4 + [2] * 4 + [3] * 4
    assert sum(name.endswith("-r1") for name in turns) == 3
