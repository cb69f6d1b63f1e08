"""Runs the groups of a request: episodes in, groups of judged trajectories out.

    request -> plans -> admission -> one episode each -> judged -> groups -> failure policy

Groups and their members come back in the order of the tasks.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.judge.verdict import Verdict, group_verdicts
from ajet.core.process.shared_call import SharedCall
from ajet.core.rollout.admission import Admission, AdmittedEpisodes, Slot
from ajet.core.rollout.answered import AnsweredCall
from ajet.core.rollout.episode import (
    STOPPED,
    EpisodeExecutor,
    EpisodeRunner,
    OnError,
    with_verdict,
)
from ajet.core.rollout.failure import apply_policy, check_failure_rate, has_failed
from ajet.core.rollout.gc_thresholds import infrequent_gc
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import EpisodeJournal, OnEpisode, RolloutRequest
from ajet.core.rollout.watch import RolloutWatch
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.plain_trajectory import plain_trajectory
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, SelectionName, Trajectory

REDUNDANCY_KEY = "ajet.rollout.group_size_redundancy"
ENOUGH_MEMBERS = f"the group had enough members ({REDUNDANCY_KEY})"
SURPLUS = f"ended after enough members of its group ({REDUNDANCY_KEY})"

Meanwhile = Callable[[int], AbstractAsyncContextManager[None]]
"""Returns the context in which a step is rolled out."""


class GroupRunner:
    """Runs requests, each episode by `executor`, at most `limits.max_env_worker` at a time."""

    def __init__(
        self,
        executor: EpisodeExecutor,
        admission: Admission,
        *,
        limits: RolloutLimits,
        run_seed: int,
        judge: BaseJudge | None = None,
        debug: bool = False,
        on_error: OnError | None = None,
        journal: EpisodeJournal | None = None,
    ) -> None:
        """Stores what all requests share. `judge` is called here if it compares groups; the
        executor calls other judges. Episodes that `journal` holds are not run again."""
        self.executor = executor
        self.admission = admission
        self.limits = limits
        self.run_seed = run_seed
        self.judge = judge if isinstance(judge, GroupJudge) else None
        self.debug = debug
        self.on_error: OnError = on_error or (lambda error: None)
        self._journal = journal
        self._meanwhile: Meanwhile = lambda step: nullcontext()
        self.watch = RolloutWatch(
            executor, lambda: admission.waves, max_wave_wait_s=limits.max_wave_wait_s
        )
        self._has_trained = False
        self._running: set[AdmittedEpisodes] = set()

    @classmethod
    def from_episode_runner(
        cls, runner: EpisodeRunner, judge: BaseJudge | None = None
    ) -> GroupRunner:
        """Returns a runner whose episodes run in this process."""
        return cls(
            runner,
            Admission(runner.limits.max_env_worker, runner.endpoint),
            limits=runner.limits,
            run_seed=runner.run_seed,
            judge=judge,
            debug=runner.debug,
            on_error=runner.on_error,
        )

    def with_journal(
        self, journal: EpisodeJournal, meanwhile: Meanwhile = lambda step: nullcontext()
    ) -> GroupRunner:
        """Returns a runner that shares executor and slots, and stores its episodes in `journal`.
        Each rollout of a step is within `meanwhile(step)`."""
        runner = copy.copy(self)
        runner._journal, runner._meanwhile, runner._running = journal, meanwhile, set()
        return runner

    async def rollout(
        self, request: RolloutRequest, on_episode: OnEpisode | None = None
    ) -> list[Group]:
        """Runs the episodes of the request and returns them as groups; `on_episode` is called as
        each one ends. The failure policy applies to training only: an evaluation shows what
        happened. Raises `RunFailed` if too many episodes fail."""
        running = GroupsInProgress(self, request, on_episode, self._journal)
        episodes = AdmittedEpisodes(running.plans, running.run_member)
        self._running.add(episodes)
        try:
            # With `debug` a person may be at a breakpoint: there is nobody to report as late.
            watching = nullcontext() if self.debug else self.watch
            with watching, infrequent_gc(), running.early_stop.active(episodes, self.admission):
                self.admission.admit(episodes)
                async with self._meanwhile(request.step):
                    results = await episodes.results()
        finally:
            self._running.discard(episodes)
        groups = running.groups(results)
        if request.mode == "train" and not self._has_trained:
            self._has_trained = has_trained_agent(groups)
        return groups

    async def rerun(self, plan: WorkflowTask, slot: Slot | None = None) -> Trajectory:
        """Runs one episode again from its plan. A group judge sees it alone."""
        judging = GroupJudging(self, group_size=1)
        trajectory = await self.executor.run(
            plan,
            slot or Slot(plan.episode_id),
            judge_in_group=judging.judge_member if self.judge else None,
        )
        return plain_trajectory(trajectory)

    def stop(self) -> None:
        """Ends the rollouts in progress: they return, with unfinished episodes as `aborted`."""
        for episodes in self._running:
            episodes.stop()


class GroupsInProgress:
    """The groups of one request while their episodes run."""

    def __init__(
        self,
        runner: GroupRunner,
        request: RolloutRequest,
        on_episode: OnEpisode | None,
        journal: EpisodeJournal | None,
    ) -> None:
        self._runner, self._request = runner, request
        self._on_episode, self._journal = on_episode, journal
        self._finished: dict[str, Trajectory] = {}
        self._answered: dict[str, Sequence[AnsweredCall]] = {}
        if journal is not None:
            for group_id in request.group_ids:
                self._finished |= journal.take(group_id)
                self._answered |= journal.answered(group_id)
        self.plans = request.plans(runner.run_seed)
        self._judging = GroupJudging(runner, request.group_size)
        self.early_stop = EarlyStop(
            self.plans, request.num_repeat, on_stopped=self._judging.leave_out
        )
        self._failed: list[Trajectory] = []

    async def run_member(self, plan: WorkflowTask, slot: Slot) -> Trajectory:
        """Runs one episode and reports it. Raises `RunFailed` after too many failures."""

        def workflow_ended(status: EpisodeStatus) -> None:
            # Only a member that will be valid, unless its judge fails, completes its group.
            counts_as_zero = self._runner.limits.failure_policy == "zero"
            has_succeeded = status in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED)
            if has_succeeded or (counts_as_zero and status is not EpisodeStatus.ABORTED):
                self.early_stop.ended(plan)

        slot.on_workflow_end = workflow_ended
        if (finished := self._finished.get(plan.episode_id)) is not None:
            slot.workflow_ended(finished.outcome)
            self._judging.leave_out(plan)
            self._report(finished)
            return finished
        if self._journal is not None and self._journal.keeps_calls:
            slot.answered = self._answered.get(plan.episode_id, ())
            slot.on_call = partial(self._journal.put_call, plan)
        try:
            trajectory = await self._runner.executor.run(
                plan,
                slot,
                judge_in_group=self._judging.judge_member if self._runner.judge else None,
            )
        finally:
            # A member that failed must not keep the judge of its group waiting.
            self._judging.leave_out(plan)
        self._runner.watch.ended(trajectory)
        trajectory = self.early_stop.mark_stopped(plain_trajectory(trajectory))
        if self._journal is not None:
            self._journal.put(trajectory)
        self._report(trajectory)
        if has_failed(trajectory):
            self._failed.append(trajectory)
            rate = self._runner.limits.max_failure_rate
            check_failure_rate(self._failed, self._request.num_episodes, rate)
        return trajectory

    def _report(self, trajectory: Trajectory) -> None:
        if self._on_episode is not None:
            self._on_episode(trajectory)

    def groups(self, results: Sequence[Trajectory | None]) -> list[Group]:
        """Returns the groups of these results, which are in the order of the plans, with None for
        episodes that never started."""
        members: list[Trajectory] = []
        for plan, trajectory in zip(self.plans, results, strict=True):
            if trajectory is None:
                aborted = Trajectory(plan, (), EpisodeStatus.ABORTED, failure=STOPPED)
                trajectory = self.early_stop.mark_stopped(aborted)
            members.append(trajectory)
        request, size = self._request, self._request.group_size
        groups: list[Group] = []
        for index, group_id in enumerate(request.group_ids):
            start = index * size
            group = Group(group_id, tuple(members[start : start + size]), request.tasks[index])
            if request.mode == "train":
                group = apply_policy(group, self._runner.limits.failure_policy)
                group = self.early_stop.select(group)
            groups.append(group)
        return groups


class EarlyStop:
    """Stops the other members of a group once `num_needed` have ended: with `redundancy` it starts
    more than it needs.

        num_repeat 2, redundancy 2       wave 1   wave 2   wave 3
        member 0                         ──────── ──────── end          surplus: ended too late
        member 1                         ──────── end                   kept
        member 2                         ──────── ──────── (stopped)    aborted
        member 3                         end                            kept

    Members are stopped before a wave, when every episode waits or has left: which of them have
    ended by then does not depend on how long a tool took. "Ended" means that the workflow is over,
    judged or not. Without waves they are stopped at once.
    """

    def __init__(
        self,
        plans: Sequence[WorkflowTask],
        num_needed: int,
        *,
        on_stopped: Callable[[WorkflowTask], None],
    ) -> None:
        """`on_stopped` is called for members that are stopped or never start."""
        self._plans = plans
        self._num_needed = num_needed
        self._on_stopped = on_stopped
        self._members: defaultdict[str, list[int]] = defaultdict(list)  # indices of plans
        for index, plan in enumerate(plans):
            self._members[plan.group_id].append(index)
        # By group: the order of each member's end. Members that end in one wave share a number, so
        # that the order does not depend on timing; their index in the group decides between them.
        self._ended: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._to_stop: list[str] = []
        self._stopped: set[tuple[str, int]] = set()
        self._end_order = 0
        self._has_waves = False
        self._episodes: AdmittedEpisodes | None = None

    @contextmanager
    def active(self, episodes: AdmittedEpisodes, admission: Admission) -> Iterator[None]:
        """Stops members of complete groups within the block: before each wave, or at once if the
        endpoint has no waves."""
        self._episodes = episodes
        waves = admission.waves
        self._has_waves = waves is not None
        if waves is not None:
            waves.set_wave_check(self._before_wave)
        try:
            yield
        finally:
            if waves is not None:
                waves.set_wave_check(None)

    def ended(self, plan: WorkflowTask) -> None:
        """Reports that a member's workflow is over; its slot is not free yet."""
        ended = self._ended[plan.group_id]
        ended[plan.rollout_index] = self._end_order
        if len(ended) == self._num_needed:
            self._to_stop.append(plan.group_id)
        if not self._has_waves:  # with waves, members are stopped before the next one
            self._end_order += 1
            self._stop_surplus()

    def mark_stopped(self, trajectory: Trajectory) -> Trajectory:
        """Returns the trajectory, left out with the reason if the member was stopped here."""
        member = (trajectory.group_id, trajectory.workflow_task.rollout_index)
        if trajectory.outcome is not EpisodeStatus.ABORTED or member not in self._stopped:
            return trajectory
        return trajectory.leave_out(SelectionName.REDUNDANCY, ENOUGH_MEMBERS)

    def select(self, group: Group) -> Group:
        """Returns the group with its first `num_needed` valid members; the others are left out."""
        ended = self._ended[group.group_id]
        index_of = {t.episode_id: t.workflow_task.rollout_index for t in group.valid}
        order = sorted(index_of, key=lambda name: (ended[index_of[name]], index_of[name]))
        surplus = set(order[self._num_needed :])
        members = (
            t.leave_out(SelectionName.REDUNDANCY, SURPLUS) if t.episode_id in surplus else t
            for t in group.trajectories
        )
        return replace(group, trajectories=tuple(members))

    def _before_wave(self) -> bool:
        """Returns True if the wave may start: no cancelled member still has its slot."""
        assert self._episodes is not None
        self._stop_surplus()
        if self._episodes.is_dropping:
            return False
        self._end_order += 1
        return True

    def _stop_surplus(self) -> None:
        """Stops the members of complete groups whose workflow is not over."""
        assert self._episodes is not None
        for group_id in self._to_stop:
            members, ended = self._members[group_id], self._ended[group_id]
            surplus = [index for member, index in enumerate(members) if member not in ended]
            self._episodes.drop(surplus)
            for plan in (self._plans[index] for index in surplus):
                self._stopped.add((group_id, plan.rollout_index))
                self._on_stopped(plan)
        self._to_stop.clear()


