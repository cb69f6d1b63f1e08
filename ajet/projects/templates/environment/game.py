"""The environment: a number is to be found, and each guess is answered with what is still possible.

It draws its own instances and gives the rewards, so there are no tasks and no judge. The agent that
plays it is ajet's own.
"""

import random
from typing import Any


class Game:
    """Text in, text out, with the signatures of Gymnasium. One object plays one episode."""

    def __init__(self, highest: int = 20, guesses: int = 5) -> None:
        self.highest, self.guesses = highest, guesses

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Begins an instance, which the seed decides; the agents of a group get the same seed."""
        # YOURS (1 of 3): what is drawn for an episode: a map, a customer, a broken program.
        self.number = random.Random(seed).randint(1, self.highest)
        self.low, self.high, self.left = 1, self.highest, self.guesses
        return self._shown(), {"state_key": self._shown()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Returns what is seen then, the reward, and whether the game is over, or was cut."""
        text = action.strip()
        if not text.isdecimal() or not 1 <= int(text) <= self.highest:
            return self._shown(), 0.0, False, False, self._info(False, is_valid=False)
        guess = int(text)
        self.left -= 1
        is_possible = self.low <= guess <= self.high
        if guess < self.number:
            self.low = max(self.low, guess + 1)
        elif guess > self.number:
            self.high = min(self.high, guess - 1)
        is_found = guess == self.number
        # YOURS (2 of 3): the reward of a step. An episode's is the sum over its steps.
        reward = 1.0 if is_found else 0.0 if is_possible else -0.2
        is_over = is_found or self.left == 0
        shown = "The game is over." if is_over else self._shown()
        return shown, reward, is_over, False, self._info(is_found, is_valid=True)

    def sample_random_action(self) -> str:
        """Returns any action, for `ajet inspect env`, which plays without a model."""
        return str(random.randint(1, self.highest))

    def _shown(self) -> str:
        # YOURS (3 of 3): what the agent sees. The embedded model knows this text alone.
        guesses = "guess" if self.left == 1 else "guesses"
        return f"Between {self.low} and {self.high}. {self.left} {guesses} left."

    def _info(self, is_found: bool, *, is_valid: bool) -> dict[str, Any]:
        """Returns numbers for the record, and the state in which the next action is taken."""
        metrics = {"success": is_found, "action_is_valid": is_valid}
        return {"metrics": metrics, "state_key": self._shown()}
