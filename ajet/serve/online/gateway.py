"""The gateway of a served model: each ordinary request belongs to a session, and feedback comes
later. Replies name their session, their version and, with several adapters, their adapter in
headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from loguru import logger

from ajet.core.errors import ConfigError
from ajet.core.judge.verdict import JudgeFault
from ajet.core.user_code.importing import run_user_code
from ajet.core.workflow.gateway.gateway import HOST, NO_HEADERS, GatewayResponse, error_response
from ajet.core.workflow.gateway.request import Fields, RequestError
from ajet.serve.exchange.keyed_gateway import KeyedGateway
from ajet.serve.exchange.routes import PREFIX, endpoint
from ajet.serve.online.feedback import FeedbackRequest, NextMessage, judged, read_feedback
from ajet.serve.online.log import Feedback, SessionLog
from ajet.serve.online.models import ServedModels
from ajet.serve.online.sessions import SESSION_HEADER, SessionGrant, Sessions

if TYPE_CHECKING:
    from ajet.core.judge.judge import BaseJudge
    from ajet.core.workflow.gateway.dialects import Dialect
    from ajet.core.workflow.gateway.keys import Grant
    from ajet.core.workflow.gateway.request import ChatRequest

VERSION_HEADER, ADAPTER_HEADER = "x-ajet-version", "x-ajet-adapter"


@dataclass(frozen=True)
class OnlineServices:
    """What requests need. `models` are the versions of each adapter, or of the model, under an
    empty name. `on_feedback` is called after each feedback that counts; with `keeps_version` a
    session stays with the version of its first reply."""

    log: SessionLog
    models: Mapping[str, ServedModels]
    sessions: Sessions
    judge: BaseJudge | None = None
    judge_timeout_s: float | None = None
    next_message: NextMessage | None = None
    keeps_version: bool = True
    on_feedback: Callable[[], None] = lambda: None


class OnlineGateway(KeyedGateway):
    """Serves the model to whoever has the server's key."""

    def __init__(
        self, services: OnlineServices, key: str, host: str = HOST, port: int | None = None
    ) -> None:
        super().__init__(key, host, port)
        self.services = services
        self.models = [name for name in services.models if name] or self.models

    def add_routes(self, app: FastAPI) -> None:
        routes = OnlineRoutes(self.services)
        feedback, status = endpoint(self, routes.feedback), endpoint(self, routes.status)
        app.add_route(f"{PREFIX}/feedback", feedback, methods=["POST"])
        app.add_route(f"{PREFIX}/status", status, methods=["GET"])

    def grant(self, key: str, headers: Mapping[str, str] = NO_HEADERS) -> Grant:
        """Returns the session that the headers name, or a new one; answers 401 for another key."""
        if not self.is_server_key(key):
            raise RequestError(
                "unknown key: this needs the server's key", status=401, code="invalid_api_key"
            )
        return self.services.sessions.begin(headers)

    async def respond(self, dialect: Dialect, grant: Grant, body: bytes) -> GatewayResponse:
        """Answers a request as a call of its session, by one version from beginning to end."""
        assert isinstance(grant, SessionGrant)
        services = self.services
        try:
            session, request = services.sessions.find(dialect, grant, body)
        except RequestError as error:
            return error_response(dialect, error)
        if request is None:  # unreadable: the common handler says why
            return await super().respond(dialect, session, body)
        assert session.adapter is not None
        self._rate_by_next_message(session, request)
        # Counted before the first await, so that the session is not dropped from memory meanwhile.
        session.num_in_flight += 1
        try:
            version = session.version if services.keeps_version else None
            with services.models[session.adapter].answering(version) as model:
                response = await super().respond(dialect, session, body)
        finally:
            session.num_in_flight -= 1
        names = {SESSION_HEADER: session.session, VERSION_HEADER: str(model.version)}
        if session.adapter:
            names[ADAPTER_HEADER] = session.adapter
        return replace(response, more_headers=names)

    def _rate_by_next_message(self, session: SessionGrant, request: ChatRequest) -> None:
        """Has the user's function judge the session's last reply by the message that follows it."""
        judge = self.services.next_message
        last: dict[str, Any] = request.messages[-1]
        if judge is None or not session.recorder.turns or last["role"] != "user":
            return
        try:
            reward = run_user_code(lambda: judge(request.messages), "ajet.serve.learn.next_message")
        except ConfigError as error:  # a failing function must not fail the request
            logger.warning(error.with_code())
            return
        if reward is not None:
            self.services.log.add_feedback(
                Feedback(session.session, reward, "next_message", session.client)
            )
            self.services.on_feedback()


class OnlineRoutes:
    """The routes below /ajet/v1 that a served model has in addition to the model API. Bodies are
    JSON, and errors have OpenAI's form."""

    def __init__(self, services: OnlineServices) -> None:
        self._services = services

    async def feedback(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        """Answers once the feedback is in the log: it is recorded, repeated (its feedback_id was
        there before) or late (a round has taken its session)."""
        message = read_feedback(fields)
        reward = message.reward if message.reward is not None else await self._judged(message)
        source = "judge" if message.reward is None else "client"
        feedback = Feedback(
            message.session, reward, source, message.client, message.feedback_id, message.metadata
        )
        try:
            receipt = self._services.log.add_feedback(feedback)
        except KeyError:
            raise _no_session(message) from None
        if receipt == "recorded":
            self._services.on_feedback()
        return 200, {"status": receipt, "session": message.session, "reward": reward}

    async def _judged(self, message: FeedbackRequest) -> float:
        services = self._services
        turns = list(services.log.turns(message.session).values())
        if not turns:
            raise _no_session(message)
        judge, timeout_s = services.judge, services.judge_timeout_s
        try:
            return await judged(judge, message.session, turns[-1], message.metadata, timeout_s)
        except JudgeFault as fault:
            raise RequestError(str(fault), status=502, code="judge_failed") from fault

    async def status(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        services = self._services
        by_adapter = {
            name: {"version": held.current.version, "versions": held.versions}
            for name, held in services.models.items()
        }
        rounds = [
            {"number": round_.number, "base": round_.base, "state": round_.state}
            | ({"adapter": round_.adapter} if round_.adapter else {})
            | dict(round_.report)
            for round_ in services.log.rounds()
        ]
        totals = services.log.counts() | {"rounds": rounds}
        if "" in by_adapter:
            return 200, by_adapter[""] | totals
        adapters = {name: held | services.log.counts(name) for name, held in by_adapter.items()}
        return 200, {"adapters": adapters} | totals


def _no_session(message: FeedbackRequest) -> RequestError:
    return RequestError(f"no session {message.session} with a reply", status=404, code="no_session")