class GroupJudging:
    """Calls a group judge once for each group, when all of its members have ended. Members that
    wait for the verdict hold no slot; at most `max_env_worker` calls run at once."""

    def __init__(self, runner: GroupRunner, group_size: int) -> None:
        self._runner = runner
        self._slots = asyncio.Semaphore(runner.limits.max_env_worker)
        self._groups: defaultdict[str, _JudgedGroup] = defaultdict(lambda: _JudgedGroup(group_size))

    async def judge_member(self, trajectory: Trajectory) -> Trajectory:
        """Returns the trajectory with its verdict, once the group is complete."""
        return await with_verdict(trajectory, self._verdict(trajectory), self._runner)

    def leave_out(self, plan: WorkflowTask) -> None:
        """Makes the other members no longer wait for this one. Further calls have no effect."""
        if self._runner.judge is not None:
            self._groups[plan.group_id].mark_ended(plan.rollout_index)

    async def _verdict(self, trajectory: Trajectory) -> Verdict:
        task, output = trajectory.workflow_task, trajectory.output
        assert output is not None
        group = self._groups[task.group_id]
        group.members[task.rollout_index] = (task, output)
        group.mark_ended(task.rollout_index)
        await group.is_complete.wait()
        if group.call is None:  # the first member to wake up calls the judge for all
            group.call = SharedCall(self._ask(group))
        return (await group.call.result())[task.rollout_index]

    async def _ask(self, group: _JudgedGroup) -> dict[int, Verdict]:
        judge, timeout_s = self._runner.judge, self._runner.limits.episode_timeout_s
        assert judge is not None
        order = sorted(group.members)
        tasks, outputs = zip(*(group.members[index] for index in order), strict=True)
        async with self._slots:
            verdicts = await group_verdicts(judge, tasks, outputs, timeout_s)
        return dict(zip(order, verdicts, strict=True))


@dataclass
class _JudgedGroup:
    """The members to be judged, by their index, and the one call that judges them."""

    num_members: int
    ended: set[int] = field(default_factory=set)
    members: dict[int, tuple[WorkflowTask, WorkflowOutput]] = field(default_factory=dict)
    is_complete: asyncio.Event = field(default_factory=asyncio.Event)
    call: SharedCall[dict[int, Verdict]] | None = None

    def mark_ended(self, index: int) -> None:
        """Reports that this member has ended, judged or not."""
        self.ended.add(index)
        if len(self.ended) == self.num_members:
            self.is_complete.set()


def has_trained_agent(groups: Sequence[Group]) -> bool:
    """Returns True if the model was called at all. Raises ConfigError if agents call it and none of
    them is trained. Only the first step is checked: later it may happen by chance."""
    turns = [turn for group in groups for t in group.trajectories for turn in t.turns]
    if turns and not any(turn.trainable for turn in turns):
        names = sorted({turn.agent_name for turn in turns} | {turn.target_tag for turn in turns})
        raise ConfigError(
            "the workflow's trainable_targets match none of its agents: "
            f"the agent names and target tags in use are {', '.join(names)}",
            code=Code.TRAINABLE_TARGETS,
        )
    return bool(turns)
