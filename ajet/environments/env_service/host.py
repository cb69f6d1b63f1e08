"""The environment of an episode: `workflow_task.gym_env`, None for tasks without one.

obs, reward, terminate, info = await env.step({"role": "assistant", "content": "look"})
score = await env.evaluate()
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from loguru import logger

from ajet.core.config.task_reader import TaskReaderConfig
from ajet.core.errors import BlockingCall, EnvironmentFault, KeyMissing
from ajet.core.task.workflow_task import WorkflowTask, open_environments
from ajet.environments.env_service.client import BACKOFF_S, TIMEOUT_S, EnvServiceClient, Observation

Result = TypeVar("Result")
Step = tuple[str, float, bool, dict[str, Any]]
SECTION = "ajet.task_reader.env_service"
RELEASE_TIMEOUT_S = 10.0
UNCONFIRMED_RELEASE_TIMEOUT_S = 1.0
_releasing: set[asyncio.Task[None]] = set()
"""Holds releases that outlive the episode's cancelled task, until they are done."""


class GymEnv:
    """One episode's instance. `state` holds the messages that it showed last. `WorkflowTask` is
    data, so the live object is in `open_environments`, by the episode's id, while the episode runs.

    A workflow whose `execute` is a plain `def` runs in a thread and makes the calls without
    `await`; so may an async one with its own event loop in a thread. On the run's event loop they
    need it: a call that blocked there would block all other episodes, so using its result without
    `await` raises `BlockingCall`, after which the episode runs again in a thread."""

    def __init__(
        self, client: EnvServiceClient, episode_id: str, instance_id: str, first: Observation
    ) -> None:
        self.instance_id = instance_id
        self.state = first.state
        self._client = client
        self._episode_id = episode_id
        self._loop = asyncio.get_running_loop()
        assert episode_id not in open_environments, f"two live episodes are named {episode_id}"
        open_environments[episode_id] = self

    def step(self, action: str | Mapping[str, Any], params: Mapping[str, Any] | None = None) -> Any:
        """Does one action: text, or a message whose content is text or a list of content blocks.
        The result, ``(observation, reward, terminate, info)``, must be awaited on the event
        loop."""
        use = "obs, reward, terminate, info = await gym_env.step(action)"
        return self._call(self._step(_as_message(action), params), use)

    def evaluate(
        self, episode_uuid: str | None = None, params: Mapping[str, Any] | None = None
    ) -> Any:
        """Returns the score so far. AgentJet's judges pass the episode's id, which is not needed
        here."""
        work = self._while_open(self._client.evaluate, params)
        return self._call(work, "score = await gym_env.evaluate()")

    def get_info(self, params: Mapping[str, Any] | None = None) -> Any:
        work = self._while_open(self._client.info, params)
        return self._call(work, "info = await gym_env.get_info()")

    def reset(self) -> None:
        raise RuntimeError("gym_env.reset() does not exist: an instance lives for one episode")

    def close(self) -> None:
        """Makes all later calls fail."""
        open_environments.pop(self._episode_id, None)

    async def _step(self, action: dict[str, Any], params: Mapping[str, Any] | None) -> Step:
        observation = await self._while_open(self._client.step, action, params)
        self.state = observation.state
        return observation.text, observation.reward, observation.is_terminated, observation.info

    async def _while_open(
        self, request: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any
    ) -> Result:
        if open_environments.get(self._episode_id) is not self:
            raise EnvironmentFault(f"episode {self._episode_id} is over, its environment released")
        return await request(self.instance_id, *arguments)

    def _call(self, work: Coroutine[Any, Any, Result], use: str) -> Any:
        """Returns an awaitable on the episode's event loop, and the result itself in a thread.
        `use` shows the correct call."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        if running is self._loop:
            return NeedsAwait(work, use)
        return MayBeAwaited(asyncio.run_coroutine_threadsafe(work, self._loop))


class Unfinished(Generic[Result]):
    """A call that has not been awaited; it supports the operations of its result."""

    def result(self) -> Any:  # untyped, because not every result has every operation
        """Returns the result, or raises `BlockingCall` if waiting for it would block others."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter(self.result())

    def __getitem__(self, index: Any) -> Any:
        return self.result()[index]

    def __bool__(self) -> bool:
        return bool(self.result())

    def __float__(self) -> float:
        return float(self.result())

    def __lt__(self, other: Any) -> bool:
        return self.result() < other

    def __le__(self, other: Any) -> bool:
        return self.result() <= other

    def __gt__(self, other: Any) -> bool:
        return self.result() > other

    def __ge__(self, other: Any) -> bool:
        return self.result() >= other

    def __mul__(self, other: Any) -> Any:
        return self.result() * other

    __rmul__ = __mul__


class NeedsAwait(Unfinished[Result]):
    """A call on the run's event loop. `use` shows how it is written."""

    def __init__(self, work: Coroutine[Any, Any, Result], use: str) -> None:
        self._work = work
        self._use = use

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._work.__await__()

    def result(self) -> Result:
        self._work.close()
        call = self._use.rpartition("await ")[2].partition("(")[0]
        raise BlockingCall(
            f"{call}() is used without await, which would block all other episodes: write "
            f"`{self._use}`, or make execute a plain def"
        )


class MayBeAwaited(Unfinished[Result]):
    """A call from a thread that runs another event loop; it may wait with or without `await`."""

    def __init__(self, future: Future[Result]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, Result]:
        return asyncio.wrap_future(self._future).__await__()

    def result(self) -> Result:
        return self._future.result()


def _as_message(action: str | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the action as a chat message whose content is text; blocks without text are
    dropped."""
    if isinstance(action, str):
        return {"role": "assistant", "content": action}
    if not isinstance(action, Mapping) or "content" not in action:
        raise TypeError(
            f"gym_env.step(): the action is a {type(action).__name__}; give text, or a message "
            "such as {'role': 'assistant', 'content': 'look'}"
        )
    content = action["content"]
    if isinstance(content, list):
        blocks = [block for block in content if isinstance(block, Mapping)]
        content = "".join(str(block["text"]) for block in blocks if "text" in block)
    content = "" if content is None else str(content)
    return {"role": "assistant", **action, "content": content}


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
    """The instance of one episode. It is released at the end of the `async with`, however the
    episode ends; a failed release is logged once."""

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
