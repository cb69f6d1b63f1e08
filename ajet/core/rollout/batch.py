"""Rolls out the groups of one training step: rounds of tasks until enough groups have signal.

round 1   tasks 0..3   rewards 1011  1111  0010  0000      two groups without signal: left out
round 2   tasks 4..5   rewards       0110        0001      a batch of 4 is full
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import pvariance
from typing import Self

from ajet.core.config import AjetConfig
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.cursor import DataCursor
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.task.results import GroupResult
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import Group, SelectionName, Trajectory

COUNTED_BY_CURSORS = (SelectionName.OVERLONG, SelectionName.DYNAMIC_SAMPLING)
"""Selections whose episodes still tell a curriculum how hard their task is."""
OnRound = Callable[[str, int], None]
"""Called before each round with the name of its phase and the number of its episodes."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Says how the `train_batch_size` groups of a step are chosen.

    With `max_rounds` above 0 (dynamic sampling of DAPO, Yu et al. 2025, arXiv 2503.14476), groups
    whose valid members all earned the same are left out, and replaced in at most so many rounds.
    With `oversampling` above 1 the first round takes more tasks than a step needs, and the groups
    whose rewards vary most are kept. `mask_truncated` leaves out episodes that a limit cut, or
    whose last reply one cut, with `whole_groups` their groups; `refuse_truncated` is an error
    there. With `has_baselines` (ReMax)
    each group gets a greedy episode with the group's seeds.
    """

    train_batch_size: int
    num_repeat: int
    redundancy: int = 0
    max_rounds: int = 0
    oversampling: float = 1.0
    mask_truncated: bool = False
    refuse_truncated: bool = False
    whole_groups: bool = False
    has_baselines: bool = False

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the settings that the config describes."""
        rollout, algorithm = config.ajet.rollout, config.ajet.trainer_common.algorithm
        sampling = algorithm.dynamic_sampling
        return cls(
            train_batch_size=config.ajet.data.train_batch_size,
            num_repeat=rollout.num_repeat,
            redundancy=rollout.group_size_redundancy,
            max_rounds=sampling.max_rounds if sampling.enable else 0,
            oversampling=rollout.submit_oversample_multiplier if rollout.enable_oversample else 1.0,
            mask_truncated=algorithm.overlong.mask_truncated,
            refuse_truncated=config.ajet.rows is not None and config.ajet.rows.too_long == "refuse",
            whole_groups=config.ajet.kind == "preference",
            has_baselines=algorithm.estimator.needs_greedy_episode,
        )

    @property
    def first_round(self) -> int:
        """Returns the number of tasks in the first round. The product is rounded first: 1.1 times
        10 gives 11, though as floats it is a little more."""
        return math.ceil(round(self.train_batch_size * self.oversampling, 6))

    @property
    def group_size(self) -> int:
        """Returns the number of episodes that start in each group."""
        return self.num_repeat + self.redundancy

    @property
    def num_episodes(self) -> int:
        """Returns the number of episodes in the first round. Failure rates refer to it: in a small
        later round a few failures would be most of it."""
        return self.first_round * self.group_size


@dataclass(frozen=True, slots=True)
class StepGroups:
    """Holds all groups of a step, those left out included, and the groups of greedy baselines."""

    groups: list[Group]
    baselines: list[Group]
    seconds: float

    @property
    def all(self) -> list[Group]:
        """Returns all groups that were rolled out, baselines included."""
        return [*self.groups, *self.baselines]


