"""The sessions of a served model: which conversation a request belongs to. Whoever has the server's
key may name any session.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ajet.core.inference.chat_template import normalised
from ajet.core.text.plain_value import plain_text
from ajet.core.trajectory.plain_trajectory import MAX_NAME_LENGTH
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.dialects import Dialect
from ajet.core.workflow.gateway.gateway import parse_json_object
from ajet.core.workflow.gateway.keys import Grant
from ajet.core.workflow.gateway.request import ChatRequest, RequestError
from ajet.serve.online.log import SessionLog

SESSION_HEADER, CLIENT_HEADER = "x-ajet-session", "x-ajet-client"
MAX_OPEN = 10_000
"""How many sessions are kept in memory; others are read from the log again."""
_ID = re.compile(r"s-[0-9a-f]{16}")


@dataclass(eq=False)
class SessionGrant(Grant):
    """Grants the calls of one session. `is_named` says that a request has named it; `version` is
    that of its first reply since it was opened. `adapter` is that of its first request: None before
    it, and empty where there are no adapters."""

    client: str = ""
    adapter: str | None = None
    is_named: bool = False
    version: int | None = None
    num_in_flight: int = 0

    @property
    def session(self) -> str:
        return self.recorder.episode_id


MakeRecorder = Callable[[str, "SessionObserver"], EpisodeRecorder]
"""Makes the recorder of a session from its id and its observer."""


class Sessions:
    """Finds and keeps sessions. All methods are called on the server's event loop. A session that
    is not in memory, after a restart or because there are too many, is read from the log and
    continues with its recorded ids."""

    def __init__(
        self, log: SessionLog, make_recorder: MakeRecorder, adapters: Sequence[str] = ()
    ) -> None:
        """Where there are `adapters`, a request's model names one of them."""
        self._log = log
        self._make_recorder = make_recorder
        self._adapters = adapters
        self._open: OrderedDict[str, SessionGrant] = OrderedDict()

    def begin(self, headers: Mapping[str, str]) -> SessionGrant:
        name = headers.get(SESSION_HEADER, "")
        client = plain_text(headers.get(CLIENT_HEADER, ""), MAX_NAME_LENGTH)
        return self._named(name, client) if name else self._new(f"s-{secrets.token_hex(8)}", client)

    def find(
        self, dialect: Dialect, begun: SessionGrant, body: bytes
    ) -> tuple[SessionGrant, ChatRequest | None]:
        """Returns the session of a request, which is `begun` unless another one fits, and the
        request; None for one that cannot be parsed, which the gateway refuses. Raises
        `RequestError` for an unknown adapter, or one that is not the session's.

        The session is the one that the header names, or the body's metadata.session_id; else that
        of the response which the request continues (previous_response_id); else, of the same client
        and adapter, the newest whose conversation, up to a reply, begins the request's. The client
        is a header, or the body's `user`."""
        grant, request = begun, None
        # A request that cannot be parsed still has to be answered in the name of a session.
        with suppress(RequestError):
            fields = parse_json_object(body)
            grant = self._by_fields(fields, begun)
            request = dialect.parse(fields, grant)
        if request is None:
            return grant, None
        adapter = self._adapter_of(request)
        if not grant.is_named:
            for key in reversed(conversation_keys(request.messages, adapter)):  # longest first
                if session := self._log.session_at(grant.client, key):
                    grant = self._named(session, grant.client)
                    break
        # Agents of a session have the name of its adapter, so that its calls get these weights.
        if grant.adapter is None:
            grant.adapter = adapter
            grant.agent_name = adapter or grant.agent_name
        if grant.adapter != adapter:
            raise RequestError(
                f"session {grant.session} is of adapter {grant.adapter}, and the request's model "
                f"is {adapter}: name another session",
                param="model",
            )
        self._keep(grant)
        return grant, request

    def _adapter_of(self, request: ChatRequest) -> str:
        if not self._adapters:
            return ""
        if request.model not in self._adapters:
            raise RequestError(
                f"model {request.model[:60]!r} is not an adapter: there are "
                f"{', '.join(self._adapters)}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return request.model

    def _by_fields(self, fields: Mapping[str, Any], begun: SessionGrant) -> SessionGrant:
        if not begun.client and isinstance(user := fields.get("user"), str):
            begun.client = plain_text(user, MAX_NAME_LENGTH)
        if begun.is_named:
            return begun
        metadata = fields.get("metadata")
        name = metadata.get("session_id") if isinstance(metadata, Mapping) else None
        continued = fields.get("previous_response_id")
        if isinstance(name, str) and name:
            return self._named(name, begun.client)
        if isinstance(continued, str) and (identifier := session_id(continued)):
            return self._named(identifier, begun.client)
        return begun

    def _named(self, name: str, client: str) -> SessionGrant:
        identifier = session_of(name)
        grant = self._open.get(identifier)
        if grant is None:
            grant = self._new(identifier, client)
            if turns := self._log.turns(identifier):
                assert isinstance(grant.recorder, EpisodeRecorder)
                grant.recorder.restore(turns)
                grant.adapter = next(iter(turns.values())).adapter
                grant.agent_name = grant.adapter or grant.agent_name
                grant.response_numbers = itertools.count(1 + max(turns))
        grant.is_named = True
        return grant

    def _new(self, identifier: str, client: str) -> SessionGrant:
        observer = SessionObserver(self._log)
        grant = SessionGrant(
            self._make_recorder(identifier, observer), client=client, shows_version=True
        )
        observer.grant = grant
        return grant

    def _keep(self, grant: SessionGrant) -> None:
        self._open[grant.session] = grant
        self._open.move_to_end(grant.session)
        # Least recently used first; a session with a call under way must stay.
        idle = (name for name, grant in self._open.items() if not grant.num_in_flight)
        for name in list(itertools.islice(idle, max(0, len(self._open) - MAX_OPEN))):
            del self._open[name]


class SessionObserver:
    """Stores each turn of a session when it is recorded, before its client is answered."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self.grant: SessionGrant

    def called(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> None:
        """Does nothing: a call without a reply is not logged."""

    def answered(self, number: int, turn: Turn) -> None:
        grant = self.grant
        key = conversation_keys([*turn.messages, turn.reply], turn.adapter)[-1]
        self._log.add_turn(grant.session, grant.client, number, turn, key)
        if grant.version is None:
            grant.version = turn.completion.policy_version


def session_id(name: str) -> str | None:
    """Returns the id of a session, given itself or the id of one of its responses."""
    match = _ID.search(name)
    return None if match is None else match[0]


def session_of(name: str) -> str:
    """Returns the id of the session that a client calls by this name, or by its id."""
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=8)
    return session_id(name) or f"s-{digest.hexdigest()}"


def conversation_keys(messages: Sequence[Mapping[str, Any]], adapter: str = "") -> list[str]:
    """Returns a key for each reply of a conversation with an adapter: a hash of all messages up to
    it. White space around a text and ids of tool calls are ignored, as when token ids are
    reused."""
    digest, keys = blake2b(adapter.encode(), digest_size=12), []
    for message in messages:
        plain = normalised(message)
        content = plain["content"]
        calls = [call["function"] for call in plain.get("tool_calls", ())]
        fields = [
            plain.get("role"),
            content.strip() if isinstance(content, str) else content,
            calls,
        ]
        digest.update(json.dumps(fields, sort_keys=True, default=str).encode())
        if plain.get("role") == "assistant":
            keys.append(digest.copy().hexdigest())
    return keys
