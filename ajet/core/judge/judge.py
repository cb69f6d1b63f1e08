"""Defines the base classes of judges, which read episodes' outputs and give rewards."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    import asyncio

    from ajet.core.config import AjetConfig
    from ajet.core.inference.chat_client import ChatClient

REPLIES = "judge_replies.sqlite"
Answer = tuple[float, bool | None] | float
"""A judge's result for one episode. It may be a bool, which type checkers accept as a float."""


class BaseJudge:
    """Base class of judges: subclasses implement `compute_reward`, plain or async. One object is
    made for each run, which training and validation share.

    `config` is the whole config tree (the user's own sections included). `thread_lock` is set where
    clients' requests share the event loop (`ajet serve`): a plain method then runs in a thread,
    holding the lock.
    """

    thread_lock: asyncio.Lock | None = None

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @cached_property
    def client(self) -> ChatClient:
        """Returns a client of `ajet.task_judge.model_name`, for your own judge:
        `await self.client.complete(messages, max_tokens=512)`. Its replies are never trained."""
        model = self.config and self.config.ajet.task_judge.model_name
        if model is None:
            raise ConfigError(
                "this judge asks a model: set ajet.task_judge.model_name, "
                "and call super().__init__(config) in the judge's __init__",
                code=Code.JUDGE_SETTING,
            )
        return judge_client(self.config, model)

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


def judge_client(config: AjetConfig, model: str) -> ChatClient:
    """Returns a client that calls `model` with the settings of `ajet.task_judge.client`."""
    from ajet.core.inference.chat_client import ChatClient

    section = config.ajet.task_judge.client
    cache_path = None if section.cache_path is None else Path(section.cache_path).expanduser()
    if section.cache_path == "auto":
        # `ajet debug` has no run folder, and must not make one.
        cache_path = config.run_folder / REPLIES if config.run_folder.is_dir() else None
    return ChatClient(
        model,
        section.base_url,
        cache_path=cache_path,
        max_parallel=section.max_parallel,
        requests_per_minute=section.requests_per_minute,
        timeout_s=section.timeout_s,
        max_retries=section.max_retries,
    )
