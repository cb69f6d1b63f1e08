"""`step_env_agent` plays an environment; a prompt shows one step and a window of earlier ones."""

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
    """Plays one episode; each prompt shows the current step and the last `history_length` ones, so
    each step is a timeline (GiGPO)."""

    name = "step_env_agent"
    reads = ()
    template = TEMPLATE

    def prompt(self, episode: EnvironmentEpisode) -> Messages:
        first = max(0, len(episode.transitions) - episode.settings.custom.history_length)
        texts: list[str] = []
        for number, transition in enumerate(episode.transitions[first:], first + 1):
            action = NO_ACTION if transition.action is None else transition.action
            texts.append(f"Step {number}: {transition.observation}\nYou did: {action}")
        return [*episode.system(), episode.user("\n".join(texts) or NO_HISTORY)]
