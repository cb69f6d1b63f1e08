"""The size of a run by hand, and the same bounded sample of held-out tasks each time."""

import pytest

from ajet.core.config import AjetConfig, load_config
from ajet.core.run.batch_plan import BatchPlan, validation_sample
from ajet.core.task.task import Task

ALGORITHM = "ajet.trainer_common.algorithm"


@pytest.mark.parametrize(
    ("overrides", "begun", "named"),
    [
        ([], 4 * 2, None),
        (["ajet.rollout.group_size_redundancy=1"], 4 * 3, "rollout.group_size_redundancy"),
        (["ajet.rollout.enable_oversample=true"], 6 * 2, "rollout.enable_oversample"),
        ([f"{ALGORITHM}.dynamic_sampling.enable=true"], 4 * (4 * 2), "algorithm.dynamic_sampling"),
        ([f"{ALGORITHM}.adv_estimator=remax"], 4 * 2 + 4, "remax"),
    ],
)
def test_the_plan_says_how_many_episodes_begin_at_most(tmp_path, overrides, begun, named):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")
    sizes = ["ajet.data.train_batch_size=4", "ajet.rollout.num_repeat=2"]
    plan = BatchPlan(load_config(path, [*sizes, *overrides]), 100, 0)
    assert (plan.episodes_per_step, plan.max_episodes_per_step) == (8, begun)
    rows = [row for row in plan.rows() if row[0] == "episodes that begin"]
    assert rows == ([("episodes that begin", f"<= {begun}", f"a step: {named}")] if named else [])


def ids_of(num_tasks, limit="auto", seed=0):
    config = AjetConfig.model_validate({"ajet": {"seed": seed, "data": {"val_max_tasks": limit}}})
    tasks = [Task(f"t{number:04d}", "q") for number in range(num_tasks)]
    return [task.task_id for task in validation_sample(tasks, config)]


def test_auto_draws_a_hundred_tasks_by_the_seed_in_their_order():
    drawn = ids_of(1319)
    assert len(drawn) == len(set(drawn)) == 100
    assert drawn == sorted(drawn) == ids_of(1319)
    assert drawn != ids_of(1319, seed=1)
    assert drawn[:5] != ["t0000", "t0001", "t0002", "t0003", "t0004"]


def test_a_hundred_tasks_or_fewer_are_all_taken():
    assert len(ids_of(100)) == 100 and ids_of(3) == ["t0000", "t0001", "t0002"]


def test_a_number_takes_the_first_tasks_and_null_takes_all():
    assert ids_of(1319, limit=2) == ["t0000", "t0001"]
    assert len(ids_of(1319, limit=None)) == 1319
