"""A game of guessing a number: with the best policy each guess halves the possible numbers.

There are no splits: the agent does not see the number before it finds it, so it cannot memorize
instances.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from ajet.core.environment.environment import Environment, Info

WHOLE_NUMBER = re.compile(r"(?<![\d.])-?\d{1,9}(?!\.?\d)", re.ASCII)


class GuessNumber(Environment):
    """A game of guessing a number. With `show_bounds` an observation says which numbers are still
    possible; without, it has only the hint for the last guess, and the agent needs a memory."""

    is_quick: ClassVar[bool] = True

    def __init__(
        self, low: int = 1, high: int = 16, max_guesses: int = 4, show_bounds: bool = True
    ) -> None:
        if low > high:
            raise ValueError(f"guess_number: low {low} is above high {high}")
        if max_guesses < 1:
            raise ValueError(f"guess_number: max_guesses is {max_guesses}; it takes at least 1")
        self.low, self.high = low, high
        self.max_guesses = max_guesses
        self.show_bounds = show_bounds
        self.instruction = (
            f"Find a whole number from {low} to {high} in {max_guesses} guesses. Write one number: "
            "you are told whether the number to find is higher or lower."
        )
        self.number, self.bounds, self.num_left = low, (low, high), 0
        self.observation = ""

    def optimal_success(self) -> float:
        # With N numbers and k guesses the best policy finds 2^k - 1 of them.
        return min(1.0, (2**self.max_guesses - 1) / (self.high - self.low + 1))

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        self.number = random.Random(seed).randint(self.low, self.high)
        self.bounds, self.num_left = (self.low, self.high), self.max_guesses
        self.observation = self._observation_text("")
        return self.observation, {"state_key": self._state_key()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        numbers = WHOLE_NUMBER.findall(action)  # the last one is the guess
        guess = int(numbers[-1]) if numbers else self.low - 1
        if not self.num_left or not self.low <= guess <= self.high:  # no guess is used up
            is_over = not self.num_left
            form = f"Write one number from {self.low} to {self.high}."
            text = "The game is over." if is_over else self._observation_text(form)
            return text, 0.0, is_over, False, self._info(False, is_valid=False)
        self.num_left -= 1
        is_found = guess == self.number
        low, high = self.bounds
        if guess < self.number:
            low = max(low, guess + 1)
        elif guess > self.number:
            high = min(high, guess - 1)
        self.bounds = (low, high)
        self.num_left *= not is_found
        if is_found:
            self.observation = f"{guess} is right."
        elif not self.num_left:
            self.observation = f"No guesses left. It was {self.number}."
        else:
            hint = f"{guess} is too {'high' if guess > self.number else 'low'}."
            self.observation = self._observation_text("" if self.show_bounds else hint)
        info = self._info(is_found, is_valid=True)
        return self.observation, float(is_found), not self.num_left, False, info

    def render(self) -> str:
        return self.observation

    def sample_action(self, rng: random.Random) -> str:
        return str(rng.randint(*self.bounds))

    def oracle_action(self) -> str:
        return str(sum(self.bounds) // 2)

    def _observation_text(self, message: str) -> str:
        is_first = self.num_left == self.max_guesses
        bounds = "Between {} and {}.".format(*self.bounds) if self.show_bounds or is_first else ""
        guesses = f"{self.num_left} guess{'es' if self.num_left > 1 else ''} left."
        return " ".join(part for part in (message, bounds, guesses) if part)

    def _info(self, is_found: bool, *, is_valid: bool) -> Info:
        metrics = {"success": is_found, "action_is_valid": is_valid}
        return {"metrics": metrics, "state_key": self._state_key()}

    def _state_key(self) -> str:
        return "{}-{}, {} left".format(*self.bounds, self.num_left)
