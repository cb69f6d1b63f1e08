"""An agent plays an environment: observation -> reply -> action -> reward, until it is over.

model     "… <answer>Left</answer>"
action    "Left" ─► step ─► reward (credited to this reply), next observation
or none   the environment is not stepped; one line says what is missing; format_penalty
"""

from __future__ import annotations

from math import fsum
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from ajet.agents.environment_settings import (
    EnvironmentSettings,
    check_settings,
    settings_for,
    split_of,
)
from ajet.agents.frame_recorder import frame_recorder_for
from ajet.core.config import AjetConfig
from ajet.core.environment.live import LiveEnvironment
from ajet.core.environment.observations import content_of
from ajet.core.environment.returns import StepResult
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import EpisodeTruncated
from ajet.core.user_code.activity import in_call
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow

LARGEST_SEED = 2**31
"""Seeds are taken modulo this number, because environments accept seeds of different sizes."""
AGGREGATIONS = {
    "mean": fmean,
    "sum": sum,
    "last": lambda values: values[-1],
    "min": min,
    "max": max,
}
Messages = list[dict[str, Any]]


class Transition(NamedTuple):
    """One reply and its result. `action` is None if the reply named no action; `state_key` is the
    key of the state in which the reply was made."""

    observation: str
    action: str | None
    reward: float
    is_valid: bool
    state_key: str | None


class EnvironmentAgent(Workflow):
    """Plays one environment for an episode. Subclasses define `prompt`; `template` is used where
    the config says `agent_template: null`."""

    template: ClassVar[str]
    keeps_conversation: ClassVar[bool] = False
    """Whether `prompt` returns one conversation that only grows, so that it can be compacted."""
    reads = ("rollout.compaction",)

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        settings = settings_for(config, workflow_task, self.template)
        max_tokens = settings.custom.max_tokens_per_step
        frame_recorder = frame_recorder_for(config, workflow_task)
        compaction = model_tuner.compaction() if self.keeps_conversation else None
        async with settings.open() as environment:
            episode = EnvironmentEpisode(settings, environment)
            await episode.begin(workflow_task)
            while episode.ended_by is None:
                if frame_recorder is not None:
                    await frame_recorder.add(environment, episode.observation)
                messages = self.prompt(episode)
                try:
                    if compaction is not None:
                        messages = await compaction.shown(messages, max_tokens=max_tokens)
                    reply = await model_tuner.chat(messages, max_tokens=max_tokens)
                except EpisodeTruncated:  # the episode keeps this status; no later call can succeed
                    episode.ended_by = "token_limit"
                    break
                transition = await episode.answer(reply["content"])
                # By turn, because GiGPO and step_reinforce need a reward for each reply.
                model_tuner.credit_turn(transition.reward, transition.state_key)
                self.on_reply(reply)
            if frame_recorder is not None:
                await frame_recorder.add(environment, episode.observation)
        if frame_recorder is not None:
            await frame_recorder.save()
        return episode.output()

    def prompt(self, episode: EnvironmentEpisode) -> Messages:
        """Returns the messages that the model is called with at this step."""
        raise NotImplementedError(f"{type(self).__name__} does not define prompt()")

    def on_reply(self, reply: dict[str, Any]) -> None:
        """Called with each reply of the model, after its action was done."""

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        check_settings(config, cls.template)


