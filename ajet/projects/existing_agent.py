"""Writes the workflow of an agent that is there already, with a judge and tasks to fill in.

    my_agent.py, FoundAgent(…)   ->   workflow.py, judge.py, tasks.jsonl, tasks_held_out.jsonl,
                                      train.yaml, test_workflow.py

They are written into the folder from which the agent's module is imported. Not covered: what is in
the file (found_agent.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from ajet.projects.files import rendered
from ajet.projects.found_agent import FoundAgent
from ajet.projects.kind import word_problems

NUM_TRAINED, NUM_HELD_OUT = 64, 16
"""Tasks that stand in the files until the user's own do."""


def project_folder(file: Path) -> Path:
    """Returns the folder in which the module of this file is imported by its name: its own, or that
    which holds its package."""
    folder = file.parent
    while (folder / "__init__.py").exists():
        folder = folder.resolve().parent
    return folder


def project_files(agent: FoundAgent, file: Path, folder: Path, model: str | None) -> dict[str, str]:
    """Returns the text of each file by its path in the folder."""
    below = file.resolve().relative_to(folder.resolve())
    variables = {
        "agent": agent,
        "file": str(below),
        "module": ".".join(below.with_suffix("").parts),
        "name": below.stem,
        "model": None if model is None else json.dumps(model),
    }
    return rendered(("from_agent",), variables) | word_problems(NUM_TRAINED, NUM_HELD_OUT)
