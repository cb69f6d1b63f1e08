"""Tasks of environments: one for each group, shared among tags."""

import pytest

from ajet.core.errors import ConfigError
from ajet.core.task.reader import make_reader
from tests.corridor import CORRIDOR, corridor_config

TWO = {name: {"env_type": CORRIDOR} for name in ("A", "B")}


def ids(tasks):
    return [task.task_id for task in tasks]


def reader_of(tmp_path, batch=4, **environment):
    data = {"train_batch_size": batch}
    environment = {"custom_envs": TWO, **environment}
    return make_reader(corridor_config(tmp_path, environment=environment, ajet={"data": data}))


def test_each_group_of_a_step_is_a_task_and_tags_take_turns(tmp_path):
    tasks = reader_of(tmp_path, 5).get_training_tasks()
    assert ids(tasks) == ["A-0000", "B-0000", "A-0001", "B-0001", "A-0002"]


def test_a_task_names_its_tag_its_agent_and_its_environment(tmp_path):
    reader = make_reader(corridor_config(tmp_path))
    task = reader.get_training_tasks()[0]
    assert task.metadata == {"tag": "Walk", "split": "train", "agent_name": "traj_env_agent"}
    assert reader.get_validation_tasks()[0].metadata["split"] == "validation"
    assert (task.main_query, task.env_type) == ("", CORRIDOR)


def test_groups_are_divided_as_the_partition_says(tmp_path):
    manager = {"tags": ["B", "A"], "num_groups_partition": [1, 3]}
    tasks = reader_of(tmp_path, 4, train_env_manager=manager).get_training_tasks()
    assert sorted(ids(tasks)) == ["A-0000", "A-0001", "A-0002", "B-0000"]


def test_validation_has_num_env_groups_tasks_and_may_have_none(tmp_path):
    manager = {"num_env_groups": 3, "tags": ["B"]}
    tasks = reader_of(tmp_path, val_env_manager=manager).get_validation_tasks()
    assert ids(tasks) == ["B-0000", "B-0001", "B-0002"]
    none = reader_of(tmp_path, val_env_manager={"num_env_groups": 0})
    assert none.get_validation_tasks() == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"custom_envs": {}}, "custom_envs is empty"),
        (
            {"train_env_manager": {"num_groups_partition": [1, 2]}},
            "adds up to 3, ajet.data.train_batch_size is 4",
        ),
        ({"train_env_manager": {"num_groups_partition": [0, 4]}}, "no group is left for 'A'"),
        ({"train_env_manager": {"num_groups_partition": [5, -1]}}, "no group is left for 'B'"),
        ({"train_env_manager": {"tags": ["A", "A"]}}, "tags names an environment twice"),
    ],
)
def test_tasks_that_cannot_be_shared_are_one_line(tmp_path, environment, message):
    with pytest.raises(ConfigError, match=message):
        reader_of(tmp_path, **environment).get_training_tasks()
