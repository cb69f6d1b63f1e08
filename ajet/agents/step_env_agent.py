"""`step_env_agent` plays an environment; each prompt shows one step and a window of earlier ones.

    system, user: steps 3 and 4, what is seen now  ->  reply 5        a timeline a step (GiGPO)

The window has `history_length` steps, each with its observation and action.
"""

from __future__ import annotations

from ajet.agents.environment_agent import EnvironmentAgent, EnvironmentEpisode, Messages

TEMPLATE = """\
Your last steps:
{history}

Step {turn_idx} of {max_steps}. You see:
{observation}

Reply with your next action as {answer_form}."""
NO_HISTORY = "none"
NO_ACTION = "no action"


class StepEnvAgent(EnvironmentAgent):
    """Plays one episode; each prompt shows the current step and a window of earlier ones."""

    name = "step_env_agent"
    reads = ()
    template = TEMPLATE

    def prompt(self, episode: EnvironmentEpisode) -> Messages:
        return [*episode.system(), episode.user(_history(episode))]


def _history(episode: EnvironmentEpisode) -> str:
    first = max(0, len(episode.transitions) - episode.settings.custom.history_length)
    texts: list[str] = []
    for number, transition in enumerate(episode.transitions[first:], first + 1):
        action = NO_ACTION if transition.action is None else transition.action
        texts.append(f"Step {number}: {transition.observation}\nYou did: {action}")
    return "\n".join(texts) or NO_HISTORY
