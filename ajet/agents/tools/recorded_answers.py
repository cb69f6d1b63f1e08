"""Holds recorded answers of tools, which replace calls while an episode is run again.

    call_0000_0  ->  "Oslo: 20 C"       as the model saw it: truncated

The ids of calls count the calls of the model, so they are the same when it gets the same replies.
`ajet fork` fills this (backbones/debug/forking.py). A tool that gives a reward keeps state for its
episode, so it is called again anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

answers_of_episodes: dict[str, Mapping[str, str]] = {}
"""Maps the id of a running episode to its recorded answers, by the id of the call."""


def answers_in(messages: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the tools' answers in a conversation by the ids of their calls."""
    return {
        str(message["tool_call_id"]): message["content"]
        for message in messages
        if message.get("role") == "tool"
        and message.get("tool_call_id") is not None
        and isinstance(message.get("content"), str)
    }
