"""API keys: each is for one agent of one episode, and is revoked when the episode ends.

    key = ring.issue(grant)     "sk-ajet-" and 128 random bits
    ring.find(key)              the grant; None for a forged, foreign or revoked key
    ring.revoke(key)            at the end of the episode

The ring stores digests and compares them in constant time, so a dump of it shows no key.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ajet.core.text.redaction import PREFIX

LOOKUP_BYTES = 8
"""The beginning of a digest, by which it is looked up; then the whole digest is compared."""

if TYPE_CHECKING:
    from ajet.core.trajectory.base_recorder import BaseRecorder


@dataclass(eq=False)
class Grant:
    """The recorder and the agent that calls with a key belong to.

    `stored_conversations` holds the conversations of the Responses API by the id of their response.
    `response_numbers` counts the responses, for their ids. With `shows_version` a reply has the
    version of the policy that sampled it, if its form has a field for that."""

    recorder: BaseRecorder
    agent_name: str = "default"
    target_tag: str = "default"
    stored_conversations: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    response_numbers: Iterator[int] = field(default_factory=itertools.count)
    shows_version: bool = False

    def response_id(self, prefix: str) -> str:
        return f"{prefix}{self.recorder.episode_id}-{self.agent_name}-{next(self.response_numbers)}"


class KeyRing:
    """Holds all valid keys. Safe to use from several threads."""

    def __init__(self) -> None:
        self._grants: dict[bytes, tuple[bytes, Grant]] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def issue(self, grant: Grant) -> str:
        key = PREFIX + secrets.token_hex(16)
        digest = _digest(key)
        self._grants[digest[:LOOKUP_BYTES]] = digest, grant
        return key

    def find(self, key: str) -> Grant | None:
        digest = _digest(key)
        expected, grant = self._grants.get(digest[:LOOKUP_BYTES], (b"", None))
        return grant if hmac.compare_digest(expected, digest) else None

    def revoke(self, key: str) -> None:
        self._grants.pop(_digest(key)[:LOOKUP_BYTES], None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
