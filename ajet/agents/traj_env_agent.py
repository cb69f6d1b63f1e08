"""`traj_env_agent` plays an environment with the whole conversation in its prompt (StarPO)."""

from __future__ import annotations

from typing import Any

from ajet.agents.environment_agent import EnvironmentAgent, EnvironmentEpisode, Messages

TEMPLATE = """\
{observation}

Step {turn_idx} of {max_steps}. Reply with your next action as {answer_form}."""


class TrajEnvAgent(EnvironmentAgent):
    """Plays one episode of an environment; each prompt is the whole conversation so far, which is
    only appended to: one timeline an episode."""

    name = "traj_env_agent"
    template = TEMPLATE
    keeps_conversation = True

    def __init__(self) -> None:
        self._messages: Messages = []

    def prompt(self, episode: EnvironmentEpisode) -> Messages:
        if not self._messages:
            self._messages += episode.system()
        self._messages.append(episode.user())
        return self._messages

    def on_reply(self, reply: dict[str, Any]) -> None:
        self._messages.append(reply)
