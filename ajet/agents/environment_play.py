"""An agent plays an environment: observation -> reply -> action -> reward, until it is over.

    system    agent_system_template
    user      agent_template with the observation  <──────────────────┐
    model     "… <answer>Left</answer>"                               │
    action    "Left" ─► step ─► reward (credited to this reply), next observation
    or none   the environment is not stepped; one line says what is missing; format_penalty

`metadata["ended_by"]` says why it stopped: `terminated` or `truncated` by the environment,
`max_steps` (replies without an action count), or `token_limit` (a limit of the run's cut it, and so
is the episode's status). The episode's reward is the sum of its steps'.

`metadata["trace"]` has the actions with their rewards. Not covered: what each agent shows of
earlier steps (traj_env_agent.py, step_env_agent.py), and where calls run (environment/live.py).
"""

from __future__ import annotations

from math import fsum
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from ajet.agents.environment_setting import (
    Setting,
    check_settings,
    setting_of,
    split_of,
)
from ajet.agents.frame_recorder import album_for
from ajet.core.config import AjetConfig
from ajet.core.environment.live import LiveEnvironment
from ajet.core.environment.returns import StepResult
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import EpisodeTruncated
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow

LARGEST_SEED = 2**31
"""Environments differ in how large a seed they take."""
AGGREGATED = {
    "mean": fmean,
    "sum": sum,
    "last": lambda values: values[-1],
    "min": min,
    "max": max,
}
Messages = list[dict[str, Any]]


class Move(NamedTuple):
    """One reply and what came of it. `action` is None where it named none, `state_key` that of the
    state in which it was made."""

    observation: str
    action: str | None
    reward: float
    is_valid: bool
    state_key: str | None


class EnvironmentAgent(Workflow):
    """Derive from it and write `prompt`; `template` is what `agent_template: null` means."""

    template: ClassVar[str]

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        setting = setting_of(config, workflow_task, self.template)
        max_tokens = setting.custom.max_tokens_per_step
        album = album_for(config, workflow_task)
        async with setting.open() as environment:
            play = Play(setting, environment)
            await play.begin(workflow_task)
            while play.ended_by is None:
                if album is not None:
                    await album.add(environment, play.observation)
                try:
                    reply = await model_tuner.chat(self.prompt(play), max_tokens=max_tokens)
                except EpisodeTruncated:  # the status stays: no later call can succeed
                    play.ended_by = "token_limit"
                    break
                move = await play.answer(reply["content"])
                model_tuner.credit_turn(move.reward, move.state_key)
                self.heard(reply)
            if album is not None:
                await album.add(environment, play.observation)
        if album is not None:
            await album.save()
        return play.output()

    def prompt(self, play: Play) -> Messages:
        """What the model is asked with at this step."""
        raise NotImplementedError(f"{type(self).__name__} does not define prompt()")

    def heard(self, reply: dict[str, Any]) -> None:
        """The model has replied, and its action is done."""

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        check_settings(config, cls.template)


class Play:
    """One episode: what was seen, done and earned."""

    def __init__(self, setting: Setting, environment: LiveEnvironment) -> None:
        self.setting = setting
        self.environment = environment
        self.moves: list[Move] = []
        self.observation = ""
        self.ended_by: str | None = None
        self._words = setting.words(environment.instruction)
        self._state_key: str | None = None
        self._steps: list[StepResult] = []
        self._last_reply = ""

    async def begin(self, workflow_task: WorkflowTask) -> None:
        """The environment's first observation."""
        options = {"split": split_of(workflow_task)}
        shown = await self.environment.reset(workflow_task.seed % LARGEST_SEED, options)
        self.observation, self._state_key = shown

    def system(self) -> Messages:
        """The system message, unless it is empty."""
        text = self.setting.system_template.format(**self._words)
        return [{"role": "system", "content": text}] if text.strip() else []

    def user(self, history: str = "") -> dict[str, Any]:
        """The user's message of this step."""
        num_done = len(self.moves)
        text = self.setting.template.format(
            observation=self.observation,
            state=self.observation,
            turn_idx=num_done + 1,
            step_count=num_done,
            actions_left=self.setting.custom.max_steps - num_done,
            history=history,
            history_length=min(num_done, self.setting.custom.history_length),
            **self._words,
        )
        return {"role": "user", "content": text}

    async def answer(self, reply: str) -> Move:
        """Does what the reply says."""
        self._last_reply = reply
        action = self.setting.reader.action_in(reply)
        if action is None:
            move = self._without_action()
        else:
            move = self._done(action, await self.environment.step(action))
        self.moves.append(move)
        if self.ended_by is None and len(self.moves) >= self.setting.custom.max_steps:
            self.ended_by = "max_steps"
        return move

    def output(self) -> WorkflowOutput:
        """The episode's reward, and how it went. It is a success where the environment last said
        so; where it says nothing, if it ended it with something earned."""
        reward = fsum(move.reward for move in self.moves)
        series, modes = self._series()
        said = series.get("success")
        is_success = said[-1] > 0 if said else self.ended_by == "terminated" and reward > 0
        metadata = {
            "tag": self.setting.tag,
            "total_reward": reward,
            "ended_by": self.ended_by,
            "trace": [{"action": move.action, "reward": move.reward} for move in self.moves],
            "final_answer": self._last_reply,
        }
        metrics = _aggregated(series, modes) | {
            "success": float(is_success),
            "reward": reward,
            "num_steps": float(len(self.moves)),
            "invalid_actions": float(sum(not move.is_valid for move in self.moves)),
        }
        return WorkflowOutput(
            reward=reward,
            is_success=is_success,
            metadata=metadata,
            log_metrics={f"{self.setting.tag}/{name}": v for name, v in metrics.items()},
        )

    def _without_action(self) -> Move:
        """The state stays; the model is told what is missing, and shown it again."""
        seen, penalty = self.observation, self.setting.format_penalty
        missing = self.setting.reader.missing
        if not seen.startswith(missing):
            self.observation = f"{missing}\n{seen}"
        return Move(seen, None, penalty, False, self._state_key)

    def _done(self, action: str, step: StepResult) -> Move:
        is_valid, reward = bool(step.metrics.get("action_is_valid", True)), step.reward
        if not is_valid:
            reward += self.setting.format_penalty
        move = Move(self.observation, action, reward, is_valid, self._state_key)
        self.observation, self._state_key = step.observation, step.state_key
        self._steps.append(step)
        if step.terminated:
            self.ended_by = "terminated"
        elif step.truncated:
            self.ended_by = "truncated"
        return move

    def _series(self) -> tuple[dict[str, list[float]], dict[str, str]]:
        """The numbers of each metric, step by step, and how they become one."""
        series: dict[str, list[float]] = {}
        modes = {"success": "last"}
        for step in self._steps:
            for name, value in step.metrics.items():
                series.setdefault(name, []).append(value)
            if step.metrics_agg_mode:
                modes |= step.metrics_agg_mode
        return series, modes


def _aggregated(series: dict[str, list[float]], modes: dict[str, str]) -> dict[str, float]:
    """Each metric of the steps as one of the episode."""
    return {
        name: float(AGGREGATED[modes.get(name, "mean")](values)) for name, values in series.items()
    }