class EnvironmentEpisode:
    """The state of one episode: the current observation, the transitions so far, and why it ended:
    `terminated` or `truncated` by the environment, `max_steps` (replies without an action count),
    or `token_limit` (a token limit of the run)."""

    def __init__(self, settings: EnvironmentSettings, environment: LiveEnvironment) -> None:
        self.settings = settings
        self.environment = environment
        self.transitions: list[Transition] = []
        self._images: dict[str, str] = {}  # by the names that observations have for them
        self.observation = ""
        self.ended_by: str | None = None
        self._placeholders = settings.placeholders(environment.instruction)
        self._state_key: str | None = None
        self._steps: list[StepResult] = []
        self._last_reply = ""

    async def begin(self, workflow_task: WorkflowTask) -> None:
        options = {"split": split_of(workflow_task)}
        with in_call(f"environment {self.settings.tag}, reset"):
            reset_result = await self.environment.reset(workflow_task.seed % LARGEST_SEED, options)
        self.observation, self._state_key = reset_result.observation, reset_result.state_key
        self._images.update(reset_result.images)
        if reset_result.instruction is not None:
            self._placeholders = self.settings.placeholders(reset_result.instruction)

    def system(self) -> Messages:
        """Returns the system message in a list, or an empty list if its text is blank."""
        text = self.settings.system_template.format(**self._placeholders)
        return [{"role": "system", "content": text}] if text.strip() else []

    def user(self, history: str = "") -> dict[str, Any]:
        num_done = len(self.transitions)
        text = self.settings.template.format(
            observation=self.observation,
            state=self.observation,
            turn_idx=num_done + 1,
            step_count=num_done,
            actions_left=self.settings.custom.max_steps - num_done,
            history=history,
            history_length=min(num_done, self.settings.custom.history_length),
            **self._placeholders,
        )
        return {"role": "user", "content": content_of(text, self._images)}

    async def answer(self, reply: str) -> Transition:
        """Does the action that the reply names and returns the transition. A reply without an
        action leaves the state unchanged; the next observation then says what was missing."""
        self._last_reply = reply
        action = self.settings.reader.find_action(reply)
        if action is None:
            penalty = self.settings.format_penalty
            transition = Transition(self.observation, None, penalty, False, self._state_key)
            # Several such replies in a row must not pile up copies of the text.
            missing_action_text = self.settings.reader.missing_action_text
            if not self.observation.startswith(missing_action_text):
                self.observation = f"{missing_action_text}\n{self.observation}"
        else:
            with in_call(f"environment {self.settings.tag}, step {len(self.transitions) + 1}"):
                step = await self.environment.step(action)
            is_valid, reward = bool(step.metrics.get("action_is_valid", True)), step.reward
            if not is_valid:
                reward += self.settings.format_penalty
            transition = Transition(self.observation, action, reward, is_valid, self._state_key)
            self.observation, self._state_key = step.observation, step.state_key
            self._images.update(step.images)
            self._steps.append(step)
            if step.terminated or step.truncated:
                self.ended_by = "terminated" if step.terminated else "truncated"
        self.transitions.append(transition)
        if self.ended_by is None and len(self.transitions) >= self.settings.custom.max_steps:
            self.ended_by = "max_steps"
        return transition

    def output(self) -> WorkflowOutput:
        """Returns the output of the episode. Its reward is the sum of the transitions' rewards. The
        environment's last `success` metric decides about success; without one, an episode counts as
        a success if the environment terminated it and the reward is positive."""
        reward = fsum(transition.reward for transition in self.transitions)
        series: dict[str, list[float]] = {}
        modes = {"success": "last"}
        for step in self._steps:
            for name, value in step.metrics.items():
                series.setdefault(name, []).append(value)
            modes |= step.metrics_agg_mode or {}
        if success_values := series.get("success"):
            is_success = success_values[-1] > 0
        else:
            is_success = self.ended_by == "terminated" and reward > 0
        metadata = {
            "tag": self.settings.tag,
            "total_reward": reward,
            "ended_by": self.ended_by,
            "trace": [{"action": t.action, "reward": t.reward} for t in self.transitions],
            "final_answer": self._last_reply,
        }
        # The agent's values win over metrics of the environment with the same names.
        metrics = {
            **{
                name: float(AGGREGATIONS[modes.get(name, "mean")](values))
                for name, values in series.items()
            },
            "success": float(is_success),
            "reward": reward,
            "num_steps": float(len(self.transitions)),
            "invalid_actions": float(sum(not t.is_valid for t in self.transitions)),
        }
        return WorkflowOutput(
            reward=reward,
            is_success=is_success,
            metadata=metadata,
            log_metrics={f"{self.settings.tag}/{name}": v for name, v in metrics.items()},
        )
