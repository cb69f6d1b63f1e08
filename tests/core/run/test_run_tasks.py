"""Which held-out tasks are told of as training tasks, by hand."""

from pathlib import Path

import pytest

from ajet.core.config import load_config
from ajet.core.run.run_tasks import overlap_line, tasks_in_both
from ajet.core.task.reader import make_reader, tasks_from_rows
from ajet.core.task.task import Task

TUTORIAL = Path(__file__).parents[3] / "tutorial"

SUMS = [{"question": f"{i} + 1?", "answer": str(i + 1)} for i in range(4)]


def both(training: list[dict], held_out: list[dict]) -> list[str]:
    """The ids of the held-out rows that are found among the training rows."""
    train = tasks_from_rows(training, split="train", source="train.jsonl")
    test = tasks_from_rows(held_out, split="validation", source="test.jsonl")
    return [task.task_id for task in tasks_in_both(train, test)]


def test_the_same_rows_are_found_whatever_their_ids_and_order():
    assert both(SUMS, SUMS[:2]) == ["validation-0", "validation-1"]
    named = [{**row, "task_id": f"mine-{i}", "split": "test"} for i, row in enumerate(SUMS)]
    assert both(SUMS[::-1], named[2:]) == ["mine-2", "mine-3"]


def test_rows_of_verl_are_found_though_they_say_where_they_came_from():
    def row(split, index):
        prompt = [{"role": "user", "content": "2 + 3?"}]
        source = {"split": split, "index": index, "answer": "5"}
        return {"prompt": prompt, "reward_model": {"ground_truth": "5"}, "extra_info": source}

    assert both([row("train", 7)], [row("test", 0)]) == ["validation-0"]


@pytest.mark.parametrize("field", ["seed", "id", "index", "answer"])
def test_one_question_with_another_row_is_another_task(field):
    """A game's number is often a field beside the same question."""
    training = [{"question": "Play.", field: i} for i in range(3)]
    held_out = [{"question": "Play.", field: i} for i in range(3, 6)]
    assert both(training, held_out) == []
    assert both(training, [*held_out, training[1]]) == ["validation-3"]


def test_ids_tell_tasks_apart_where_nothing_else_does():
    """Whether a game has a number of its own, or draws it from the episode's seed, is unknown."""
    play = {"question": "Play."}
    assert both([play] * 3, [play] * 2) == []

    def numbered(*ids):
        return [{**play, "task_id": f"game-{i}"} for i in ids]

    assert both(numbered(0, 1, 2), numbered(3, 4)) == []
    assert both(numbered(0, 1, 2), numbered(2, 3)) == ["game-2"]


def test_tasks_of_an_environment_are_the_same_by_their_ids():
    def frozen_lake(split):  # as the reader `environment` makes them
        row = {"tag": "lake", "split": split}
        return [Task(f"lake-{i}", "", env_type="frozen_lake", metadata=row) for i in range(2)]

    assert tasks_in_both(frozen_lake("train"), frozen_lake("validation")) == []
    of_a_service = [Task(name, "", env_type="appworld") for name in ("82e2_1", "82e2_2", "9_1")]
    assert tasks_in_both(of_a_service[:2], of_a_service[1:]) == [of_a_service[1]]


def test_objects_of_a_reader_are_the_same_only_where_they_say_so():
    def task(name):
        return Task(name, "Play.", metadata={"level": object()})

    assert tasks_in_both([task("a")], [task("b")]) == []


@pytest.mark.parametrize(
    ("example", "number"),
    [
        ("math_agent/demo.yaml", 0),
        ("frozen_lake/demo.yaml", 0),
        ("repairs/repairs.yaml", 0),
        ("many_adapters/users.yaml", 8),  # preferences are measured, not answers
    ],
)
def test_the_examples_hold_out_what_they_do_not_train(example, number):
    config = load_config(TUTORIAL / f"example_{example}", [], backbone="debug")
    reader = make_reader(config)
    found = tasks_in_both(reader.get_training_tasks(), reader.get_validation_tasks())
    assert len(found) == number


def test_the_line_says_how_many_and_which():
    tasks = [Task(f"t{i}", f"{i}?") for i in range(3)]
    assert overlap_line(tasks[:1], tasks[1:]) is None
    one = overlap_line(tasks[1:2], tasks)
    assert one is not None and one.startswith(
        "data: 1 of 3 validation tasks is also a training task (first: t1): success on what is "
    )
    two = overlap_line(tasks[1:], tasks)
    assert two is not None and two.startswith(
        "data: 2 of 3 validation tasks are also training tasks (first: t1): "
    )
