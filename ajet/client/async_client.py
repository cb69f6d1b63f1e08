"""The client of `ajet serve` for asyncio; client.py documents the methods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Self

import httpx

from ajet.client import protocol
from ajet.client.client import BEGIN_OPTIONS, PATIENCE_S
from ajet.client.protocol import (
    UNREACHABLE,
    Answer,
    EpisodeAccess,
    EpisodeData,
    EpisodeOver,
    Operation,
    Outcome,
    Request,
    Result,
    RunOver,
    ServerUnreachable,
    answer_of,
)


class AsyncEpisodeClient:
    """Begins episodes at a server, and asks for its state."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        client: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.url, key = protocol.server_address(url, key)
        self.client = client or protocol.default_client()
        self.patience_s = patience_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None),
        )

    async def begin(
        self,
        *,
        task: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        agents: Sequence[str] = ("default",),
        mode: str | None = None,
        max_groups: int | None = None,
    ) -> AsyncEpisode:
        """Waits for an episode and begins it."""
        operation = protocol.begin(
            task=task,
            task_id=task_id,
            agents=agents,
            mode=mode,
            client=self.client,
            max_groups=max_groups,
            patience_s=self.patience_s,
        )
        return AsyncEpisode(self, await self.do(operation))

    def episode(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Outcome]]:
        """Decorates an ``async def`` that runs an episode."""

        @wraps(function)
        async def run_one(*arguments: Any, **options: Any) -> Outcome:
            chosen = {name: options.pop(name) for name in BEGIN_OPTIONS if name in options}
            async with await self.begin(**chosen) as episode:
                result = await function(episode, *arguments, **options)
                return await episode.end(**protocol.end_arguments(result))

        return run_one

    async def run(self, run_one: Callable[[], Awaitable[object]], parallel: int = 1) -> int:
        """Calls a decorated function repeatedly, `parallel` at a time, until the run is over."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_task(run_one)) for _ in range(parallel)]
        return sum(task.result() for task in tasks)

    async def tasks(self) -> list[dict[str, Any]]:
        """Returns the tasks whose episodes are offered now."""
        return (await self.do(protocol.simple("GET", f"{protocol.PREFIX}/tasks")))["tasks"]

    async def status(self) -> dict[str, Any]:
        """Returns counts of episodes, and whether the run is still going."""
        return await self.do(protocol.simple("GET", f"{protocol.PREFIX}/status"))

    async def start(self, config: str | Mapping[str, Any]) -> dict[str, Any]:
        """Starts a run of this config at a server that waits for one (`ajet serve --swarm`), and
        returns its status with the config's `notices`; `config` is a YAML's text or its mapping.
        Raises `ServeError`: 400 for a config that cannot run, 409 if a run is in progress."""
        return await self.do(protocol.start(config))

    async def stop(self, *, now: bool = False) -> dict[str, Any]:
        """Stops the run after its step, or `now`. The same config continues it."""
        return await self.do(protocol.simple("POST", f"{protocol.PREFIX}/run/stop", {"now": now}))

    async def pause(self) -> dict[str, Any]:
        """Makes the server stop handing out episodes."""
        return await self.do(protocol.simple("POST", f"{protocol.PREFIX}/pause", {}))

    async def resume(self) -> dict[str, Any]:
        """Makes the server hand out episodes again."""
        return await self.do(protocol.simple("POST", f"{protocol.PREFIX}/resume", {}))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def do(self, operation: Operation[Result]) -> Result:
        try:
            step = next(operation)
            while True:
                if isinstance(step, Request):
                    step = operation.send(await self._answer(step))
                else:
                    await asyncio.sleep(step)
                    step = next(operation)
        except StopIteration as done:
            return done.value

    async def _answer(self, request: Request) -> Answer:
        try:
            answer = await self._http.request(
                request.method, request.path, json=request.body, timeout=request.timeout_s
            )
            return answer_of(answer.status_code, answer.content)
        except httpx.TransportError as error:
            return Answer(UNREACHABLE, {"error": {"message": f"{type(error).__name__}: {error}"}})

    async def _run_task(self, run_one: Callable[[], Awaitable[object]]) -> int:
        number = 0
        while True:
            try:
                await run_one()
                number += 1
            except EpisodeOver:
                continue
            except RunOver:
                return number


class AsyncEpisode(EpisodeAccess):
    """An episode that has begun. ``async with`` sends heartbeats, and aborts at an exception."""

    def __init__(self, client: AsyncEpisodeClient, data: EpisodeData) -> None:
        super().__init__(data, client.url)
        self._client = client
        self._is_over = False
        self._beating: asyncio.Task[None] | None = None

    async def end(
        self,
        reward: float | None = None,
        *,
        is_success: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> Outcome:
        """Ends the episode, and returns the outcome once it is judged and stored."""
        self._is_over = True
        operation = protocol.end(
            self.data.id,
            reward=reward,
            is_success=is_success,
            metadata=metadata,
            metrics=metrics,
            agent_rewards=agent_rewards,
            patience_s=self._client.patience_s,
        )
        return await self._client.do(operation)

    async def outcome(self, wait_s: float = 0.0) -> Outcome:
        """Returns the current outcome; with `wait_s`, up to 300, waits until it is final: trained,
        or not going to be."""
        operation = protocol.outcome(self.data.id, wait_s, self._client.patience_s)
        return await self._client.do(operation)

    async def abort(self, reason: str = "no reason given") -> None:
        """Gives the episode up."""
        self._is_over = True
        await self._client.do(protocol.abort(self.data.id, reason))

    async def heartbeat(self) -> None:
        """Tells the server that this client is alive."""
        await self._client.do(protocol.heartbeat(self.data.id))

    async def __aenter__(self) -> Self:
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: object, trace: object
    ) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._is_over:
            return
        try:
            await self.abort(protocol.abort_reason(error_type, error))
        except (EpisodeOver, ServerUnreachable):
            return  # over, or the server is unreachable: its deadline ends the episode

    async def _beat(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self.data.heartbeat_s / 3)
            try:
                await self.heartbeat()
            except EpisodeOver:
                return
            except ServerUnreachable:
                continue
