"""Workflows in AgentJet's form: pydantic's `Field`, or a pydantic model."""

import pytest

from ajet.core.config import load_config
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.registry import WorkflowFactory
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
HEAD = """
from typing import List
from pydantic import BaseModel, Field
from ajet import AjetTuner, Workflow, WorkflowOutput, WorkflowTask

"""
FIELDS = """
class ExampleAgentScopeWorkflow(Workflow):
    name: str = Field(default="appworld", description="Name of the workflow.")
    trainer: str = Field(default="ajet-trinity")
    trainable_targets: List[str] | None = Field(default=["werewolf"])
    seen: list = Field(default_factory=list)

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        self.seen.append(workflow_task.episode_uuid)
        self.agent = tuner.as_raw_openai_sdk_client(agent_name="werewolf")
        await self.agent.chat.completions.create([{"role": "user", "content": self.trainer}])
        found = {"name": self.name, "trainer": self.trainer, "seen": self.seen}
        return WorkflowOutput(reward=1.0, metadata=found)
"""
MODEL = FIELDS.replace(
    "(Workflow):", '(Workflow, BaseModel):\n    model_config = {"extra": "allow"}'
)


@pytest.fixture
def workflow_of(tmp_path):
    def workflow_of(text):
        (tmp_path / "flow.py").write_text(HEAD + text)
        (tmp_path / "run.yaml").write_text(
            "ajet: {model: {path: m}, rollout: {user_workflow: flow.py->ExampleAgentScopeWorkflow}}"
        )
        return WorkflowFactory.from_config(load_config(tmp_path / "run.yaml")).default

    return workflow_of


@pytest.mark.parametrize("text", [FIELDS, MODEL], ids=["field", "model"])
async def test_a_field_is_its_default_in_each_episode_anew(workflow_of, text):
    kind = workflow_of(text)
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "ok")
    runner = episode_runner(kind, endpoint, TOKENIZER)
    tasks = [Task("t", "q")]
    [group] = await runner.rollout(RolloutRequest(tasks, step=1, mode="train", num_repeat=2))
    for trajectory in group.trajectories:
        assert trajectory.status is EpisodeStatus.OK, trajectory.error
        name = trajectory.episode_id
        found = {"name": "appworld", "trainer": "ajet-trinity", "seen": [name]}
        assert trajectory.output.metadata == found
        assert [turn.trainable for turn in trajectory.turns] == [True]
