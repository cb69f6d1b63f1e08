"""Groups of more members than they need: each ends with the first that are done.

    num_repeat 2, redundancy 2       wave 1   wave 2   wave 3
    member 0                         ──────── ──────── end          surplus: ended too late
    member 1                         ──────── end                   kept
    member 2                         ──────── ──────── (stopped)    aborted
    member 3                         end                            kept

Members are stopped before a wave, when every episode waits or has left: who has ended by then does
not depend on how long a tool or a judge took. Members that end in the same wave count by their
place in the group. Where the endpoint has no waves, they are stopped at once.

Done means that the workflow is over, judged or not: a wave does not wait for a judge. Not covered:
what the selection does to the batch (record/selection.py counts it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ajet.core.rollout.schedule import Schedule
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.workflow.workflow import WorkflowTask

KEY = "ajet.rollout.group_size_redundancy"
STOPPED = f"the group had enough members ({KEY})"
SURPLUS = f"ended after enough members of its group ({KEY})"


class EarlyStop:
    """The groups of one rollout; `num_needed` members of each are kept."""

    def __init__(
        self,
        plans: Sequence[WorkflowTask],
        num_needed: int,
        *,
        on_stopped: Callable[[WorkflowTask], None],
    ) -> None:
        """`on_stopped` is told of members that stop, or never begin."""
        self._plans = plans
        self._num_needed = num_needed
        self._on_stopped = on_stopped
        self._members: defaultdict[str, list[int]] = defaultdict(list)
        for index, plan in enumerate(plans):
            self._members[plan.group_id].append(index)
        self._ended: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._to_stop: list[str] = []
        self._stopped: set[tuple[str, int]] = set()
        self._moment = 0
        self._has_waves = False
        self._schedule: Schedule[WorkflowTask, Trajectory] | None = None

    @contextmanager
    def watching(self, schedule: Schedule[WorkflowTask, Trajectory]) -> Iterator[None]:
        """While `schedule` runs, members of complete groups are stopped."""
        self._schedule = schedule
        self._has_waves = schedule.live.ask_before_waves(self._before_wave)
        try:
            yield
        finally:
            schedule.live.ask_before_waves(None)

    def ended(self, plan: WorkflowTask) -> None:
        """The workflow of this member came to its end; its slot is not free yet."""
        ended = self._ended[plan.group_id]
        ended[plan.rollout_index] = self._moment
        if len(ended) == self._num_needed:
            self._to_stop.append(plan.group_id)
        if not self._has_waves:
            self._moment += 1
            self._stop_surplus()

    def told(self, trajectory: Trajectory) -> Trajectory:
        """With the reason, where the member was told to stop or not to start."""
        place = (trajectory.group_id, trajectory.workflow_task.rollout_index)
        if trajectory.status is not EpisodeStatus.ABORTED or place not in self._stopped:
            return trajectory
        return trajectory.set_aside("redundancy", STOPPED)

    def kept(self, group: Group) -> Group:
        """The group with the first `num_needed` valid members; the others are left out."""
        return first_members(group, self._ended[group.group_id], self._num_needed)

    def _before_wave(self) -> bool:
        """Whether the wave may start: nobody is on the way out."""
        assert self._schedule is not None
        self._stop_surplus()
        if self._schedule.is_dropping:
            return False
        self._moment += 1
        return True

    def _stop_surplus(self) -> None:
        """All members of complete groups that have not come to their end."""
        assert self._schedule is not None
        for group_id in self._to_stop:
            members, ended = self._members[group_id], self._ended[group_id]
            surplus = [index for place, index in enumerate(members) if place not in ended]
            self._schedule.drop(surplus)
            for plan in (self._plans[index] for index in surplus):
                self._stopped.add((group_id, plan.rollout_index))
                self._on_stopped(plan)
        self._to_stop.clear()


def first_members(group: Group, ended: Mapping[int, int], num_needed: int) -> Group:
    """The group with its first `num_needed` valid members; `ended` has the moment of each place."""
    places = {t.episode_id: t.workflow_task.rollout_index for t in group.valid}
    order = sorted(places, key=lambda name: (ended[places[name]], places[name]))
    surplus = set(order[num_needed:])
    members = (
        t.set_aside("redundancy", SURPLUS) if t.episode_id in surplus else t
        for t in group.trajectories
    )
    return replace(group, trajectories=tuple(members))
