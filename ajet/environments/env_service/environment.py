"""An environment behind the env-service protocol, for the agents that play environments.

env_type: env_service
env_config: {env_url: "http://127.0.0.1:8080", env_type: sokoban}
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.environments.env_service.client import TIMEOUT_S, EnvServiceClient, Observation

PASSED = ("metrics", "metrics_agg_mode", "state_key")
SEEDS = 2**31
"""Seeds are taken modulo this number, because services accept seeds of different sizes."""

Result = TypeVar("Result")
_task_ids: dict[tuple[str, str, str], list[str]] = {}
"""Task ids by address, env_type and split; a service's list does not change within a run."""


class ServedEnvironment(Environment):
    """Plays an environment that a service runs. `training_split` and `validation_split` are the
    service's names for the splits; the seed picks one of the split's tasks. Each call runs in a
    private event loop, in the calling thread."""

    def __init__(
        self,
        env_url: str,
        env_type: str,
        training_split: str = "train",
        validation_split: str = "validation",
        env_action_preference: str = "text",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not env_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"env_service: env_config.env_url: {env_url!r}: an address begins with http:// or "
                "https://",
                code=Code.ENVIRONMENT_SERVICE,
            )
        self._splits = {"train": training_split, "validation": validation_split}
        self._action_preference = env_action_preference
        self._loop = asyncio.new_event_loop()
        self._client = EnvServiceClient(env_url, env_type, timeout_s=timeout_s)
        self._instance_id = ""
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        self._release()
        seed = secrets.randbelow(SEEDS) if seed is None else seed % SEEDS
        split = self._splits[(options or {}).get("split", "train")]
        cache_key = (self._client.base_url, self._client.env_type, split)
        ids = _task_ids.get(cache_key) or self._wait(self._client.task_ids(split))
        if not ids:
            raise EnvironmentFault(f"{cache_key[0]}: the service has no task in {split!r}")
        _task_ids[cache_key] = ids
        # The same seed gives the same task, while the id is unique: a killed run may have left
        # instances with the service.
        task_id = ids[derive(seed, "task") % len(ids)]
        instance_id = f"{task_id}-{secrets.token_hex(8)}"
        params = {"seed": seed, "env_action_preference": self._action_preference}
        # Set before the call: the service may have received a /create that fails here.
        self._instance_id = instance_id
        observation = self._wait(self._client.create(task_id, instance_id, params))
        self._instance_id = observation.instance_id(instance_id)
        self.observation = observation.text
        return self.observation, _kept_info(observation)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        message = {"role": "assistant", "content": action}
        observation = self._wait(self._client.step(self._instance_id, message))
        self.observation = observation.text
        truncated = observation.is_terminated and observation.info.get("truncated") is True
        terminated = observation.is_terminated and not truncated
        return self.observation, observation.reward, terminated, truncated, _kept_info(observation)

    def render(self) -> str:
        return self.observation

    def close(self) -> None:
        """Releases the instance and closes the client. An unreachable service keeps the instance
        until it drops it."""
        if self._loop.is_closed():
            return
        try:
            self._release()
        finally:
            self._wait(self._client.close())
            self._loop.close()

    def _release(self) -> None:
        if self._instance_id:
            instance_id, self._instance_id = self._instance_id, ""
            self._wait(self._client.release(instance_id))

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(call)


def _kept_info(observation: Observation) -> Info:
    return {name: observation.info[name] for name in PASSED if name in observation.info}
