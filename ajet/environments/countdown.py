"""The game Countdown: make a number out of others, each used exactly once.

"Numbers: 7 3. Target: 21."     agent: 7*3     reward 1
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ajet.core.environment.environment import Environment, Info
from ajet.environments.randomness import belongs_to

OPERATORS = "+-*/"
MAX_ACTION_LENGTH = 200
MAX_NUMBERS = 6
DRAWS_PER_OPERATORS = 400
MAX_DRAWS = 500_000
_TYPED = str.maketrans({"×": "*", "÷": "/", "−": "-", "·": "*"})
_CLAIM = re.compile(r"=\s*-?\d+\s*$")
_ALLOWED = re.compile(r"[\d+\-*/() ]+", re.ASCII)


class NotAnExpression(ValueError):
    """The text is not an arithmetic expression with + - * / on whole numbers."""


class Countdown(Environment):
    """The game Countdown. Intermediate results are whole numbers: a division with a remainder is a
    miss. `format_reward` is the reward of an expression that uses every number once and misses the
    target."""

    is_quick: ClassVar[bool] = True

    def __init__(
        self,
        num_numbers: int = 2,
        max_number: int = 10,
        min_number: int = 1,
        max_target: int | None = None,
        max_tries: int = 1,
        format_reward: float = 0.0,
    ) -> None:
        if not 2 <= num_numbers <= MAX_NUMBERS:
            raise ValueError(f"countdown: num_numbers is {num_numbers}; it is 2 to {MAX_NUMBERS}")
        if not 1 <= min_number < max_number:
            raise ValueError(
                f"countdown: min_number {min_number} and max_number {max_number}: "
                "they are at least 1, the second larger"
            )
        if max_tries < 1:
            raise ValueError(f"countdown: max_tries is {max_tries}; it takes at least 1")
        self.num_numbers, self.max_target = num_numbers, max_target
        self.min_number, self.max_number = min_number, max_number
        self.max_tries, self.format_reward = max_tries, format_reward
        self.instruction = (
            "Make the target out of the numbers, each used exactly once, with + - * / and "
            f"parentheses. Write an expression such as {'7*3' if num_numbers == 2 else '(7-2)*3'}."
        )
        self.numbers: tuple[int, ...] = ()
        self.target, self.num_left, self.solution = 0, 0, ""
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        rng = random.Random(seed)
        self.solution, numbers, self.target = self._draw(rng, (options or {}).get("split"))
        self.numbers = tuple(rng.sample(numbers, len(numbers)))
        self.num_left = self.max_tries
        self.observation = self._observation_text("")
        return self.observation, {"state_key": self._state_key()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if not self.num_left:
            return "The game is over.", 0.0, True, False, self._info(is_valid=False)
        try:
            tree = expression(action)
        except NotAnExpression:
            message = "Write an expression such as 7*3."
            return self._observation_text(message), 0.0, False, False, self._info(is_valid=False)
        self.num_left -= 1
        uses_all = sorted(numbers_of(tree)) == sorted(self.numbers)
        result = value_of(tree)
        is_right = uses_all and result == self.target
        self.num_left *= not is_right
        if is_right:
            self.observation = f"{self.target} is right."
        else:
            message = "That divides with a rest." if result is None else f"That is {result}."
            message = message if uses_all else "Each number is to be used exactly once."
            again = self._observation_text(message)
            self.observation = again if self.num_left else f"{message} No tries left."
        earned = float(is_right) or self.format_reward * (uses_all and result is not None)
        info = self._info(is_valid=True, success=is_right, uses_all_numbers=uses_all)
        return self.observation, earned, not self.num_left, False, info

    def render(self) -> str:
        return self.observation

    def sample_action(self, rng: random.Random) -> str:
        numbers = rng.sample(self.numbers, len(self.numbers))
        text = str(numbers[0])
        for number in numbers[1:]:
            text += f"{rng.choice(OPERATORS)}{number}"
        return text

    def oracle_action(self) -> str:
        return self.solution

    def _draw(self, rng: random.Random, split: str | None) -> tuple[str, list[int], int]:
        """Draws an expression, its numbers and its value, the target. The operators are drawn first
        and kept while many sets of numbers are tried: few numbers divide evenly, so division would
        be rare if the operators were drawn again each time."""
        operators: list[str] = []
        for draw in range(MAX_DRAWS):
            if draw % DRAWS_PER_OPERATORS == 0:
                operators = [rng.choice(OPERATORS) for _ in range(self.num_numbers - 1)]
            numbers = [
                rng.randint(self.min_number, self.max_number) for _ in range(self.num_numbers)
            ]
            text = _expression_of(rng, numbers, operators)
            value = value_of(expression(text), smallest=1)
            if value is None or (self.max_target is not None and value > self.max_target):
                continue
            if belongs_to(split, *sorted(numbers), "to", value, of="countdown"):
                return text, numbers, value
        raise ValueError(
            f"countdown: no instance of {self.num_numbers} numbers from {self.min_number} to "
            f"{self.max_number} was found for split {split!r} in {MAX_DRAWS} draws"
        )

    def _observation_text(self, message: str) -> str:
        task = f"Numbers: {' '.join(map(str, self.numbers))}. Target: {self.target}."
        tries = ""
        if self.max_tries > 1:
            tries = f"{self.num_left} tr{'ies' if self.num_left > 1 else 'y'} left."
        return " ".join(filter(None, (message, task, tries)))

    def _info(self, **metrics: bool) -> Info:
        is_valid = metrics.pop("is_valid")
        defaults = {"success": False, "action_is_valid": is_valid, "uses_all_numbers": False}
        return {"metrics": defaults | metrics, "state_key": self._state_key()}

    def _state_key(self) -> str:
        return f"{sorted(self.numbers)} to {self.target}, {self.num_left} left"


def expression(text: str) -> ast.expr:
    """Returns the text's syntax tree; raises `NotAnExpression` for anything but + - * / on whole
    numbers. A trailing "= 21" is ignored."""
    text = _CLAIM.sub("", text.translate(_TYPED)).strip()
    if len(text) > MAX_ACTION_LENGTH or not _ALLOWED.fullmatch(text):
        raise NotAnExpression(text[:MAX_ACTION_LENGTH])
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:  # the last two: too deep nesting
        raise NotAnExpression(text) from error
    if not all(_is_arithmetic(node) for node in ast.walk(tree)):
        raise NotAnExpression(text)
    return tree


def numbers_of(tree: ast.expr) -> list[int]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]  # type: ignore


def value_of(node: ast.expr, smallest: int | None = None) -> int | None:
    """Returns the value, or None if a division has a remainder or a step is below `smallest`."""
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return node.value
    if isinstance(node, ast.UnaryOp):
        value = value_of(node.operand, smallest)
        return None if value is None else -value
    assert isinstance(node, ast.BinOp)
    left, right = value_of(node.left, smallest), value_of(node.right, smallest)
    if left is None or right is None:
        return None
    value = _STEPS[type(node.op)](left, right)
    return None if value is None or (smallest is not None and value < smallest) else value


_STEPS: dict[type[ast.operator], Callable[[int, int], int | None]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left // right if right and left % right == 0 else None,
}


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.BinOp):
        return type(node.op) in _STEPS
    return isinstance(node, ast.UnaryOp | ast.USub | ast.operator)


def _expression_of(rng: random.Random, numbers: list[int], operators: list[str]) -> str:
    """Joins two random terms with the next operator until one is left."""
    terms = [str(number) for number in numbers]
    for index, symbol in enumerate(operators):
        first = terms.pop(rng.randrange(len(terms)))
        right = terms.pop(rng.randrange(len(terms)))
        joined = f"{first}{symbol}{right}"
        terms.append(joined if index == len(operators) - 1 else f"({joined})")
    return terms[0]
