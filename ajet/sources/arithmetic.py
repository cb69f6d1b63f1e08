"""Generates arithmetic word problems from a seed, in the form of GSM8K, so every judge and reader
for GSM8K works: one to three operations on whole numbers, in 36 phrasings.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ida", "Jack",
    "Kate", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor",
)  # fmt: skip
ITEMS = (
    "apples", "books", "cards", "coins", "cookies", "eggs", "flowers", "marbles",
    "oranges", "pencils", "shells", "stamps", "stickers", "stones", "tickets", "toys",
)  # fmt: skip

HELD_OUT_SHARE = 0.1
# Each template: (text, expression). Letters a-d in the expression are the numbers in the text.
# Numbers that divide are drawn as divisors, and those that multiply are drawn small.
TEMPLATES: tuple[tuple[str, str], ...] = (
    # one operation
    ("{n} has {a} {i} and buys {b} more. How many {i} does {n} have now?", "a + b"),
    ("{n} finds {a} {i} in the morning and {b} {i} at night. How many is that in all?", "a + b"),
    ("There are {a} red {i} and {b} blue {i}. How many {i} are there?", "a + b"),
    ("A shop sold {a} {i} on Monday and {b} on Tuesday. How many were sold in total?", "a + b"),
    ("{n} has {a} {i} and gives away {b}. How many {i} are left?", "a - b"),
    ("There were {a} {i} in a box. {n} took out {b}. How many are still in the box?", "a - b"),
    ("{n} needs {a} {i} and already has {b}. How many more does {n} need?", "a - b"),
    ("{n} has {a} {i}. {m} has {b}. How many more {i} has {n} than {m}?", "a - b"),
    ("{n} buys {x} bags with {a} {i} each. How many {i} is that?", "x * a"),
    ("There are {x} rows of {a} {i}. How many {i} are there?", "x * a"),
    ("{n} reads {a} pages a day for {x} days. How many pages does {n} read?", "a * x"),
    ("One box holds {a} {i}. How many {i} do {x} boxes hold?", "a * x"),
    ("{n} shares {q} {i} equally among {x} friends. How many does each get?", "q // x"),
    ("{q} {i} are packed into bags of {x}. How many bags are there?", "q // x"),
    ("{n} puts {q} {i} into {x} equal piles. How many {i} are in a pile?", "q // x"),
    ("A rope of {q} meters is cut into {x} equal parts. How long is a part?", "q // x"),
    # two operations
    ("{n} has {a} {i}, buys {b} and then finds {c}. How many {i} has {n}?", "a + b + c"),
    ("{n} has {a} {i}, gets {b} more and loses {c}. How many are left?", "a + b - c"),
    ("A bus carries {a} people. {b} get off and {c} get on. How many are on the bus?", "a - b + c"),
    ("{n} had {a} {i}. {n} gave {b} to {m} and ate {c}. How many are left?", "a - b - c"),
    ("{n} buys {x} packs of {a} {i} and has {b} at home. How many {i} in all?", "x * a + b"),
    ("{n} has {b} {i} and wins {a} {i} in each of {x} games. How many now?", "b + a * x"),
    ("{x} boxes hold {a} {i} each. {b} of them break. How many are good?", "x * a - b"),
    ("{n} and {m} pick {a} and {b} {i}. They sell each for {x} coins. How many coins?",
     "(a + b) * x"),
    ("{n} had {a} {i}, lost {b} and sold the rest for {x} coins each. How many coins?",
     "(a - b) * x"),
    ("{q} {i} are shared by {x} children. {n} then gets {b} more. How many has {n}?", "q // x + b"),
    ("{x} friends share {q} {i} equally. {n} loses {d} of one share. How many are left of it?",
     "q // x - d"),
    ("A crate has {x} layers of {y} rows with {a} {i} each. How many {i} are there?", "x * y * a"),
    # three operations
    ("{n} has {a} {i}, finds {b}, buys {c} and loses {e}. How many now?", "a + b + c - e"),
    ("{n} buys {x} bags of {a} {i} and {y} bags of {b} {i}. How many {i}?", "x * a + y * b"),
    ("{n} packs {x} boxes of {a} {i}, adds {b} and takes out {c}. How many {i}?", "x * a + b - c"),
    ("{x} teams of {a} girls and {b} boys play, and {c} watch. How many people?",
     "x * (a + b) + c"),
    ("{n} picks {a} and {b} {i}, sells all for {x} coins each and pays {c}. Coins left?",
     "(a + b) * x - c"),
    ("{n} earns {a} coins a day for {x} days, spends {b} and {c}. How many are left?",
     "a * x - b - c"),
    ("{q} {i} fill {x} trays equally. {n} buys {y} such trays and {b} more. How many {i}?",
     "q // x * y + b"),
    ("{n} has {a} {i}. {m} has {b} more than {n}. {k} has {c} less than {m}. How many has {k}?",
     "a + b - c"),
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One word problem: its text, the expression that solves it, and the whole number it gives."""

    question: str
    expression: str
    answer: int

    @property
    def row(self) -> dict[str, str]:
        worked = self.expression.replace(" ", "")
        return {
            "question": self.question,
            "answer": f"It takes <<{worked}={self.answer}>>{self.answer}.\n#### {self.answer}",
        }


def draw(rng: random.Random, template: int) -> Problem:
    text, pattern = TEMPLATES[template]
    while True:
        # At most two digits, and one digit for factors.
        x, y = rng.randint(2, 9), rng.randint(2, 9)
        quotient = rng.randint(2, 99 // x)
        numbers = {name: rng.randint(2, 99) for name in "abc"}
        numbers["d"] = rng.randint(1, quotient - 1)
        numbers["e"] = rng.randint(2, 99)
        numbers |= {"x": x, "y": y, "q": quotient * x}
        expression = re.sub(r"[a-eqxy]", r"{\g<0>}", pattern).format(**numbers)
        answer = evaluate(expression)
        if answer > 0 and not ("a - b" in pattern and numbers["a"] <= numbers["b"]):
            break
    n, m, k = rng.sample(NAMES, 3)
    question = text.format(n=n, m=m, k=k, i=rng.choice(ITEMS), **numbers)
    return Problem(question, expression, answer)


def evaluate(expression: str) -> int:
    """Returns the value of an expression of this module: digits, ``+ - * //`` and parentheses."""
    if not re.fullmatch(r"[0-9+\-*/() ]+", expression):
        raise ValueError(f"not an arithmetic expression: {expression!r}")
    return int(eval(expression, {"__builtins__": {}}))  # noqa: S307  the pattern above allows no names


def split_of(question: str) -> str:
    """Returns ``train`` or ``test``, by a hash of the question, so that no problem is in both."""
    digest = hashlib.sha256(question.encode()).digest()
    return "test" if int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32 else "train"


def problems(split: str, seed: int) -> Iterator[Problem]:
    """Yields distinct problems of one split without end, taking the templates in turn."""
    rng = random.Random(f"arithmetic/{split}/{seed}")
    seen: set[str] = set()
    while True:
        for template in rng.sample(range(len(TEMPLATES)), len(TEMPLATES)):
            problem = draw(rng, template)
            if split_of(problem.question) == split and problem.question not in seen:
                seen.add(problem.question)
                yield problem
