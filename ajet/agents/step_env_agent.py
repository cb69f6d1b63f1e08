"""`step_env_agent` plays an environment; each prompt shows one step and a window of earlier ones.

    system, user: steps 3 and 4, what is seen now  ->  reply 5        a timeline a step (GiGPO)

The window has `history_length` steps, each with its observation and action. Not covered: a memory
that the model writes itself.
"""

from __future__ import annotations

from ajet.agents.environment_agent import EnvironmentAgent, EnvironmentEpisode, Messages, Transition

TEMPLATE = """\
Your last steps:
{history}

Step {turn_idx} of {max_steps}. You see:
{observation}

Reply with your next action as {answer_form}."""
NO_HISTORY = "none"
NO_ACTION = "no action"


class StepEnvAgent(EnvironmentAgent):
    """Plays one episode of an environment; each prompt shows the current step and a window of
    earlier ones."""

    name = "step_env_agent"
    reads = ()
    template = TEMPLATE

    def prompt(self, episode: EnvironmentEpisode) -> Messages:
        return [*episode.system(), episode.user(_history(episode))]


def _history(episode: EnvironmentEpisode) -> str:
    """Returns the last steps as text, each with its number."""
    length = episode.settings.custom.history_length
    first = max(0, len(episode.transitions) - length)
    step_texts = [
        _step_text(n, episode.transitions[n]) for n in range(first, len(episode.transitions))
    ]
    return "\n".join(step_texts) or NO_HISTORY


def _step_text(index: int, transition: Transition) -> str:
    action = NO_ACTION if transition.action is None else transition.action
    return f"Step {index + 1}: {transition.observation}\nYou did: {action}"
