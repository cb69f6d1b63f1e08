"""A run is measured on the same bounded sample each time."""

from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import validation_sample
from ajet.core.task.task import Task


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
