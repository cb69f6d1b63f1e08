"""When the judge of a rollout is asked: for each episode as it ends, or once for a whole group.

    e1 ended ──> verdict(e1) ────┐ waits
    e2 failed ─> leave_out(e2) ──┤
    e3 ended ──> verdict(e3) ────┴─ all are in ──> group judge(e1, e3) ──> one verdict for each

Episodes that wait here hold no place among those that run. At most `max_env_worker` calls of the
judge run at once. Not covered: the call itself, its deadline and its checks (scoring.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.scoring import Verdict, group_verdicts, verdict
from ajet.core.shared_call import SharedCall
from ajet.core.workflow.workflow import WorkflowOutput, WorkflowTask


class Judging:
    """The judge's calls in one rollout of groups of `num_repeat` members."""

    def __init__(self, judge: BaseJudge | None, limits: RolloutLimits, num_repeat: int) -> None:
        self._judge = judge
        self._timeout_s = limits.episode_timeout_s
        self._slots = asyncio.Semaphore(limits.max_env_worker)
        self._groups: defaultdict[str, _Group] = defaultdict(lambda: _Group(num_repeat))

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        """What the episode earns; `JudgeFault` where the judge gives nothing usable."""
        judge = self._judge
        if not isinstance(judge, GroupJudge):
            async with self._slots:
                return await verdict(judge, workflow_task, output, self._timeout_s)
        if output.reward is not None:
            self.leave_out(workflow_task)
            return await verdict(judge, workflow_task, output, self._timeout_s)
        group = self._groups[workflow_task.group_id]
        group.members[workflow_task.rollout_index] = (workflow_task, output)
        group.expect_no_more(workflow_task.rollout_index)
        await group.is_complete.wait()
        if group.call is None:
            group.call = SharedCall(self._ask(judge, group))
        return (await group.call.result())[workflow_task.rollout_index]

    def leave_out(self, workflow_task: WorkflowTask) -> None:
        """This member of a group is not judged; the others need not wait for it. To say so twice is
        as good as once."""
        self._groups[workflow_task.group_id].expect_no_more(workflow_task.rollout_index)

    async def _ask(self, judge: GroupJudge, group: _Group) -> dict[int, Verdict]:
        places = sorted(group.members)
        tasks, outputs = zip(*(group.members[place] for place in places), strict=True)
        async with self._slots:
            verdicts = await group_verdicts(judge, tasks, outputs, self._timeout_s)
        return dict(zip(places, verdicts, strict=True))


@dataclass
class _Group:
    """The members to be judged, by their place, and the one call that judges them."""

    num_members: int
    heard_of: set[int] = field(default_factory=set)
    members: dict[int, tuple[WorkflowTask, WorkflowOutput]] = field(default_factory=dict)
    is_complete: asyncio.Event = field(default_factory=asyncio.Event)
    call: SharedCall[dict[int, Verdict]] | None = None

    def expect_no_more(self, place: int) -> None:
        """This member is in, judged or not."""
        self.heard_of.add(place)
        if len(self.heard_of) == self.num_members:
            self.is_complete.set()
