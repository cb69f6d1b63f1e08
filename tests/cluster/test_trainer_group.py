"""The ranks behind Ray: what the driver hears of them while they learn."""

import sys

import pytest
from loguru import logger

from ajet.core.config import load_config
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.engines.scripted import RandomEngine
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray

PLAYED = """
from ajet import Workflow, WorkflowOutput

class Played(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        return WorkflowOutput(reward=float(workflow_task.rollout_index % 2), is_success=True)
"""


async def groups_of(config, loaded):
    from ajet import assembly

    engine, template = RandomEngine(len(loaded.tokenizer)), assembly.make_template(loaded)
    runner = assembly.make_runner(config, engine, template, judge=None)
    tasks = [Task(f"t{n}", f"What is {n} + {n}?") for n in range(8)]
    return await runner.rollout(RolloutRequest(tasks, step=1, mode="train", num_repeat=4))


async def test_the_share_of_an_update_that_is_done_is_told_meanwhile(
    ray_session, tmp_path, monkeypatch
):
    from ajet import assembly
    from ajet.cluster import trainer_group

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(trainer_group, "PROGRESS_INTERVAL_S", 0.01)
    ToyRun(tmp_path)
    (tmp_path / "played.py").write_text(PLAYED)
    overrides = (
        "rollout.user_workflow=played.py->Played",
        "trainer_common.max_tokens_per_micro_batch=64",
        "trainer_common.torch_threads=null",  # then each rank has the threads that it is given
    )
    config = load_config("toy.yaml", [f"ajet.{each}" for each in overrides], backbone="verl")
    groups = await groups_of(config, assembly.load_policy_model(config))
    ranks = trainer_group.TrainerGroup(config, [{}], tmp_path / "weights", threads=[2])
    told, logged = [], []
    sink = logger.add(logged.append, format="{message}")
    ranks.on_progress = told.append
    try:
        await ranks.start()
        _, metrics = await ranks.train(1, groups)
        first = list(told)
        await ranks.train(2, groups)
    finally:
        ranks.close()
        logger.remove(sink)
    assert "CPU threads of the trainer ranks: 2\n" in logged
    assert metrics["update/grad_norm"] > 0
    for shares in (first, told[len(first) :]):  # the second update begins at 0 again
        assert shares == sorted(shares) and any(0 < share < 1 for share in shares)
