"""Which workflow a task runs."""

import pytest

from ajet import Task, Workflow, register
from ajet.core.errors import ConfigError
from ajet.core.user_code.plugins import plugins
from ajet.core.workflow import registry
from ajet.core.workflow.registry import WorkflowFactory, registered_workflow


class Default(Workflow):
    pass


class Math(Workflow):
    pass


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_WORKFLOWS", {})


def task(**row):
    return Task("t0", "q", metadata=row)


def test_the_column_picks_the_registered_class_and_each_episode_gets_its_own_object():
    register("math_agent")(Math)
    choose = WorkflowFactory(Default)
    assert type(choose(task(agent_name="math_agent"))) is Math
    assert type(choose(task())) is Default
    assert choose(task()) is not choose(task())


def test_ajets_own_agents_are_there_by_name_and_their_names_are_taken():
    from ajet.agents.tool_agent import ToolAgent

    assert type(WorkflowFactory(Default)(task(agent_name="tool_agent"))) is ToolAgent
    harnesses = [f"harness:{name}" for name in plugins("ajet.harnesses")]
    assert "harness:codex" in harnesses
    for name in (*plugins("ajet.workflows"), *harnesses):
        assert issubclass(registered_workflow(name), Workflow)
        with pytest.raises(ConfigError, match=f"'{name}' is the name of an installed agent"):
            register(name)(Math)


def test_an_unknown_name_says_what_was_meant():
    register("math_agent")(Math)
    with pytest.raises(ConfigError, match=r"agent_name 'math_agnt'; did you mean 'math_agent'\?"):
        WorkflowFactory(Default)(task(agent_name="math_agnt"))
    registry._WORKFLOWS.clear()
    known = r"'solver'; there are client_owned, given_chat, harbor_agent, .*, react_agent"
    with pytest.raises(ConfigError, match=known):
        WorkflowFactory(Default)(task(agent_name="solver"))


def test_one_name_for_two_classes_is_an_error_and_reloading_one_is_not():
    register("math_agent")(Math)
    register("math_agent")(Math)
    with pytest.raises(ConfigError, match="registered twice"):
        register("math_agent")(Default)
