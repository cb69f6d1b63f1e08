"""Provides AgentJet's `EnvClient`: an environment service, for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, TypeVar
from uuid import uuid4

from ajet.environments.env_service.client import EnvServiceClient

__all__ = ["EnvClient"]

Result = TypeVar("Result")


class EnvClient:
    """Calls a service, from any thread. `max_retry` is ours: a call is repeated three times, and
    one that still fails raises `EnvironmentFault`. Where AgentJet names no environment, the last
    one is meant, of which there usually is one."""

    def __init__(self, base_url: str = "http://localhost:8000") -> None:
        self.base_url = base_url
        self._env_type = "default"
        self._clients: dict[str, EnvServiceClient] = {}

    def get_env_profile(
        self, env_type: str, split: str = "train", params: Any = None, max_retry: int = 1
    ) -> list[str]:
        """Returns the ids of a split's tasks."""
        return self._call(self._client(env_type).task_ids(split))

    def create_instance(
        self,
        env_type: str,
        task_id: str,
        instance_id: str | None = None,
        params: Mapping[str, Any] | None = None,
        max_retry: int = 3,
    ) -> dict[str, Any]:
        """Creates an instance, and returns its first observation with all its messages."""
        name = instance_id or uuid4().hex
        return asdict(self._call(self._client(env_type).create(task_id, name, params)))

    def step(
        self,
        instance_id: str,
        action: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        max_retry: int = 3,
    ) -> dict[str, Any]:
        """Returns the next observation, whose `state` is its first message."""
        step = self._client(self._env_type).step(instance_id, action or {}, params)
        observation = asdict(self._call(step))
        return observation | {"state": observation["state"][0]}

    def get_tools_info(
        self, instance_id: str, messages: Any = None, params: Any = None, max_retry: int = 3
    ) -> Any:
        return self._call(self._client(self._env_type).info(instance_id, params))

    def evaluate(
        self, instance_id: str, messages: Any = None, params: Any = None, max_retry: int = 3
    ) -> float:
        return self._call(self._client(self._env_type).evaluate(instance_id, params))

    def release_instance(self, instance_id: str, max_retry: int = 3) -> bool:
        self._call(self._client(self._env_type).release(instance_id))
        return True

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="env-client", daemon=True).start()
        return loop

    def _client(self, env_type: str) -> EnvServiceClient:
        self._env_type = env_type
        if env_type not in self._clients:
            self._clients[env_type] = EnvServiceClient(self.base_url, env_type)
        return self._clients[env_type]

    def _call(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
