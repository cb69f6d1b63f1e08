"""Runs episodes of every mode in the process that makes it: a rollout worker, or the driver.

    plan ─> the EpisodeRunner of its mode ─> trajectory

Modes differ in their sampling parameters; endpoint, template, judge and gateway are the same. Not
covered: how plans come to this process (rollout_worker.py, driver_rollout.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ajet.core.activity import CurrentCall
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.judge.judge import BaseJudge
from ajet.core.rollout.admission import Slot
from ajet.core.rollout.episode import EpisodeExecutor, JudgeInGroup
from ajet.core.rollout.stops import Stop
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.workflow.gateway.gateway import Gateway
    from ajet.core.workflow.registry import WorkflowFactory


class ProcessExecutor:
    """An `EpisodeExecutor` that makes the runner of a mode for the mode's first episode."""

    def __init__(
        self,
        config: AjetConfig,
        endpoint: ModelEndpoint,
        template: ChatTemplate,
        *,
        judge: BaseJudge | None,
        gateway: Gateway,
        workflows: WorkflowFactory | None = None,
    ) -> None:
        """`workflows` replaces the config's workflow."""
        self._config, self._endpoint, self._template = config, endpoint, template
        self._judge, self._gateway, self._workflows = judge, gateway, workflows
        self._runners: dict[Mode, EpisodeExecutor] = {}
        self._stops: Mapping[str, Stop] = {}

    async def run(
        self,
        plan: WorkflowTask,
        slot: Slot,
        sampling: SamplingParams | None = None,
        judge_in_group: JudgeInGroup | None = None,
    ) -> Trajectory:
        """Implements `EpisodeExecutor.run`."""
        return await self.runner(plan.mode).run(plan, slot, sampling, judge_in_group)

    def calls(self) -> Mapping[str, CurrentCall]:
        """Implements `EpisodeExecutor.calls`. Other threads may call it."""
        runners = list(self._runners.values())
        return {name: call for runner in runners for name, call in runner.calls().items()}

    def stop(self, episode_id: str, stop: Stop) -> bool:
        """Implements `EpisodeExecutor.stop`."""
        return any(runner.stop(episode_id, stop) for runner in self._runners.values())

    def set_stops(self, stops: Mapping[str, Stop]) -> None:
        """Implements `EpisodeExecutor.set_stops`."""
        self._stops = stops
        for runner in self._runners.values():
            runner.set_stops(stops)

    def runner(self, mode: Mode) -> EpisodeExecutor:
        """Returns what runs the episodes of a mode."""
        if mode not in self._runners:
            from ajet import assembly

            self._runners[mode] = assembly.make_runner(
                self._config,
                self._endpoint,
                self._template,
                judge=self._judge,
                mode=mode,
                gateway=self._gateway,
                workflows=self._workflows,
            ).executor
            self._runners[mode].set_stops(self._stops)
        return self._runners[mode]
