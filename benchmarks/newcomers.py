"""Does somebody who has only the wheel train an unfamiliar agent, with at most one wrong try?

    python benchmarks/newcomers.py prepare parcels FOLDER     the agent, one sentence, and an `ajet`
    …a coding agent or a person works in FOLDER, with FOLDER/bin first on the path…
    python benchmarks/newcomers.py score FOLDER… --out FILE   wrong tries, and whether it trained

FOLDER/bin/ajet is the ajet of this Python (a virtual environment in which the wheel is installed),
and notes each command with its exit code. A wrong try is a command that ended with another code
than 0. An agent is trained if a run has reached its last step with tokens to learn from. The
packages of an agent (langchain-openai, openai-agents) are installed beforehand: they are not what
is measured. Whoever plays a case has seen nothing of ajet but the installed package, and plays one
case only. The committed result was played by language models.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from report import write

AGENTS = Path(__file__).parent / "newcomers"
WISHES = {
    "captions": "captions that `is_good` accepts, of photographs that you make up",
    "headlines": "headlines of at most six words that name the story's place",
    "lamps": "switching all lamps off in few moves",
    "ledger": "ledgers with a high `score`, for receipts that you make up",
    "menu": "the right sum of what a table ate, for tables that you make up",
    "meter": "the right hour of each of the three meters",
    "parcels": "the right word for complaints about the four parcels",
    "recipes": "lists without forbidden words, for dishes that you make up",
    "triage": "the right colour for each of the three patients",
    "tutor": "the right word for each entry of WORDS",
}
"""What the agent of a file should get better at."""
INSTRUCTION = (
    "Train the agent in {file} with ajet, so that it gets better at: {wish}. "
    "`ajet skill` says how; take the model {model}, and two steps are enough."
)
WRAPPER = """#!/bin/sh
{python} -m ajet.cli.launcher "$@"
code=$?
echo "$code ajet $*" >> {log}
exit $code
"""


def prepare(name: str, folder: Path, model: str) -> None:
    (folder / "bin").mkdir(parents=True)
    shutil.copy(AGENTS / f"{name}.py", folder)
    wrapper, log = folder / "bin" / "ajet", (folder / "tries.log").resolve()
    wrapper.write_text(WRAPPER.format(python=sys.executable, log=log), encoding="utf-8")
    wrapper.chmod(0o755)
    sentence = INSTRUCTION.format(file=f"{name}.py", wish=WISHES[name], model=model)
    (folder / "instruction.txt").write_text(f"{sentence}\n", encoding="utf-8")
    print(sentence)


def score(folder: Path) -> dict[str, Any]:
    """Returns whether the folder's agent was trained, how many commands that took, and which of
    them were wrong tries."""
    log = folder / "tries.log"
    tries = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    wrong = [line for line in tries if not line.startswith("0 ")]
    summaries = [json.loads(path.read_bytes()) for path in folder.rglob("summary.json")]
    is_trained = any(
        summary.get("timelines", {}).get("tokens", {}).get("trained") for summary in summaries
    )
    return {"is_trained": is_trained, "commands": len(tries), "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("name", choices=WISHES)
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("--model", default="embedded:math")
    scoring = commands.add_parser("score")
    scoring.add_argument("folders", type=Path, nargs="+")
    scoring.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.name, given.folder, given.model)
        return
    cases = {folder.resolve().name: score(folder) for folder in given.folders}
    passed = [case["is_trained"] and len(case["wrong"]) <= 1 for case in cases.values()]
    for name, case in cases.items():
        print(name, case)
    print(f"{sum(passed)} of {len(passed)} with at most one wrong try; the goal is 8 of 10")
    if given.out is not None:
        write(given.out, {"passed": sum(passed), "goal": 8, "cases": cases})


if __name__ == "__main__":
    main()
