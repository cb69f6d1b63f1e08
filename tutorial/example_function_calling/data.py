"""Writes the tutorial's files from the installed package bfcl-eval.

    pip install --no-deps bfcl-eval
    python -m tutorial.example_function_calling.data --out data/function_calling

    train.jsonl         300 tasks of simple_python for reinforcement learning
    test.jsonl          100 tasks of simple_python that nothing is trained on
    parallel.jsonl      tasks of parallel, as transfer: their functions are not in train.jsonl
    irrelevance.jsonl   tasks of irrelevance, as transfer, in the same way
    supervised.jsonl    chats with calls of other functions, for the supervised stage
    leaks.json          how similar what is trained is to what is measured, at most

Files that are there are replaced with --overwrite alone. --categories trains on more than
simple_python, and --held-out sets the number of tasks in test.jsonl; qwen.yaml says with which.

No task of test, parallel or irrelevance has a twin in train or supervised: a task with a function
of the same name, or with nearly the same question, signature or description (near_duplicates.py).
The trained categories are divided by clusters of twins, and whatever else is too similar is left
out.

The supervised chats are rows of the benchmark's live categories, which users of it have sent: the
first accepted answer of each, where the official checker accepts that, with the called functions
and now and then another one; beside them questions that no function fits. So none of the live
categories is evidence of transfer.
"""

import argparse
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ajet.core.task.jsonl import write_jsonl
from ajet.suites.bfcl import as_tools, read_rows, tool_name
from ajet.suites.bfcl_checker import call_problem
from tutorial.example_function_calling.near_duplicates import clusters, similarity, word_pairs

T = TypeVar("T")
TRAINED = ("simple_python", "multiple", "parallel", "irrelevance")
TRANSFER = ("parallel", "irrelevance")
"""Categories that are measured where they are not trained."""
LIMITS = {"question": 0.3, "signature": 0.4, "description": 0.4}
"""Tasks that are at least as similar as this in one trait are twins."""
NOTE = "Note that the provided function is in Python 3 syntax."
"""Ends the description of every function of simple_python."""
SEED = 0
CALLS = {
    "simple_python": ("live_simple", "live_multiple"),
    "parallel": ("live_parallel", "live_parallel_multiple"),
}
"""The categories of supervised chats, by the trained category that they prepare."""
MAX_SCHEMA = 1200
"""Characters of a supervised chat's functions: longer ones cost more time than they teach."""
ANOTHER_FUNCTION = 0.2
"""The share of supervised chats that offer a function beside the called ones."""
IRRELEVANT = 0.1
"""The share of supervised chats whose functions do not fit the question."""
REFUSAL = {"role": "assistant", "content": "None of the functions fits this question."}

Row = dict[str, Any]
_LEFT_OUT = object()


def question(row: Row) -> str:
    """Returns the text of all messages of the row."""
    return "\n".join(message["content"] for message in row["question"])


def compared_functions(row: Row) -> list[Row]:
    """Returns the functions that the row's answer calls, or, where it calls none, all of them."""
    called = {name for answer in row.get("ground_truth", []) for name in answer}
    return [each for each in row["function"] if each["name"] in called] or row["function"]


def signature(function: Row) -> frozenset[tuple[str, str]]:
    """Returns the words of the function's name, and the names of its parameters.

    museum.get_hours(name, day) -> name museum, name get, name hours, parameter name, parameter day
    """
    words = re.findall(r"[a-z]+|\d+", function["name"].lower())
    parameters = function["parameters"]["properties"]
    return frozenset(("name", word) for word in words) | {
        ("parameter", name.lower()) for name in parameters
    }


@dataclass(frozen=True)
class Traits:
    """What two tasks are compared by. `names` are those of the functions, in lower case, behind
    the last dot; `signatures` and `descriptions` have one set for each function."""

    names: frozenset[str]
    question: frozenset[tuple[str, str]]
    signatures: list[frozenset[tuple[str, str]]]
    descriptions: list[frozenset[tuple[str, str]]]

    @classmethod
    def of(cls, row: Row) -> "Traits":
        functions = compared_functions(row)
        return cls(
            frozenset(function["name"].rpartition(".")[2].lower() for function in functions),
            word_pairs(question(row)),
            [signature(function) for function in functions],
            [word_pairs(function["description"].replace(NOTE, "")) for function in functions],
        )

    def similarities(self, other: "Traits") -> dict[str, float]:
        """Returns the Jaccard index of the questions, and the largest ones of two functions'
        signatures and descriptions."""
        return {
            "question": similarity(self.question, other.question),
            "signature": _largest(self.signatures, other.signatures),
            "description": _largest(self.descriptions, other.descriptions),
        }

    def is_twin_of(self, other: "Traits") -> bool:
        """Tells whether the two have a function name in common, or one trait nearly."""
        if self.names & other.names:
            return True
        return any(found >= LIMITS[trait] for trait, found in self.similarities(other).items())


def _largest(ones: list[frozenset[T]], others: list[frozenset[T]]) -> float:
    return max(similarity(one, other) for one in ones for other in others)


def twin_free(rows: list[Row], known: list[Row]) -> list[Row]:
    """Returns the rows that are no twin of any that is known."""
    others = [Traits.of(row) for row in known]
    return [row for row in rows if not any(map(Traits.of(row).is_twin_of, others))]


def compared(rows: list[Row], known: list[Row]) -> dict[str, float]:
    """Returns how many of the rows are twins of one that is known, and the largest similarity by
    trait."""
    others = [Traits.of(row) for row in known]
    found = [Traits.of(row).similarities(other) for row in rows for other in others]
    largest = {f"largest_similarity_of_{each}": max(of[each] for of in found) for each in LIMITS}
    return {
        "tasks": len(rows),
        "twins": len(rows) - len(twin_free(rows, known)),
        **{name: round(value, 3) for name, value in largest.items()},
    }


