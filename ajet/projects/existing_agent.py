"""Writes a workflow for an existing agent, with a judge and tasks to fill in.

    my_agent.py, FoundAgent(…)   ->   workflow.py, judge.py, tasks.jsonl, tasks_held_out.jsonl,
                                      train.yaml, test_workflow.py

They are written into the folder from which the agent's module is imported.
"""

from __future__ import annotations

import json
from pathlib import Path

from ajet.projects.files import rendered
from ajet.projects.found_agent import FoundAgent
from ajet.projects.kind import word_problems

NUM_TRAINED, NUM_HELD_OUT = 64, 16
"""Numbers of placeholder tasks, until the user replaces them."""


def project_folder(file: Path) -> Path:
    """Returns the folder from which the file's module is imported: its folder, or the one above its
    package."""
    folder = file.parent
    while (folder / "__init__.py").exists():
        folder = folder.resolve().parent
    return folder


def project_files(agent: FoundAgent, file: Path, folder: Path, model: str | None) -> dict[str, str]:
    below = file.resolve().relative_to(folder.resolve())
    variables = {
        "agent": agent,
        "file": str(below),
        "module": ".".join(below.with_suffix("").parts),
        "name": below.stem,
        "model": None if model is None else json.dumps(model),
    }
    return rendered(("from_agent",), variables) | word_problems(NUM_TRAINED, NUM_HELD_OUT)
