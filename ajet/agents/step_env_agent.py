"""`step_env_agent`: plays an environment, each step shown alone, with a window on earlier ones.

    system, user: steps 3 and 4, what is seen now  ->  reply 5        a timeline a step (GiGPO)

The window has `history_length` steps, each with what was seen and done. Not covered: a memory that
the model writes itself.
"""

from __future__ import annotations

from ajet.agents.environment_play import EnvironmentAgent, Messages, Move, Play

TEMPLATE = """\
Your last steps:
{history}

Step {turn_idx} of {max_steps}. You see:
{observation}

Reply with your next action as {answer_form}."""
NO_HISTORY = "none"
NO_ACTION = "no action"


class StepEnvAgent(EnvironmentAgent):
    """One object plays one episode."""

    name = "step_env_agent"
    template = TEMPLATE

    def prompt(self, play: Play) -> Messages:
        return [*play.system(), play.user(_history(play))]


def _history(play: Play) -> str:
    """The last steps, each with its number."""
    length = play.setting.custom.history_length
    first = max(0, len(play.moves) - length)
    shown = [_shown(n, play.moves[n]) for n in range(first, len(play.moves))]
    return "\n".join(shown) or NO_HISTORY


def _shown(index: int, move: Move) -> str:
    action = NO_ACTION if move.action is None else move.action
    return f"Step {index + 1}: {move.observation}\nYou did: {action}"
