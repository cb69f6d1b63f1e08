r"""Writes the tutorial's files from GSM8K.

    python -m tutorial.example_gsm8k.data --out data/gsm8k_learning     # from the Hub
    python -m tutorial.example_gsm8k.data --out data/gsm8k_learning --from DIR   # of files

    supervised.jsonl    5,000 training problems with their solutions, as chats
    train.jsonl         the other 2,473 training problems, for reinforcement learning
    test.jsonl          the 1,319 test problems, of which nothing is trained

Files that are there are replaced with --overwrite alone.

GSM8K's solutions are calculations in words, in which <<48/2=24>> marks what a calculator would be
asked, and whose last line is `#### 72`. The marks are left out, for nothing calculates here, and
the last line becomes the box that the judge looks for.
"""

import argparse
import random
import re
from pathlib import Path
from typing import Any

from ajet.core.task.jsonl import write_jsonl
from ajet.sources.prepare import DataRecipe
from ajet.suites.gsm8k import INSTRUCTION

NAMES = ("supervised", "train", "test")
NUM_SUPERVISED = 5000
SEED = 0

Row = dict[str, Any]


def as_chat(row: Row) -> Row:
    r"""Returns a problem and its solution as the supervised stage reads them.

    "48/2 = <<48/2=24>>24 clips.\n#### 24"  ->  "48/2 = 24 clips.\nThe answer is \boxed{24}."
    """
    steps, _, answer = re.sub(r"<<.*?>>", "", row["answer"]).rpartition("\n#### ")
    question = {"role": "user", "content": f"{row['question']}\n{INSTRUCTION}"}
    reply = {"role": "assistant", "content": f"{steps}\nThe answer is \\boxed{{{answer}}}."}
    return {"task_id": row["task_id"], "messages": [question, reply]}


def write(out: Path, source: Path | None) -> dict[str, int]:
    """Writes the files into the folder; returns the number of rows of each."""
    recipe = DataRecipe("gsm8k", source)
    rows = recipe.rows("train")
    random.Random(SEED).shuffle(rows)
    files = {
        "supervised": [as_chat(row) for row in rows[:NUM_SUPERVISED]],
        "train": rows[NUM_SUPERVISED:],
        "test": recipe.rows("test"),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        write_jsonl(out / f"{name}.jsonl", files[name])
    return {name: len(found) for name, found in files.items()}


def main() -> None:
    """Writes the files and prints the number of rows of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--from", dest="source", type=Path, help="files with train and test rows")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    args = parser.parse_args()
    there = [file for name in NAMES if (file := args.out / f"{name}.jsonl").exists()]
    if there and not args.overwrite:
        parser.error(f"--out: {there[0]} exists already; add --overwrite to replace it")
    for name, count in write(args.out, args.source).items():
        print(f"{args.out / name}.jsonl: {count:,} rows")


if __name__ == "__main__":
    main()