class BatchRollout:
    """Rolls out the groups of one step after another. It takes tasks from the cursor, which a
    checkpoint stores, and reports to it how their groups ended. Groups that are left out are
    judged, recorded and counted like the others, and not trained."""

    def __init__(
        self,
        runner: GroupRunner,
        tasks: Sequence[Task],
        cursor: DataCursor | ResultCursor,
        settings: BatchSettings,
        *,
        on_round: OnRound = lambda phase, num: None,
        on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        self._runner = runner
        self._tasks = tasks
        self._cursor = cursor
        self._settings = settings
        self._on_round = on_round
        self._on_episode = on_episode

    async def rollout_step(self, step: int) -> StepGroups:
        """Rolls out all groups of one step."""
        settings, started_s = self._settings, time.monotonic()
        groups: list[Group] = []
        for _ in range(max(settings.max_rounds, 1)):
            num_tasks = self._num_missing(groups)
            indices = self._cursor.next_batch(num_tasks)
            tasks = [self._tasks[index] for index in indices]
            self._on_round("rollout", num_tasks * settings.group_size)
            # Numbers of groups continue over the rounds, and groups stay in that order, so seeds,
            # ids and the batch do not depend on timing.
            request = self._request(step, tasks, range(len(groups), len(groups) + num_tasks))
            new_groups = await self._runner.rollout(request, self._on_episode)
            self._cursor.observe(map(group_result, indices, new_groups))
            groups += self._apply_selections(new_groups)
            if not self._num_missing(groups):
                break
        groups = top_by_variance(groups, settings.train_batch_size)
        return await self._with_baselines(step, groups, started_s)

    async def rollout_group(self, step: int, number: int, task: int) -> StepGroups:
        """Rolls out one group, of the task at index `task` in the data, for steps that take groups
        as they end: these decide which groups to keep, and report to the cursor, themselves."""
        started_s = time.monotonic()
        request = self._request(step, [self._tasks[task]], [number])
        groups = self._apply_selections(await self._runner.rollout(request, self._on_episode))
        return await self._with_baselines(step, groups, started_s)

    def _num_missing(self, groups: Sequence[Group]) -> int:
        if not groups:
            return self._settings.first_round
        if not self._settings.max_rounds:
            return 0
        with_signal = sum(group.has_signal for group in groups)
        return max(self._settings.train_batch_size - with_signal, 0)

    def _request(self, step: int, tasks: Sequence[Task], numbers: Sequence[int]) -> RolloutRequest:
        return RolloutRequest(
            tasks,
            step=step,
            mode="train",
            num_repeat=self._settings.num_repeat,
            redundancy=self._settings.redundancy,
            numbers=numbers,
            failure_rate_total=self._settings.num_episodes,
        )

    def _apply_selections(self, groups: list[Group]) -> list[Group]:
        """Returns the groups after `mask_truncated` and dynamic sampling have left out members or
        groups. The order matters: a group may lose its signal with its cut members."""
        if self._settings.refuse_truncated:
            _refuse_truncated(groups)
        if self._settings.mask_truncated:
            whole = self._settings.whole_groups
            groups = [without_truncated(group, whole=whole) for group in groups]
        return [without_signal(group) for group in groups] if self._settings.max_rounds else groups

    async def _with_baselines(self, step: int, groups: list[Group], started_s: float) -> StepGroups:
        """Returns the groups with the rewards of their greedy episodes, if the settings ask for
        them. A greedy episode that failed leaves its group without a baseline."""
        baselines: list[Group] = []
        if self._settings.has_baselines:
            trained_groups = [group for group in groups if group.valid]
            self._on_round("greedy", len(trained_groups))
            request = RolloutRequest(
                [group.task for group in trained_groups if group.task is not None],
                step=step,
                mode="baseline",
                num_repeat=1,
                numbers=[group.number for group in trained_groups],
                failure_rate_total=self._settings.num_episodes,
            )
            baselines = await self._runner.rollout(request, self._on_episode)
            rewards = {
                group.group_id: baseline.trajectories[0].reward
                for group, baseline in zip(trained_groups, baselines, strict=True)
            }
            groups = [replace(group, baseline=rewards.get(group.group_id)) for group in groups]
        return StepGroups(groups, baselines, time.monotonic() - started_s)


def group_result(task: int, group: Group) -> GroupResult:
    """Returns how a group of the task at this index ended, for cursors that learn from results.
    Members that a selection of the batch left out count too."""
    judged = [
        t
        for t in group.trajectories
        if t.reward is not None and (t.is_valid or t.left_out in COUNTED_BY_CURSORS)
    ]
    wins = sum(bool(t.is_success) for t in judged)
    return GroupResult(task, len(judged), wins, len({t.earned for t in judged}) > 1)


def without_signal(group: Group) -> Group:
    """Leaves the whole group out unless two of its valid members earned different rewards."""
    if group.has_signal or not group.valid:
        return group
    reward = group.valid[0].reward
    reason = f"all rewards of its group are {reward:g} (dynamic_sampling)"
    return group.leave_out(SelectionName.DYNAMIC_SAMPLING, reason)


def without_truncated(group: Group, *, whole: bool = False) -> Group:
    """Leaves out the members that a limit cut, or whose last reply one cut; with `whole`, their
    groups. Those with a malformed reply stay: the config sets their reward."""
    if whole and any(map(_is_cut, group.trajectories)):
        return group.leave_out(SelectionName.OVERLONG, "a limit cut one of its replies")
    members: list[Trajectory] = []
    for t in group.trajectories:
        reason = f"{t.cut_by} cut it (overlong.mask_truncated)"
        members.append(t.leave_out(SelectionName.OVERLONG, reason) if _is_cut(t) else t)
    return replace(group, trajectories=tuple(members))


def _refuse_truncated(groups: Sequence[Group]) -> None:
    """Raises DataError for the first episode that a limit ended."""
    for t in (t for group in groups for t in group.trajectories if _is_cut(t)):
        if t.truncation is not None:
            raise DataError(
                f"row {t.workflow_task.task_id}: {t.truncation} ({t.truncation.limit}); raise it, "
                "take the row out, or set too_long=leave_out (ajet.supervised, ajet.preference)",
                code=Code.ROW_TOO_LONG,
            )


def _is_cut(t: Trajectory) -> bool:
    return t.is_valid and t.cut_by is not None and not t.is_malformed


def top_by_variance(groups: Sequence[Group], num: int) -> list[Group]:
    """Keeps the `num` groups whose rewards vary most and leaves the others out."""
    counted: list[tuple[float, str]] = []
    for group in groups:
        if group.valid:
            rewards = [t.reward for t in group.valid if t.reward is not None]
            counted.append((-pvariance(rewards) if rewards else 0.0, group.group_id))
    # Ids sort as the groups are ordered, so earlier groups win ties.
    surplus = {group_id for _, group_id in sorted(counted)[num:]}
    reason = "the rewards of other groups vary more (ajet.rollout.enable_oversample)"
    return [
        g.leave_out(SelectionName.OVERSAMPLING, reason) if g.group_id in surplus else g
        for g in groups
    ]
