"""The base class of simulated users, which answer when the agent replies without a tool call."""

from __future__ import annotations

from typing import Any

METHODS = ("start_interaction", "generate_response", "calculate_score", "finalize_interaction")


class BaseInteraction:
    """The base class of simulated users. Subclasses write `generate_response`; methods may be plain
    `def`. A class with these four methods need not derive from this one; the last two may take no
    arguments, as in verl's base class, whose names these are.

    One object serves the whole run, so store the state of an episode by `instance_id`. A user that
    asks a model uses a client of its choice: those calls are not part of the episode and are not
    trained."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "user")

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> Any:
        """Called when an episode begins, with the row's `extra_info.interaction_kwargs`."""

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float | None, dict[str, Any]]:
        """Returns whether the conversation is over, the user's text, a reward for this turn or
        None, and metadata."""
        raise NotImplementedError(f"{type(self).__name__} does not define generate_response()")

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float | None:
        """Returns the reward of the episode for this conversation, or None for no reward."""

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Called when the episode is over, however it ended."""
