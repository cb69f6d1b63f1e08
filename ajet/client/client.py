"""The client of `ajet serve` for threads, which may share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import wraps
from typing import Any, Self

import httpx

from ajet.client import protocol
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

PATIENCE_S = 60.0


class EpisodeClient:
    """Begins episodes at a server, and asks for its state.

    with client.begin() as episode:         # waits for one; an exception gives it up
        agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key)
        episode.end(reward=1.0)             # returns once it is judged and stored
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        client: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`url` and `key` default to AJET_SERVE_URL and AJET_SERVE_API_KEY. `client` is this
        client's name in `ajet.serve.shares` and in `ajet watch`, by default its machine and
        process. `patience_s` is how long to keep retrying a server that cannot be reached."""
        self.url, key = protocol.server_address(url, key)
        self.client = client or protocol.default_client()
        self.patience_s = patience_s
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None),
        )

    def begin(
        self,
        *,
        task: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        agents: Sequence[str] = ("default",),
        mode: str | None = None,
        max_groups: int | None = None,
    ) -> Episode:
        """Waits for an episode and begins it. `task` is a task of the client's: task_id, and any of
        main_query, init_messages and metadata; `task_id` chooses one of the run's. `max_groups` is
        how many groups of a step this client begins with its tasks. Raises `RunOver` when
        the run has ended."""
        operation = protocol.begin(
            task=task,
            task_id=task_id,
            agents=agents,
            mode=mode,
            client=self.client,
            max_groups=max_groups,
            patience_s=self.patience_s,
        )
        return Episode(self, self.do(operation))

    def episode(self, function: Callable[..., Any]) -> Callable[..., Outcome]:
        """Decorates a function that runs an episode. It returns a reward, None, or a mapping with
        arguments of `end`. Calling it begins and ends one episode; the arguments `task`, `task_id`,
        `agents`, `mode` and `max_groups` are those of `begin`."""

        @wraps(function)
        def run_one(*arguments: Any, **options: Any) -> Outcome:
            chosen = {name: options.pop(name) for name in BEGIN_OPTIONS if name in options}
            with self.begin(**chosen) as episode:
                result = function(episode, *arguments, **options)
                return episode.end(**protocol.end_arguments(result))

        return run_one

    def run(self, run_one: Callable[[], object], parallel: int = 1) -> int:
        """Calls a decorated function repeatedly, in `parallel` threads, until the run is over.
        Returns the number of episodes. An episode that is over without its client does not stop it;
        any other exception does, after the episodes under way."""
        with ThreadPoolExecutor(parallel) as pool:
            # Set by the first thread that ends, for whatever reason, so that the others end too.
            is_stopped = threading.Event()
            counts = [pool.submit(self._run_thread, run_one, is_stopped) for _ in range(parallel)]
            wait(counts)
        return sum(count.result() for count in counts)

    def tasks(self) -> list[dict[str, Any]]:
        """Returns the tasks whose episodes are offered now."""
        return self.do(protocol.simple("GET", f"{protocol.PREFIX}/tasks"))["tasks"]

    def status(self) -> dict[str, Any]:
        """Returns counts of episodes, and whether the run is still going."""
        return self.do(protocol.simple("GET", f"{protocol.PREFIX}/status"))

    def start(self, config: str | Mapping[str, Any]) -> dict[str, Any]:
        """Starts a run of this config at a server that waits for one (`ajet serve --swarm`), and
        returns its status with the config's `notices`; `config` is a YAML's text or its mapping.
        Raises `ServeError`: 400 for a config that cannot run, 409 if a run is in progress."""
        return self.do(protocol.start(config))

    def stop(self, *, now: bool = False) -> dict[str, Any]:
        """Stops the run after its step, or `now`. The same config continues it."""
        return self.do(protocol.simple("POST", f"{protocol.PREFIX}/run/stop", {"now": now}))

    def pause(self) -> dict[str, Any]:
        """Makes the server stop handing out episodes."""
        return self.do(protocol.simple("POST", f"{protocol.PREFIX}/pause", {}))

    def resume(self) -> dict[str, Any]:
        """Makes the server hand out episodes again."""
        return self.do(protocol.simple("POST", f"{protocol.PREFIX}/resume", {}))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, operation: Operation[Result]) -> Result:
        """Makes the requests of an operation, and returns its result."""
        try:
            step = next(operation)
            while True:
                if isinstance(step, Request):
                    step = operation.send(self._answer(step))
                else:
                    time.sleep(step)
                    step = next(operation)
        except StopIteration as done:
            return done.value

    def _answer(self, request: Request) -> Answer:
        try:
            answer = self._http.request(
                request.method, request.path, json=request.body, timeout=request.timeout_s
            )
            return answer_of(answer.status_code, answer.content)
        except httpx.TransportError as error:
            return Answer(UNREACHABLE, {"error": {"message": f"{type(error).__name__}: {error}"}})

    def _run_thread(self, run_one: Callable[[], object], is_stopped: threading.Event) -> int:
        number = 0
        try:
            while not is_stopped.is_set():
                try:
                    run_one()
                    number += 1
                except EpisodeOver:
                    continue
        except RunOver:
            return number
        finally:
            is_stopped.set()
        return number


BEGIN_OPTIONS = ("task", "task_id", "agents", "mode", "max_groups")


class Episode(EpisodeAccess):
    """An episode that has begun; its fields are those of `EpisodeData`. Within ``with`` a thread
    sends heartbeats, and an exception gives the episode up."""

    def __init__(self, client: EpisodeClient, data: EpisodeData) -> None:
        super().__init__(data, client.url)
        self._client = client
        self._is_over = threading.Event()
        self._beating: threading.Thread | None = None

    def end(
        self,
        reward: float | None = None,
        *,
        is_success: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> Outcome:
        """Ends the episode, and returns the outcome once it is judged and stored. Without a reward
        the judge decides it. `agent_rewards` are for agents that earn different rewards, by name.
        Raises `EpisodeOver` if it was too late."""
        self._is_over.set()
        operation = protocol.end(
            self.data.id,
            reward=reward,
            is_success=is_success,
            metadata=metadata,
            metrics=metrics,
            agent_rewards=agent_rewards,
            patience_s=self._client.patience_s,
        )
        return self._client.do(operation)

    def outcome(self, wait_s: float = 0.0) -> Outcome:
        """Returns the current outcome; with `wait_s`, up to 300, waits until it is final: trained,
        or not going to be."""
        operation = protocol.outcome(self.data.id, wait_s, self._client.patience_s)
        return self._client.do(operation)

    def abort(self, reason: str = "no reason given") -> None:
        """Gives the episode up: it counts as failed, and the run's failure policy decides."""
        self._is_over.set()
        self._client.do(protocol.abort(self.data.id, reason))

    def heartbeat(self) -> None:
        """Tells the server that this client is alive, if neither ``with`` nor a model call does."""
        self._client.do(protocol.heartbeat(self.data.id))

    def __enter__(self) -> Self:
        self._beating = threading.Thread(target=self._beat, name="ajet-heartbeat", daemon=True)
        self._beating.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: object, trace: object
    ) -> None:
        if self._is_over.is_set():
            return
        try:
            self.abort(protocol.abort_reason(error_type, error))
        except (EpisodeOver, ServerUnreachable):
            return  # over, or the server is unreachable: its deadline ends the episode

    def _beat(self) -> None:
        while not self._is_over.wait(self.data.heartbeat_s / 3):
            try:
                self.heartbeat()
            except EpisodeOver:
                return
            except ServerUnreachable:
                continue
