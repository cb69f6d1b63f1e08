"""What was opened for a rollout is closed where its runner cannot be made."""

import asyncio
from types import SimpleNamespace

import pytest

from ajet import assembly
from ajet.agents.single_turn import SingleTurnAgent
from ajet.backbones.evaluating import EvaluationPlan, LoadedSubject, measure
from ajet.core.config import AjetConfig
from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.task.task import Task
from ajet.core.workflow.registry import WorkflowFactory
from ajet.plan.cpu_plan import try_rollout
from ajet.serve.online.learner import play_held_out

CONFIG = AjetConfig.model_validate(
    {"ajet": {"model": {"path": "embedded:math"}, "task_judge": {"judge_protocol": "math"}}}
)
TASKS = [Task("t", "1 + 1")]


class Unreadable:
    """A chat template in which no tool parser finds its family."""

    @property
    def text(self):
        raise ModelError("unreadable", code=Code.NO_CHAT_TEMPLATE)


class Engine:
    is_closed = False

    async def close(self):
        self.is_closed = True


class Gateway:
    is_closed = False

    def close(self):
        self.is_closed = True


def evaluated(engine):
    plan = EvaluationPlan(CONFIG, "validation", TASKS, 1, WorkflowFactory(SingleTurnAgent), None)
    asyncio.run(measure([plan], LoadedSubject("m", engine, Unreadable()), lambda: None))


def tried(engine):
    try_rollout(CONFIG, TASKS)


def held_out(engine):
    parts = SimpleNamespace(
        config=CONFIG, template=Unreadable(), make_engine=lambda version: engine
    )
    asyncio.run(play_held_out(parts, dict(enumerate(TASKS)), None, 0))


@pytest.mark.parametrize("rollout", [evaluated, tried, held_out])
def test_the_engine_and_the_gateway_are_closed(rollout, monkeypatch):
    engine, gateway = Engine(), Gateway()
    monkeypatch.setattr(assembly, "make_gateway", lambda config: gateway)
    monkeypatch.setattr(
        "ajet.plan.cpu_plan.load_subject",
        lambda config, subject: LoadedSubject("m", engine, Unreadable()),
    )
    with pytest.raises(ModelError, match="unreadable"):
        rollout(engine)
    assert engine.is_closed and gateway.is_closed
