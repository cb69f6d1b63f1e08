"""The two agents of environments with the rewards of other episodes: a control that must not learn.

    rollout.agent_modules: [benchmarks/shuffled_agents.py]
    custom_envs.FrozenLake4.env_manager_cls: shuffled_step_env_agent

A training episode gets the reward of one that ended earlier, drawn at random before its own first
step: nothing of an episode can be in what it is given. (Drawn at its end it can: where success ends
a game sooner, the first to end are successes, and draw from one another.) Success stays true. The
last step is credited with the difference, so credit for single steps is of no more use; with a
step_reward_gamma below 1 a step's return still knows how far the end was. Used by
learning_games.py.
"""

import random
from dataclasses import replace
from typing import ClassVar

from ajet import ModelTuner, WorkflowOutput, WorkflowTask, register
from ajet.agents.environment_agent import EnvironmentAgent
from ajet.agents.step_env_agent import StepEnvAgent
from ajet.agents.traj_env_agent import TrajEnvAgent

NUM_KEPT = 1024


class Shuffled(EnvironmentAgent):
    """Before an agent's class in the order of resolution."""

    rng: ClassVar[random.Random] = random.Random("shuffled")
    seen: ClassVar[list[float]] = []

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        drawn = self.rng.choice(self.seen[-NUM_KEPT:] or [0.0])
        output = await super().execute(workflow_task, model_tuner)
        assert isinstance(output.reward, float)
        self.seen.append(output.reward)
        return replace(output, reward=drawn) if workflow_task.mode == "train" else output


@register("shuffled_step_env_agent")
class ShuffledStepEnvAgent(Shuffled, StepEnvAgent):
    """step_env_agent."""


@register("shuffled_traj_env_agent")
class ShuffledTrajEnvAgent(Shuffled, TrajEnvAgent):
    """traj_env_agent."""
