"""Writes the tutorial's files from the installed package bfcl-eval.

    pip install --no-deps bfcl-eval
    python -m tutorial.example_function_calling.data --out data/function_calling

    train.jsonl         300 tasks of simple_python for reinforcement learning
    test.jsonl          100 tasks of simple_python that nothing is trained on
    parallel.jsonl      tasks of parallel, as transfer: their functions are not in train.jsonl
    irrelevance.jsonl   tasks of irrelevance, as transfer, in the same way
    supervised.jsonl    chats with calls of other functions, for the supervised stage
    leaks.json          how similar what is trained is to what is measured, at most; as `twins` the
                        tasks of test.jsonl with a function much like one of train.jsonl

Files that are there are replaced with --overwrite alone.

No question of test, parallel or irrelevance has a near-duplicate (near_duplicates.py) or a
function name in train or supervised: simple_python is divided by clusters of such tasks, and
whatever else is too similar is left out.

The supervised chats are rows of the benchmark's live categories, which users of it have sent: the
first accepted answer of each, where the official checker accepts that, with the called functions
and now and then another one; beside them questions that no function fits. So none of the live
categories is evidence of transfer. The category multiple is left alone: half of it repeats
simple_python.
"""

import argparse
import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.core.task.jsonl import write_jsonl
from ajet.suites.bfcl import as_tools, read_rows, tool_name
from ajet.suites.bfcl_checker import call_problem
from tutorial.example_function_calling.near_duplicates import (
    WordPairs,
    clusters,
    nearest,
    similarity,
    word_pairs,
)

NAMES = ("train", "test", "parallel", "irrelevance", "supervised")
LIMIT = 0.3
"""Questions at least as similar as this count as near-duplicates."""
TWIN = 0.5
"""Functions whose signatures are at least as similar as this are twins."""
NUM_HELD_OUT = 100
SEED = 0
CALLS = ("live_simple", "live_multiple")
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


def function_names(row: Row) -> set[str]:
    """Returns the names of the row's functions, in lower case, behind the last dot."""
    return {function["name"].rpartition(".")[2].lower() for function in row["function"]}


def signature(row: Row) -> frozenset[tuple[str, str]]:
    """Returns the words of the functions' names, and the names of their parameters.

    museum.get_hours(name, day) -> name museum, name get, name hours, parameter name, parameter day
    """
    words = {
        ("name", word)
        for function in row["function"]
        for word in re.findall(r"[a-z]+|\d+", function["name"].lower())
    }
    return frozenset(words) | {
        ("parameter", name.lower())
        for function in row["function"]
        for name in function["parameters"]["properties"]
    }


def twins(rows: list[Row], trained: list[Row]) -> list[str]:
    """Returns the ids of the rows with a function whose signature is like that of a trained one."""
    known = [signature(row) for row in trained]
    return [
        row["task_id"]
        for row in rows
        if max(similarity(signature(row), each) for each in known) >= TWIN
    ]


@dataclass
class Known:
    """Names and questions that other rows are compared with."""

    names: set[str] = field(default_factory=set)
    questions: list[WordPairs] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Known":
        listed = list(rows)
        names = {name for row in listed for name in function_names(row)}
        return cls(names, [word_pairs(question(row)) for row in listed])

    def leaks_into(self, row: Row) -> bool:
        """Tells whether the row shares a function's name with these, or nearly a question."""
        if function_names(row) & self.names:
            return True
        return nearest(question(row), self.questions) >= LIMIT

    def report(self, rows: list[Row]) -> dict[str, float]:
        """Returns how many of the rows share a name with these, and their largest similarity."""
        return {
            "tasks": len(rows),
            "tasks_with_a_shared_function_name": sum(
                bool(function_names(row) & self.names) for row in rows
            ),
            "largest_similarity_of_questions": round(
                max(nearest(question(row), self.questions) for row in rows), 3
            ),
        }


def split(rows: list[Row], num_held_out: int) -> tuple[list[Row], list[Row]]:
    """Returns training and held-out rows; whole clusters are drawn for the second."""
    names = [row["function"][0]["name"] for row in rows]
    groups = clusters(names, [question(row) for row in rows], LIMIT)
    random.Random(SEED).shuffle(groups)
    held_out: set[int] = set()
    for group in groups:
        if len(held_out) + len(group) <= num_held_out:
            held_out.update(group)
    train = [row for index, row in enumerate(rows) if index not in held_out]
    return train, [rows[index] for index in sorted(held_out)]


def supervised_rows(measured: Known) -> list[Row]:
    """Returns the rows of supervised chats that leak nothing into what is measured, each with the
    functions that it offers and, as `reply`, the assistant's message."""
    rng = random.Random(SEED)
    rows = [row for category in CALLS for row in read_rows(category) if row["function"]]
    calls = [_with_call(row, rng) for row in rows if not measured.leaks_into(row)]
    calls = [row for row in calls if row is not None and _is_short(row)]
    rng.shuffle(calls)
    rows = [row for row in read_rows("live_irrelevance") if row["function"] and _is_short(row)]
    none = [{**row, "reply": REFUSAL} for row in rows if not measured.leaks_into(row)]
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


def write(out: Path) -> dict[str, Any]:
    """Writes all files into the folder; returns the report of leaks."""
    out.mkdir(parents=True, exist_ok=True)
    train, test = split(read_rows("simple_python"), NUM_HELD_OUT)
    trained = Known.of(train)
    transfer = {
        category: [row for row in read_rows(category) if not trained.leaks_into(row)]
        for category in ("parallel", "irrelevance")
    }
    measured = {"test": test, **transfer}
    every = [row for rows in measured.values() for row in rows]
    supervised = supervised_rows(Known.of(every))
    files = {"train": train, **measured, "supervised": [as_chat(row) for row in supervised]}
    for name in NAMES:
        write_jsonl(out / f"{name}.jsonl", files[name])
    report = {"limit": LIMIT, "rows": {name: len(rows) for name, rows in files.items()}}
    report["twins"] = twins(test, train)
    for name, rows in {"train": train, "supervised": supervised}.items():
        known = Known.of(rows)
        report[f"against_{name}"] = {each: known.report(measured[each]) for each in measured}
    (out / "leaks.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def main() -> None:
    """Writes the files and prints the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    args = parser.parse_args()
    files = [*(args.out / f"{name}.jsonl" for name in NAMES), args.out / "leaks.json"]
    there = [file for file in files if file.exists()]
    if there and not args.overwrite:
        parser.error(f"--out: {there[0]} exists already; add --overwrite to replace it")
    print(json.dumps(write(args.out), indent=2))


if __name__ == "__main__":
    main()
