"""The conversation between a client and `ajet serve`, without input and output. Each operation is a
generator: it yields requests to make and seconds to sleep, is sent the answers, and returns the
result. client.py runs it with threads, async_client.py with asyncio.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Result = TypeVar("Result")

PREFIX = "/ajet/v1"
URL_VARIABLE, KEY_VARIABLE = "AJET_SERVE_URL", "AJET_SERVE_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8182"
WAIT_S, MARGIN_S, AGAIN_S = 30.0, 30.0, 1.0
START_S = 300.0
"""How long a server may check a config, in seconds: it imports what the config names."""
UNREACHABLE = 0
"""Stands for the HTTP status if there was no answer."""


class ServeError(Exception):
    """The server answered with an error. `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RunOver(ServeError):
    """The run has ended: there are no more episodes."""


class EpisodeOver(ServeError):
    """The episode is over without its client, for example by its deadline."""


class ServerUnreachable(ServeError):
    """The server could not be reached for `patience_s`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to make. `timeout_s` is for the whole answer."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    timeout_s: float = MARGIN_S


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: its HTTP status, or `UNREACHABLE`, and its JSON."""

    status: int
    value: dict[str, Any]

    @property
    def message(self) -> str:
        error = self.value.get("error")
        return str(error.get("message")) if isinstance(error, dict) else f"status {self.status}"

    @property
    def code(self) -> str | None:
        error = self.value.get("error")
        return error.get("code") if isinstance(error, dict) else None


def answer_of(status: int, content: bytes) -> Answer:
    """Reads the answer to a request. Content that is not a JSON object comes from a proxy or
    another server: then the request counts as not having reached `ajet serve`, unless the status
    says that it is the client's mistake."""
    try:
        value = json.loads(content) if content else {}
    except ValueError:
        value = None
    if isinstance(value, dict):
        return Answer(status, value)
    message = f"status {status}, and no JSON object: the answer is not that of `ajet serve`"
    is_mistake = 400 <= status < 500
    return Answer(status if is_mistake else UNREACHABLE, {"error": {"message": message}})


Operation = Generator[Request | float, Answer, Result]
"""Yields a request, whose answer it is sent, or seconds to sleep."""


@dataclass(frozen=True, slots=True)
class EpisodeData:
    """The server's data about an episode that has begun.

    `base_url` and `api_key` are for OpenAI's clients, `api_keys` has one for each agent. `task` has
    task_id, main_query, init_messages and metadata (the task's row); `query_parts` are the parts
    of a question with images. `mode` is train or eval.
    """

    id: str
    episode_id: str
    group_id: str
    rollout_index: int
    step: int
    mode: str
    seed: int
    task: dict[str, Any]
    base_url: str
    api_key: str
    api_keys: dict[str, str]
    model: str
    timeout_s: float | None
    deadline_unix_s: float | None
    heartbeat_s: float


class EpisodeAccess:
    """An episode's data, for the code that runs it; `url` is how its client reaches the server."""

    def __init__(self, data: EpisodeData, url: str) -> None:
        self.data = data
        self._url = url

    @property
    def task(self) -> dict[str, Any]:
        return self.data.task

    @property
    def base_url(self) -> str:
        """The address for OpenAI's clients: that of the server as this client reaches it."""
        return f"{self._url}/v1"

    @property
    def api_key(self) -> str:
        return self.data.api_key

    @property
    def api_keys(self) -> dict[str, str]:
        return self.data.api_keys


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended. `status` is ok, or what went wrong; "pending" until it is judged.
    `state` is running, judging, waiting (for its step), trained (by step `trained_step`, whose
    weights are that version), not_trained (because of `left_out`) or retried (by another
    client)."""

    status: str
    episode_id: str | None = None
    reward: float | None = None
    is_success: bool | None = None
    error: str | None = None
    left_out: str | None = None
    state: str = "judging"
    trained_step: int | None = None


def server_address(url: str | None, key: str | None) -> tuple[str, str]:
    """Returns the address and the key, by default those of the environment variables."""
    url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    key = key or os.environ.get(KEY_VARIABLE)
    if not key:
        raise ValueError(f"no key: pass key=…, or set {KEY_VARIABLE}; `ajet serve` prints it")
    return url.rstrip("/"), key


def default_client() -> str:
    """Returns the name of a client that has no other: its machine and its process."""
    return f"{socket.gethostname()}-{os.getpid()}"


def begin(*, patience_s: float, **options: Any) -> Operation[EpisodeData]:
    """Begins an episode with the `options` of `EpisodeClient.begin`, as soon as one matches."""
    # The id of the request makes a repeated request get the same episode.
    body = {**options, "wait_s": WAIT_S, "request_id": uuid.uuid4().hex}
    request = Request("POST", f"{PREFIX}/episodes", body, WAIT_S + MARGIN_S * 3)
    answer = yield from _insisted(request, lambda answer: answer.status == 503, patience_s)
    if answer.status == 410:
        raise RunOver(410, answer.message)
    if answer.status != 201:
        raise ServeError(answer.status, answer.message)
    return EpisodeData(**_fields_of(EpisodeData, answer))


RESULT = ("reward", "is_success", "metadata", "metrics", "agent_rewards")
"""The fields of the result with which a client ends an episode."""


def end(claim_id: str, *, patience_s: float, **result: Any) -> Operation[Outcome]:
    """Ends an episode with the fields of `RESULT`, and waits until it is judged and stored."""
    body = {**result, "wait_s": WAIT_S}
    # With a judge of groups the answer says "group": other episodes must end first, perhaps in this
    # thread, so waiting here would be a deadlock.
    request = Request("POST", _path(claim_id, "end"), body, WAIT_S + MARGIN_S)
    answer = yield from _insisted(
        request,
        lambda answer: answer.status == 202 and answer.value.get("awaits") != "group",
        patience_s,
    )
    return _outcome_of(answer)


def outcome(claim_id: str, wait_s: float, patience_s: float) -> Operation[Outcome]:
    """Asks for the current outcome of an episode."""
    path = f"{PREFIX}/episodes/{claim_id}?wait_s={wait_s:g}"
    request = Request("GET", path, timeout_s=wait_s + MARGIN_S)
    return _outcome_of((yield from _insisted(request, lambda answer: False, patience_s)))


def _outcome_of(answer: Answer) -> Outcome:
    if answer.status == 410:
        exception = RunOver if answer.code == "run_over" else EpisodeOver
        raise exception(410, answer.message)
    if answer.status not in (200, 202):
        raise ServeError(answer.status, answer.message)
    return Outcome(**_fields_of(Outcome, answer))


def abort(claim_id: str, reason: str) -> Operation[dict[str, Any]]:
    return simple("POST", _path(claim_id, "abort"), {"reason": reason[:1000]})


def heartbeat(claim_id: str) -> Operation[dict[str, Any]]:
    return simple("POST", _path(claim_id, "heartbeat"), {})


def start(config: str | Mapping[str, Any]) -> Operation[dict[str, Any]]:
    return simple("POST", f"{PREFIX}/run", {"config": config}, START_S)


def simple(
    method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = MARGIN_S
) -> Operation[dict[str, Any]]:
    answer = yield Request(method, path, body, timeout_s)
    if answer.status == 410:
        raise EpisodeOver(410, answer.message)
    if answer.status == UNREACHABLE:
        raise ServerUnreachable(answer.status, answer.message)
    if answer.status >= 400:
        raise ServeError(answer.status, answer.message)
    return answer.value


def end_arguments(result: object) -> dict[str, Any]:
    """Returns the arguments of `end` for the result of a decorated function: a reward, None (the
    judge decides), or a mapping with fields of `RESULT`."""
    if isinstance(result, Mapping):
        unknown = set(result) - set(RESULT)
        if unknown:
            raise TypeError(
                f"an episode's result has {', '.join(RESULT)}, "
                f"not {', '.join(sorted(map(str, unknown)))}"
            )
        return dict(result)
    if result is None or isinstance(result, int | float):
        return {"reward": result}
    raise TypeError(
        f"an episode's function returns a reward, None or a mapping, not {type(result).__name__}"
    )


def abort_reason(error_type: type[BaseException] | None, error: object) -> str:
    """Returns why a ``with`` block gives its episode up: the exception that left it, or none."""
    return "it returned without an end" if error_type is None else f"{error_type.__name__}: {error}"


def _insisted(
    request: Request, is_again: Callable[[Answer], bool], patience_s: float
) -> Operation[Answer]:
    """Repeats a request while `is_again` holds, and for `patience_s` while the server cannot be
    reached, for example because it is restarting; returns the first other answer. That is safe: a
    repeated begin gets the same episode, a repeated end the same outcome."""
    left_s = patience_s
    while True:
        answer = yield request
        if answer.status == UNREACHABLE:
            if left_s <= 0:
                raise ServerUnreachable(UNREACHABLE, f"the server is not reached: {answer.message}")
            left_s -= AGAIN_S
            yield AGAIN_S
        elif is_again(answer):
            left_s = patience_s
        else:
            return answer


def _fields_of(record: type, answer: Answer) -> dict[str, Any]:
    names = {field.name for field in fields(record)}
    return {name: value for name, value in answer.value.items() if name in names}


def _path(claim_id: str, action: str) -> str:
    return f"{PREFIX}/episodes/{claim_id}/{action}"
