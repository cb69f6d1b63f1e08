"""Writes the tasks: small Python functions, each with one bug, and the hidden tests of each.

python -m tutorial.example_repairs.data        # data/train.jsonl: 24 tasks; data/test.jsonl: 8

Files that are there are replaced with --overwrite alone.
A held-out task has a function that no task of training has. Every draw follows from SEED.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "data"
SEED = 7
HELD_OUT = 2
"""Functions whose tasks are the held-out ones."""
TEST_COMMAND = ["/usr/bin/env", "python3", "{test}"]


class Function(NamedTuple):
    """A correct function, its tests as (arguments, result), and bugs as (right, wrong) texts."""

    name: str
    says: str
    code: str
    cases: list[tuple[str, str]]
    bugs: list[tuple[str, str]]


FUNCTIONS = [
    Function(
        "clamp",
        "clamp(x, low, high) returns x, but not below low and not above high.",
        "def clamp(x, low, high):\n    if x < low:\n        return low\n"
        "    if x > high:\n        return high\n    return x\n",
        [("5, 0, 3", "3"), ("-1, 0, 3", "0"), ("2, 0, 3", "2")],
        [
            ("x < low", "x > low"),
            ("return high", "return low"),
            ("return x\n", "return low\n"),
            ("x > high", "x < high"),
        ],
    ),
    Function(
        "mean",
        "mean(numbers) returns the average of a list, and 0 for an empty one.",
        "def mean(numbers):\n    if not numbers:\n        return 0\n"
        "    return sum(numbers) / len(numbers)\n",
        [("[1, 2, 3]", "2"), ("[]", "0"), ("[4, 6]", "5")],
        [
            ("/ len", "* len"),
            ("if not", "if"),
            ("sum(", "max("),
            ("return 0", "return 1"),
        ],
    ),
    Function(
        "count_vowels",
        "count_vowels(text) returns how many letters of text are vowels, small or capital.",
        "def count_vowels(text):\n    total = 0\n    for letter in text.lower():\n"
        '        if letter in "aeiou":\n            total += 1\n    return total\n',
        [("'Apple'", "2"), ("'sky'", "0"), ("'UIO'", "3")],
        [
            ("total = 0", "total = 1"),
            ("text.lower()", "text"),
            ("if letter in", "if letter not in"),
            ("total += 1", "total -= 1"),
        ],
    ),
    Function(
        "fibonacci",
        "fibonacci(n) returns the n-th number of 0, 1, 1, 2, 3, 5, ..., counted from 0.",
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
        "    return a\n",
        [("0", "0"), ("1", "1"), ("7", "13")],
        [
            ("a, b = 0, 1", "a, b = 1, 1"),
            ("range(n)", "range(n + 1)"),
            ("b, a + b", "b, a"),
            ("return a\n", "return b\n"),
        ],
    ),
    Function(
        "is_palindrome",
        "is_palindrome(text) returns True if text reads the same backwards, whatever its case.",
        "def is_palindrome(text):\n    text = text.lower()\n    return text == text[::-1]\n",
        [("'Level'", "True"), ("'ab'", "False"), ("''", "True")],
        [
            ("text == text", "text != text"),
            ("[::-1]", "[::1]"),
            ("text.lower()", "text.strip()"),
            ("return text == text[::-1]", "return True"),
        ],
    ),
    Function(
        "largest",
        "largest(numbers) returns the largest number of a list that is not empty.",
        "def largest(numbers):\n    best = numbers[0]\n    for number in numbers:\n"
        "        if number > best:\n            best = number\n    return best\n",
        [("[3, 9, 2]", "9"), ("[-5, -2]", "-2"), ("[1]", "1")],
        [
            ("number > best", "number < best"),
            ("numbers[0]", "0"),
            ("return best", "return number"),
            ("best = number\n", "return best\n"),
        ],
    ),
    Function(
        "gcd",
        "gcd(a, b) returns the greatest common divisor of two positive numbers.",
        "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n",
        [("12, 18", "6"), ("7, 5", "1"), ("9, 9", "9")],
        [
            ("a, b = b, a % b", "a, b = b, b % a"),
            ("return a", "return b"),
            ("while b:", "while b > 1:"),
            ("a % b", "a // b"),
        ],
    ),
    Function(
        "unique",
        "unique(items) returns a list of the items without repeats, in their first order.",
        "def unique(items):\n    seen = []\n    for item in items:\n"
        "        if item not in seen:\n            seen.append(item)\n    return seen\n",
        [("[1, 2, 1]", "[1, 2]"), ("[]", "[]"), ("[3, 3, 1]", "[3, 1]")],
        [
            ("not in seen", "in seen"),
            ("return seen", "return items"),
            ("seen.append(item)", "seen.insert(0, item)"),
            ("seen = []", "seen = [0]"),
        ],
    ),
]


def tasks() -> tuple[list[dict], list[dict]]:
    """Returns the rows of training and the held-out ones."""
    order = random.Random(SEED)
    functions = order.sample(FUNCTIONS, len(FUNCTIONS))
    training = [row for each in functions[HELD_OUT:] for row in _rows(each)]
    held_out = [row for each in functions[:HELD_OUT] for row in _rows(each)]
    return order.sample(training, len(training)), held_out


def _rows(function: Function) -> list[dict]:
    return [
        {
            "question": f"{function.name}.py has a bug. {function.says} Repair it.",
            "files": {f"{function.name}.py": function.code.replace(right, wrong, 1)},
            "hidden_files": {
                f"test_{index}.py": f"from {function.name} import {function.name}\n\n"
                f"assert {function.name}({given}) == {result}\n"
                for index, (given, result) in enumerate(function.cases)
            },
            "test_command": TEST_COMMAND,
        }
        for right, wrong in function.bugs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    args = parser.parse_args()
    files = [FOLDER / "train.jsonl", FOLDER / "test.jsonl"]
    there = [file for file in files if file.exists()]
    if there and not args.overwrite:
        parser.error(f"{there[0]} exists already; add --overwrite to replace it")
    FOLDER.mkdir(exist_ok=True)
    for file, rows in zip(files, tasks(), strict=True):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
