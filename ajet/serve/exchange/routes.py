"""The HTTP API of the exchange, below /ajet/v1 (docs/episodes_over_http.md). Bodies and answers are
JSON, and errors have OpenAI's form. `end` is answered with 200 once the episode is judged and
stored, so that a server that is killed does not ask for it again, and with 202 if that takes longer
than `wait_s`: the client sends it again. Both may be repeated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import yaml
from fastapi import FastAPI, Request
from fastapi.responses import Response

from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowOutput
from ajet.core.text.plain_value import plain_text, without_surrogates
from ajet.core.trajectory.plain_trajectory import MAX_NAME_LENGTH
from ajet.core.workflow.gateway.dialects.dialect import openai_error
from ajet.core.workflow.gateway.gateway import GatewayResponse, parse_json_object
from ajet.core.workflow.gateway.request import Fields, RequestError, object_list
from ajet.core.workflow.gateway.server import (
    body_of,
    key_of,
    response_unless_disconnected,
    to_response,
)
from ajet.serve.exchange.exchange import (
    Abort,
    BeginRequest,
    Claim,
    EpisodeExchange,
    described,
    result_within,
    task_as_json,
)
from ajet.serve.exchange.keyed_gateway import KeyedGateway, check_origin

if TYPE_CHECKING:
    from ajet.core.workflow.gateway.gateway import Address
    from ajet.serve.exchange.gateway import ExchangeGateway, SwarmGateway

PREFIX = "/ajet/v1"
WAIT_S, MAX_WAIT_S = 30.0, 300.0
ACCESS_S = 60.0
"""How long the run may take to make a claimed episode's keys, in seconds."""
MAX_AGENTS, MAX_ID_LENGTH = 64, 1000

Handler = Callable[[Request, Fields], Awaitable[tuple[int, dict[str, Any]]]]


def add_routes(app: FastAPI, gateway: ExchangeGateway) -> None:
    routes = ExchangeRoutes(gateway)
    for method, path, handler in (
        ("POST", "/episodes", routes.begin),
        ("POST", "/episodes/{claim_id}/end", routes.end),
        ("POST", "/episodes/{claim_id}/abort", routes.abort),
        ("POST", "/episodes/{claim_id}/heartbeat", routes.heartbeat),
        ("POST", "/pause", routes.pause),
        ("POST", "/resume", routes.resume),
        ("GET", "/episodes/{claim_id}", routes.episode),
        ("GET", "/tasks", routes.tasks),
        ("GET", "/status", routes.status),
    ):
        app.add_route(PREFIX + path, endpoint(gateway, handler), methods=[method])


def yaml_of(value: str | dict[str, Any]) -> str:
    """Returns the text of a config. Raises `RequestError` for one that is no text of a file."""
    try:
        text = value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False)
        text.encode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise RequestError(f"config: {type(error).__name__}", param="config") from error
    return text


