"""Defines the base classes of judges, which read episodes' outputs and give rewards.

class MyJudge(BaseJudge):           one episode at a time
    async def compute_reward(self, workflow_task, workflow_output): return 1.0, True
                                                                or 1.0 alone, or True alone

class MyGroupJudge(GroupJudge):     the episodes of a task together, once all have ended
    async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        return [(1.0, True) for output in workflow_outputs]
"""

from collections.abc import Awaitable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    import asyncio

    from ajet.core.inference.chat_client import ChatClient


Answer = tuple[float, bool | None] | float
"""A judge's result for one episode. It may be a bool, which type checkers accept as a float."""


class BaseJudge:
    """Base class of judges: subclasses implement `compute_reward`, plain or async. One object is
    made for each run, which training and validation share.

    `config` is the whole config tree (the user's own sections included). `thread_lock` is set where
    clients' requests share the event loop (`ajet serve`): a plain method then runs in a thread,
    holding the lock.
    """

    thread_lock: "asyncio.Lock | None" = None

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @cached_property
    def client(self) -> "ChatClient":
        """Returns a client of `ajet.task_judge.model_name`, for your own judge:
        `await self.client.complete(messages, max_tokens=512)`. Its replies are never trained."""
        from ajet.core.judge.judge_client import user_judge_client

        return user_judge_client(self.config)

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> Answer | Awaitable[Answer]:
        """Returns ``(reward, is_success)``, or one of them: a finite number is a reward, a bool is
        a success with reward 1 or 0. Without a success, a reward of at least
        `ajet.task_judge.success_threshold` is one. A slow plain method blocks all episodes (with
        `ajet serve`, all verdicts), so write an async one."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute_reward()")


class GroupJudge(BaseJudge):
    """Base class of judges that compare the answers to one task: subclasses implement
    `compute_group_rewards`, plain or async. It is called once a group, after its last member
    ended."""

    def compute_group_rewards(
        self,
        workflow_tasks: Sequence[WorkflowTask],
        workflow_outputs: Sequence[WorkflowOutput],
    ) -> Sequence[Answer] | Awaitable[Sequence[Answer]]:
        """Returns one answer for each member, in order, each as from `compute_reward`. Members
        that failed, or that their workflow rewarded, are left out; there may be only one."""
        raise NotImplementedError(f"{type(self).__name__} does not define compute_group_rewards()")
