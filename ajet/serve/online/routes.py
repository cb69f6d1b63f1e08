"""The routes below /ajet/v1 that a served model has in addition to the model API. Bodies are JSON,
and errors have OpenAI's form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request

from ajet.core.judge.verdict import JudgeFault
from ajet.core.workflow.gateway.request import Fields, RequestError
from ajet.serve.exchange.routes import PREFIX, endpoint
from ajet.serve.online.feedback import FeedbackRequest, judged, read_feedback
from ajet.serve.online.log import Feedback

if TYPE_CHECKING:
    from ajet.serve.online.gateway import OnlineGateway, OnlineServices


def add_routes(app: FastAPI, gateway: OnlineGateway) -> None:
    routes = OnlineRoutes(gateway.services)
    app.add_route(f"{PREFIX}/feedback", endpoint(gateway, routes.feedback), methods=["POST"])
    app.add_route(f"{PREFIX}/status", endpoint(gateway, routes.status), methods=["GET"])


class OnlineRoutes:
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