def add_run_routes(app: FastAPI, gateway: SwarmGateway) -> None:
    """Adds the routes of a server whose clients configure its runs (`ajet serve --swarm`)."""

    async def start(request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        value = fields.take("config", (str, dict))
        fields.refuse_rest()
        if value is None:
            raise RequestError("config is missing: the YAML of the run", param="config")
        notices = await asyncio.to_thread(lambda: gateway.runs.start(yaml_of(value)))
        return 202, {**gateway.status(), "notices": list(notices)}

    async def stop(request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        now = fields.take("now", bool, False)
        fields.refuse_rest()
        gateway.runs.stop(now=now)
        return 200, gateway.status()

    for path, handler in (("/run", start), ("/run/stop", stop)):
        app.add_route(PREFIX + path, endpoint(gateway, handler), methods=["POST"])


class ExchangeRoutes:
    def __init__(self, gateway: ExchangeGateway) -> None:
        self._gateway = gateway

    @property
    def _exchange(self) -> EpisodeExchange:
        """The exchange of the run in progress: a server may have one run after another."""
        return self._gateway.exchange

    async def begin(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        wait_s = _checked_wait_s(fields.take("wait_s", (int, float), WAIT_S))
        begin_request = _begin_request(fields)
        fields.refuse_rest()
        future = self._exchange.begin(begin_request)
        try:
            claim = await result_within(future, wait_s)
        finally:
            # Without a claim by now, the request must not match a later offer. It may just have
            # matched one.
            self._exchange.withdraw(future)
        if claim is None and future.done():
            claim = future.result()
        if claim is None:
            raise RequestError(
                f"no episode was offered within {wait_s:g} s (the model may be in an update, or "
                "the run paused): retry",
                status=503,
                error_type="server_error",
                code="none_offered",
            )
        addresses = await result_within(claim.access, ACCESS_S)
        if addresses is None:
            raise RequestError("the run did not begin it: retry", status=503, code="stopped")
        return 201, self._answer(request, claim, addresses)

    def _answer(
        self, request: Request, claim: Claim, addresses: Mapping[str, Address]
    ) -> dict[str, Any]:
        """Returns what a client needs. The base URL is this server's as the client reaches it."""
        timeout_s = self._exchange.episode_timeout_s
        keys = {agent: address.api_key for agent, address in addresses.items()}
        return {
            "id": claim.claim_id,
            "episode_id": claim.episode_id,
            **described(claim),
            "rollout_index": claim.plan.rollout_index,
            "task": task_as_json(claim.task or claim.plan.task),
            "base_url": f"{request.url.scheme}://{request.url.netloc}/v1",
            "api_key": next(iter(keys.values())),
            "api_keys": keys,
            "model": next(iter(addresses.values())).model,
            "timeout_s": timeout_s,
            "deadline_unix_s": None if timeout_s is None else claim.claimed_unix_s + timeout_s,
            "heartbeat_s": self._exchange.heartbeat_s,
        }

    async def end(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        wait_s = _checked_wait_s(fields.take("wait_s", (int, float), WAIT_S))
        reward = fields.take("reward", (int, float, bool))
        output = WorkflowOutput(
            reward=reward,
            is_success=fields.take("is_success", bool),
            metadata=fields.take("metadata", dict, {}),
            log_metrics=fields.take("metrics", dict, {}),
            agent_rewards=fields.take("agent_rewards", dict, {}),
        )
        fields.refuse_rest()
        ended = self._exchange.end(request.path_params["claim_id"], output)
        outcome = await result_within(ended, wait_s)
        if outcome is None:
            awaits = "group" if self._exchange.waits_for_group and reward is None else "judge"
            return 202, {"status": "pending", "awaits": awaits}
        return 200, asdict(outcome)

    async def episode(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        claim_id = request.path_params["claim_id"]
        try:
            wait_s = _checked_wait_s(float(request.query_params.get("wait_s", 0)))
        except ValueError:
            raise RequestError("wait_s must be a number", param="wait_s") from None
        if wait_s:
            await result_within(self._exchange.settled(claim_id), wait_s)
        return 200, asdict(self._exchange.outcome(claim_id))

    async def abort(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        reason = plain_text(fields.take("reason", str, "no reason given"), MAX_ID_LENGTH)
        fields.refuse_rest()
        self._exchange.end(request.path_params["claim_id"], Abort(reason))
        return 200, {"status": "aborted"}

    async def heartbeat(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        fields.refuse_rest()
        self._exchange.seen(request.path_params["claim_id"])
        return 200, {"status": "running"}

    async def pause(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        fields.refuse_rest()
        self._exchange.set_paused(True)
        return 200, self._gateway.status()

    async def resume(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        fields.refuse_rest()
        self._exchange.set_paused(False)
        return 200, self._gateway.status()

    async def tasks(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        return 200, {"tasks": self._exchange.tasks()}

    async def status(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        return 200, self._gateway.status()


def endpoint(gateway: KeyedGateway, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Returns the endpoint that answers with the result of `handler`; the key must be the server's
    (`Authorization: Bearer …`), and pages of web sites are refused."""

    async def answer(request: Request, body: bytes) -> GatewayResponse:
        try:
            fields = Fields(parse_json_object(body) if body.strip() else {})
            status, value = await handler(request, fields)
        except RequestError as error:
            return _refusal(error)
        return GatewayResponse(status, json.dumps(value, default=str).encode())

    async def handle(request: Request) -> Response:
        try:
            check_origin(request, on_loopback=gateway.is_on_loopback)
            if not gateway.is_server_key(key_of(request)):
                raise RequestError(
                    "unknown key: this needs the server's key, which `ajet serve` prints or takes "
                    "from AJET_SERVE_API_KEY",
                    status=401,
                    code="invalid_api_key",
                )
            body = await body_of(request)
        except RequestError as error:
            return to_response(_refusal(error))
        # A client that disconnects while it waits must not take an episode that it will never
        # see.
        answering = asyncio.ensure_future(answer(request, body))
        return await response_unless_disconnected(request, answering)

    return handle


def _refusal(error: RequestError) -> GatewayResponse:
    return GatewayResponse(error.status, json.dumps(openai_error(error)).encode())


def _begin_request(fields: Fields) -> BeginRequest:
    agents = fields.take("agents", list, ["default"])
    names = [agent for agent in agents if isinstance(agent, str) and agent]
    if not names or len(names) != len(agents) or len(names) > MAX_AGENTS:
        raise RequestError(f"agents must be 1 to {MAX_AGENTS} names", param="agents")
    if max(map(len, names)) > MAX_NAME_LENGTH:
        raise RequestError(f"a name has {MAX_NAME_LENGTH} characters at most", param="agents")
    mode = fields.take("mode", str)
    if mode is not None and mode not in get_args(Mode):
        raise RequestError(f"mode must be one of {', '.join(get_args(Mode))}", param="mode")
    task = fields.take("task", dict)
    max_groups = fields.take("max_groups", int)
    if max_groups is not None and max_groups < 1:
        raise RequestError("max_groups must be at least 1", param="max_groups")
    return BeginRequest(
        agents=tuple(map(without_surrogates, names)),
        mode=mode,
        task_id=_short(fields, "task_id"),
        task=None if task is None else _own_task(task),
        request_id=_short(fields, "request_id"),
        client=_short(fields, "client") or "",
        max_groups=max_groups,
    )


def _own_task(value: dict[str, Any]) -> Task:
    fields = Fields(value)
    task_id = _short(fields, "task_id")
    if not task_id:
        raise RequestError("task.task_id is missing: its episodes make a group", param="task")
    task = Task(
        task_id=task_id,
        main_query=without_surrogates(fields.take("main_query", str, "")),
        init_messages=object_list(fields.take("init_messages", list, []), "init_messages"),
        metadata=fields.take("metadata", dict, {}),
        query_parts=object_list(fields.take("query_parts", list, []), "query_parts"),
    )
    fields.refuse_rest()
    return task


def _short(fields: Fields, name: str) -> str | None:
    value = fields.take(name, str)
    if value is not None and len(value) > MAX_ID_LENGTH:
        raise RequestError(f"{name} has {MAX_ID_LENGTH} characters at most", param=name)
    return None if value is None else without_surrogates(value)


def _checked_wait_s(wait_s: float) -> float:
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise RequestError(f"wait_s must be 0 to {MAX_WAIT_S:g}", param="wait_s")
    return float(wait_s)
