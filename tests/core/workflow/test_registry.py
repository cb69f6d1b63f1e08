"""Which workflow a task runs."""

import pytest

from ajet import Task, Workflow, register
from ajet.core.errors import ConfigError
from ajet.core.workflow import registry
from ajet.core.workflow.registry import WorkflowChooser


class Default(Workflow):
    pass


class Math(Workflow):
    pass


@pytest.fixture(autouse=True)
def empty_registry():
    before = dict(registry._WORKFLOWS)
    registry._WORKFLOWS.clear()
    yield
    registry._WORKFLOWS.clear()
    registry._WORKFLOWS.update(before)


def task(**row):
    return Task("t0", "q", metadata=row)


def test_the_column_picks_the_registered_class_and_each_episode_gets_its_own_object():
    register("math_agent")(Math)
    choose = WorkflowChooser(Default)
    assert type(choose(task(agent_name="math_agent"))) is Math
    assert type(choose(task())) is Default
    assert choose(task()) is not choose(task())


def test_with_nothing_registered_the_column_is_somebody_elses():
    assert type(WorkflowChooser(Default)(task(agent_name="tool_agent"))) is Default


def test_an_unknown_name_says_what_was_meant():
    register("math_agent")(Math)
    with pytest.raises(ConfigError, match=r"agent_name 'math_agnt'; did you mean 'math_agent'\?"):
        WorkflowChooser(Default)(task(agent_name="math_agnt"))
    with pytest.raises(ConfigError, match="has no agent_name and"):
        WorkflowChooser(None)(task())


def test_one_name_for_two_classes_is_an_error_and_reloading_one_is_not():
    register("math_agent")(Math)
    register("math_agent")(Math)
    with pytest.raises(ConfigError, match="registered twice"):
        register("math_agent")(Default)
