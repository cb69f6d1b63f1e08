"""The routes of a served model beside the model's own, below /ajet/v1. Bodies are JSON.

    POST feedback    response or session, reward (null asks the judge), client, feedback_id,
                     metadata
    GET  status      the versions that are held, counts of the log, rounds with their decisions;
                     of several adapters, versions and counts of each

Feedback is answered with 200 once it is in the log: `status` is recorded, repeated (its
feedback_id was there before) or late (a round has taken its session). Errors have OpenAI's form:

    400 a field is wrong      401 another key      404 no such session      502 the judge failed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request

from ajet.core.judge.verdict import JudgeFault
from ajet.core.workflow.gateway.request import Fields, RequestError
from ajet.exchange.routes import PREFIX, endpoint
from ajet.online.feedback import FeedbackRequest, judged, read_feedback
from ajet.online.log import Feedback

if TYPE_CHECKING:
    from ajet.online.gateway import OnlineGateway, OnlineParts


def add_routes(app: FastAPI, gateway: OnlineGateway) -> None:
    """Adds the routes to the gateway's app."""
    routes = OnlineRoutes(gateway.parts)
    app.add_route(f"{PREFIX}/feedback", endpoint(gateway, routes.feedback), methods=["POST"])
    app.add_route(f"{PREFIX}/status", endpoint(gateway, routes.status), methods=["GET"])


class OnlineRoutes:
    """Answers the requests, each with a status and a JSON object."""

    def __init__(self, parts: OnlineParts) -> None:
        self._parts = parts

    async def feedback(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        asked = read_feedback(fields)
        reward = asked.reward if asked.reward is not None else await self._judged(asked)
        feedback = Feedback(
            asked.session,
            reward,
            "judge" if asked.reward is None else "client",
            asked.client,
            asked.feedback_id,
            asked.metadata,
        )
        try:
            receipt = self._parts.log.add_feedback(feedback)
        except KeyError:
            raise _no_session(asked) from None
        if receipt == "recorded":
            self._parts.on_feedback()
        return 200, {"status": receipt, "session": asked.session, "reward": reward}

    async def _judged(self, asked: FeedbackRequest) -> float:
        turns = list(self._parts.log.turns(asked.session).values())
        if not turns:
            raise _no_session(asked)
        try:
            return await judged(
                self._parts.judge,
                asked.session,
                turns[-1],
                asked.metadata,
                self._parts.judge_timeout_s,
            )
        except JudgeFault as fault:
            raise RequestError(str(fault), status=502, code="judge_failed") from fault

    async def status(self, request: Request, fields: Fields) -> tuple[int, dict[str, Any]]:
        parts = self._parts
        of_each = {
            name: {"version": held.current.version, "versions": held.versions}
            for name, held in parts.models.items()
        }
        rounds = [
            {"number": each.number, "base": each.base, "state": each.state}
            | ({"adapter": each.adapter} if each.adapter else {})
            | dict(each.report)
            for each in parts.log.rounds()
        ]
        of_all = parts.log.counts() | {"rounds": rounds}
        if "" in of_each:
            return 200, of_each[""] | of_all
        adapters = {name: held | parts.log.counts(name) for name, held in of_each.items()}
        return 200, {"adapters": adapters} | of_all


def _no_session(asked: FeedbackRequest) -> RequestError:
    return RequestError(f"no session {asked.session} with a reply", status=404, code="no_session")
