"""An order of tasks of the user's own, by file.py->function."""

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.run.run_tasks import make_cursor
from ajet.core.task.results import GroupResult
from ajet.core.task.task import Task

OWN = """
def easy_first(tasks, epoch, seed):
    order = sorted(range(len(tasks)), key=lambda i: tasks[i].metadata["level"])
    return order if epoch == 0 else order[::-1]

def only_first(tasks, epoch, seed):
    return [seed] * len(tasks)

def short(tasks, epoch, seed):
    return [0]

def beyond(tasks, epoch, seed):
    return range(1, len(tasks) + 1)

def nothing(tasks, epoch, seed):
    return None

def raises(tasks, epoch, seed):
    return tasks[0].level

def least_played(tasks, results, size, seed):
    return sorted(range(len(tasks)), key=lambda i: (results[i].episodes, i))[:size]

def drawn(tasks, results, size, seed):
    import random
    return random.Random(seed).sample(range(len(tasks)), size)

def one_too_many(tasks, results, size, seed):
    return [0] * (size + 1)
"""
TASKS = [Task(str(level), "q", metadata={"level": level}) for level in (3, 1, 2)]


@pytest.fixture
def cursor_of(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "run.yaml").write_text(
        "ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}, data: {train_batch_size: 2}}"
    )

    def made(name, *overrides):
        config = load_config(
            tmp_path / "run.yaml", [f"ajet.data.sampler=own.py->{name}", *overrides]
        )
        return make_cursor(config, TASKS)

    return made


def test_tasks_are_taken_in_the_functions_order_of_each_epoch(cursor_of):
    cursor = cursor_of("easy_first")
    assert [cursor.next_batch() for _ in range(3)] == [[1, 2], [0, 0], [2, 1]]


def test_a_task_may_be_taken_twice_and_the_seed_is_the_runs(cursor_of):
    assert cursor_of("only_first", "ajet.seed=2").next_batch() == [2, 2]


def test_a_resumed_cursor_goes_on_in_that_order(cursor_of):
    cursor, resumed = cursor_of("easy_first"), cursor_of("easy_first")
    cursor.next_batch()
    resumed.load_state_dict(cursor.state_dict())
    assert [resumed.next_batch() for _ in range(3)] == [cursor.next_batch() for _ in range(3)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("easy", "no function 'easy'"),
        ("short", "epoch 0: it returned 1 indices from 0 to 0: give 3 from 0 to 2"),
        ("beyond", "epoch 0: it returned 3 indices from 1 to 3: give 3 from 0 to 2"),
        ("nothing", "give a list of 3 indices of tasks"),
        ("one_too_many", "after 0 tasks: it returned 3 indices from 0 to 0: give 2 from 0 to 2"),
        ("raises", "own.py:19: AttributeError: "),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(cursor_of, name, message):
    with pytest.raises(ConfigError) as error:
        cursor_of(name).next_batch()
    text = str(error.value)
    assert text.startswith("ajet.data.sampler: ") and message in text and "\n" not in text


def test_a_function_with_results_chooses_each_batch_by_how_groups_ended(cursor_of):
    cursor = cursor_of("least_played")
    assert cursor.next_batch() == [0, 1]
    cursor.observe([GroupResult(0, 8, 3, True), GroupResult(1, 4, 0, False)])
    assert cursor.next_batch() == [2, 1]
    assert cursor.next_batch(3) == [2, 1, 0]


def test_a_users_sampler_gets_a_seed_per_batch_that_a_resume_repeats(cursor_of):
    cursor, resumed = cursor_of("drawn"), cursor_of("drawn")
    first = [cursor.next_batch() for _ in range(4)]
    assert len({tuple(batch) for batch in first}) > 1
    resumed.load_state_dict(cursor.state_dict())
    assert [resumed.next_batch() for _ in range(4)] == [cursor.next_batch() for _ in range(4)]
