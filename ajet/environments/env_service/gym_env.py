"""The environment of an episode in a workflow: `workflow_task.gym_env`, None for tasks without one.

obs, reward, terminate, info = await env.step({"role": "assistant", "content": "look"})
score = await env.evaluate()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from ajet.core.errors import BlockingCall, EnvironmentFault
from ajet.core.task.workflow_task import open_environments
from ajet.environments.env_service.client import EnvServiceClient, Observation

Result = TypeVar("Result")
Step = tuple[str, float, bool, dict[str, Any]]


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