def split(rows: list[Row], num_held_out: int) -> tuple[list[Row], list[Row]]:
    """Returns training and held-out rows; whole clusters of twins are drawn for the second."""
    groups = clusters([Traits.of(row) for row in rows], Traits.is_twin_of)
    random.Random(SEED).shuffle(groups)
    held_out: set[int] = set()
    for group in groups:
        if len(held_out) + len(group) <= num_held_out:
            held_out.update(group)
    train = [row for index, row in enumerate(rows) if index not in held_out]
    return train, [rows[index] for index in sorted(held_out)]


def supervised_rows(measured: list[Row], categories: list[str]) -> list[Row]:
    """Returns the rows of supervised chats that leak nothing into what is measured, each with the
    functions that it offers and, as `reply`, the assistant's message."""
    rng = random.Random(SEED)
    sources = [each for category in categories for each in CALLS.get(category, ())]
    rows = [row for source in sources for row in read_rows(source) if row["function"]]
    given = (_with_call(row, rng) for row in rows)
    calls = twin_free([row for row in given if row is not None and _is_short(row)], measured)
    rng.shuffle(calls)
    rows = [row for row in read_rows("live_irrelevance") if row["function"] and _is_short(row)]
    none = [{**row, "reply": REFUSAL} for row in twin_free(rows, measured)]
    rng.shuffle(none)
    chosen = calls + none[: round(len(calls) * IRRELEVANT / (1 - IRRELEVANT))]
    rng.shuffle(chosen)
    return chosen


def _with_call(row: Row, rng: random.Random) -> Row | None:
    """Returns the row with its first accepted answer as the reply, and fewer functions; None where
    the official checker refuses that answer."""
    answers = [first_answer(possible) for possible in row["ground_truth"]]
    calls = [(tool_name(name), given) for answer in answers for name, given in answer.items()]
    as_checked = [{name: given} for name, given in calls]
    key = row["ground_truth"]
    if call_problem(row["category"], row["function"], as_checked, key, "tools") is not None:
        return None
    called = {name for answer in answers for name in answer}
    functions = [each for each in row["function"] if each["name"] in called]
    others = [each for each in row["function"] if each["name"] not in called]
    if others and rng.random() < ANOTHER_FUNCTION:
        functions.insert(rng.randrange(2), min(others, key=lambda each: len(json.dumps(each))))
    tool_calls = [
        {"type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for name, given in calls
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": tool_calls}
    return {**row, "function": functions, "reply": reply}


def first_answer(possible: Row) -> Row:
    """Returns a call with the first accepted value of each argument, without those that may be
    left out.

        {"f": {"a": [1, 2], "unit": ["m", ""]}}  ->  {"f": {"a": 1}}
    """
    return {name: _arguments(arguments) for name, arguments in possible.items()}


def _arguments(possible: Row) -> Row:
    found = {name: _first(values) for name, values in possible.items()}
    return {name: value for name, value in found.items() if value is not _LEFT_OUT}


def _first(values: Any) -> Any:
    if not isinstance(values, list):  # deep in some rows a value stands without alternatives
        return values
    if not values or any(isinstance(value, str) and not value for value in values):
        return _LEFT_OUT
    return _value(values[0])


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _arguments(value)
    return [_value(each) for each in value] if isinstance(value, list) else value


def _is_short(row: Row) -> bool:
    return len(json.dumps(row["function"])) <= MAX_SCHEMA


def as_chat(row: Row) -> Row:
    """Returns a row with a reply as the supervised stage reads it."""
    messages = [*row["question"], row["reply"]]
    return {"task_id": row["task_id"], "messages": messages, "tools": as_tools(row["function"])}


def file_names(categories: list[str]) -> list[str]:
    """Returns the names of the files of rows, without their suffix."""
    return ["train", "test", *(each for each in TRANSFER if each not in categories), "supervised"]


def write(out: Path, categories: list[str], num_held_out: int) -> dict[str, Any]:
    """Writes all files into the folder; returns the report of leaks."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [row for category in categories for row in read_rows(category)]
    train, test = split(rows, num_held_out)
    transfer = {
        category: twin_free(read_rows(category), train)
        for category in TRANSFER
        if category not in categories
    }
    measured = {"test": test, **transfer}
    every = [row for rows in measured.values() for row in rows]
    supervised = supervised_rows(every, categories)
    files = {"train": train, **measured, "supervised": [as_chat(row) for row in supervised]}
    for name in file_names(categories):
        write_jsonl(out / f"{name}.jsonl", files[name])
    report = {"limits": LIMITS, "rows": {name: len(rows) for name, rows in files.items()}}
    for name, rows in {"train": train, "supervised": supervised}.items():
        report[f"against_{name}"] = {each: compared(measured[each], rows) for each in measured}
    (out / "leaks.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def main() -> None:
    """Writes the files and prints the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument("--categories", nargs="+", default=["simple_python"], choices=TRAINED)
    parser.add_argument("--held-out", type=int, default=100, help="tasks in test.jsonl")
    args = parser.parse_args()
    names = file_names(args.categories)
    files = [*(args.out / f"{name}.jsonl" for name in names), args.out / "leaks.json"]
    there = [file for file in files if file.exists()]
    if there and not args.overwrite:
        parser.error(f"--out: {there[0]} exists already; add --overwrite to replace it")
    print(json.dumps(write(args.out, args.categories, args.held_out), indent=2))


if __name__ == "__main__":
    main()
