"""The two agents of environments with the rewards of other episodes: a control that must not learn.

    rollout.agent_modules: [benchmarks/shuffled_agents.py]
    custom_envs.FrozenLake4.env_manager_cls: shuffled_step_env_agent

A training episode gets the reward of one that ended earlier, drawn at random; success stays true.
Its last step is credited with the difference, so credit for single steps is of no more use. Used by
learning_games.py.
"""

import random
from dataclasses import replace
from typing import ClassVar

from ajet import ModelTuner, WorkflowOutput, WorkflowTask, register
from ajet.core.workflow.agents.environment_play import EnvironmentAgent
from ajet.core.workflow.agents.step_env_agent import StepEnvAgent
from ajet.core.workflow.agents.traj_env_agent import TrajEnvAgent

NUM_KEPT = 1024


class Shuffled(EnvironmentAgent):
    """Before an agent's class in the order of resolution."""

    rng: ClassVar[random.Random] = random.Random("shuffled")
    seen: ClassVar[list[float]] = []

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        output = await super().execute(workflow_task, model_tuner)
        if workflow_task.mode != "train":
            return output
        assert isinstance(output.reward, float)
        self.seen.append(output.reward)
        return replace(output, reward=self.rng.choice(self.seen[-NUM_KEPT:]))


@register("shuffled_step_env_agent")
class ShuffledStepEnvAgent(Shuffled, StepEnvAgent):
    """step_env_agent."""


@register("shuffled_traj_env_agent")
class ShuffledTrajEnvAgent(Shuffled, TrajEnvAgent):
    """traj_env_agent."""
