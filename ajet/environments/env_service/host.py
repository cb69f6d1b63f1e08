"""Creates an instance of the environment for every episode, and releases it however it ends.

If the service cannot be reached, the episode ends as `env_error`. A failed release is logged once.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import Self

from loguru import logger

from ajet.core.config.task_reader import TaskReaderConfig
from ajet.core.errors import EnvironmentFault, KeyMissing
from ajet.core.task.workflow_task import WorkflowTask
from ajet.environments.env_service.client import BACKOFF_S, TIMEOUT_S, EnvServiceClient
from ajet.environments.env_service.gym_env import GymEnv

SECTION = "ajet.task_reader.env_service"
RELEASE_TIMEOUT_S = 10.0
UNCONFIRMED_RELEASE_TIMEOUT_S = 1.0
_releasing: set[asyncio.Task[None]] = set()
"""Holds releases that outlive the episode's cancelled task, until they are done."""


@dataclass
class EnvServiceHost:
    """The service that a run's episodes use. Each runner has one host."""

    url: str
    env_type: str
    action_preference: str = "code"
    timeout_s: float = TIMEOUT_S
    backoff_s: float = BACKOFF_S
    num_unreleased: int = 0

    def episode(self, workflow_task: WorkflowTask) -> EpisodeInstance | None:
        """Returns the environment instance of an episode, not created yet, or None if the task has
        another `env_type`."""
        return EpisodeInstance(self) if workflow_task.env_type == self.env_type else None

    def client(self) -> EnvServiceClient:
        return EnvServiceClient(
            self.url, self.env_type, timeout_s=self.timeout_s, backoff_s=self.backoff_s
        )


def environment_host(task_reader: TaskReaderConfig) -> EnvServiceHost | None:
    """Returns the service of the config's episodes: with the reader `env_service`, and with a
    user's reader if the section names a service; else None."""
    reader, section = task_reader.type, task_reader.env_service
    if reader != "env_service" and not ("->" in reader and section.env_url):
        return None
    for name in ("env_url", "env_type"):
        if not getattr(section, name):
            raise KeyMissing(f"{SECTION}.{name} is missing")
    assert section.env_url and section.env_type
    return EnvServiceHost(
        section.env_url, section.env_type, action_preference=section.env_action_preference
    )


class EpisodeInstance:
    """The instance of one episode. It is released at the end of the `async with`."""

    def __init__(self, host: EnvServiceHost) -> None:
        self._host = host
        self._client: EnvServiceClient | None = None
        self._env: GymEnv | None = None
        self._instance_id = ""

    async def begin(self, workflow_task: WorkflowTask) -> WorkflowTask:
        """Creates the instance and returns the task with the question that it showed, as AgentJet
        does: `init_messages` are all messages, `main_query` is the text of the last one. A task
        that has a question keeps it."""
        # A random part, because a killed run may have left instances of these episodes there.
        self._instance_id = f"{workflow_task.episode_id}-{secrets.token_hex(8)}"
        self._client = self._host.client()
        params = {
            "seed": workflow_task.seed % 2**31,  # services accept seeds of different sizes
            "env_action_preference": self._host.action_preference,
        }
        first = await self._client.create(workflow_task.task_id, self._instance_id, params)
        self._instance_id = first.instance_id(self._instance_id)
        self._env = GymEnv(self._client, workflow_task.episode_id, self._instance_id, first)
        if workflow_task.task.main_query:
            return workflow_task
        query = str(first.state[-1].get("content") or "")
        task = replace(workflow_task.task, main_query=query, init_messages=first.state)
        return replace(workflow_task, task=task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._env is not None:
            self._env.close()
        if self._client is not None:
            # The episode's task may be cancelled here; the release must finish anyway.
            task = asyncio.create_task(self._release(self._client))
            _releasing.add(task)
            task.add_done_callback(_releasing.discard)
            await asyncio.shield(task)

    async def _release(self, client: EnvServiceClient) -> None:
        """Releases the instance, also after a `/create` that failed or was cancelled, because the
        service may have received it."""
        try:
            async with asyncio.timeout(
                RELEASE_TIMEOUT_S if self._env else UNCONFIRMED_RELEASE_TIMEOUT_S
            ):
                await client.release(self._instance_id)
        except (EnvironmentFault, TimeoutError) as error:
            if self._env is not None:
                self._host.num_unreleased += 1
                if self._host.num_unreleased == 1:
                    logger.warning(
                        "instance {} stays with the service: {} (later ones are not logged)",
                        self._instance_id,
                        str(error) or "no answer in time",
                    )
        finally:
            await client.close()
