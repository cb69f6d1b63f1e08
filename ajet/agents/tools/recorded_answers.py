"""Holds the answers of tools that stand in the place of calls, while an episode is run again.

    call_0000_0  ->  "Oslo: 20 C"       as the model was told it: cut to its length

The ids of calls count the calls of the model, so they are the same when it gets the same replies.
`ajet fork` puts them here (backbones/debug/forking.py). A tool that gives a reward keeps a state
for its episode, so it is called again all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

answers_of_episodes: dict[str, Mapping[str, str]] = {}
"""Maps the id of a running episode to its recorded answers, by the id of the call."""


def answers_in(messages: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the tools' answers in a conversation by the ids of their calls."""
    return {
        str(each["tool_call_id"]): each["content"]
        for each in messages
        if each.get("role") == "tool"
        and each.get("tool_call_id") is not None
        and isinstance(each.get("content"), str)
    }
