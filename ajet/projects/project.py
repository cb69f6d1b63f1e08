"""The projects that `ajet init` makes: their kinds, and their files, which come from folders in
templates/. Only files that end in .jinja are templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.jsonl import read_jsonl
from ajet.core.task.row_files import EMBEDDED_DIR
from ajet.core.text.install import install_command

if TYPE_CHECKING:
    from ajet.projects.found_agent import FoundAgent

TEMPLATES = Path(__file__).parent / "templates"
SKILL = Path(__file__).parent / "skill" / "SKILL.md"
"""Instructions for coding agents (`ajet skill`)."""
DOTTED = ("vscode", "gitignore")
"""Names that begin with a dot in the project, and not in the package."""
TEMPLATE = ".jinja"
TRAINED, HELD_OUT = 4096, 128
"""How many of the embedded word problems a project gets as its tasks."""
NUM_PLACEHOLDERS = 64, 16
"""How many of them are placeholders, which the user replaces, where the agent is the user's."""
ROLES = {
    "agent.py": "the agent",
    "workflow.py": "hands the trained model to the agent",
    "tools.py": "the agent's tools, as Python functions",
    "tools.yaml": "lists them",
    "game.py": "the environment, with its rewards",
    "judge.py": "when an answer is right",
    "tasks.jsonl": "what it is trained on",
    "tasks_held_out.jsonl": "what its success is measured on, and never trained",
    "train.yaml": "names all of them, and the model",
    "test_agent.py": "tests them with replies that are given",
    ".vscode": "VS Code: run, debug, and completion for `train.yaml`",
}
"""Maps a file of a project to its description in the README."""


@dataclass(frozen=True)
class Kind:
    """One kind. `package` is what it imports beyond ajet's requirements, and `extra` the extra of
    ajet that installs it. `workflow` is the value of `ajet.rollout.user_workflow`."""

    name: str
    about: str
    folders: tuple[str, ...] = ("shared", "math")
    workflow: str = "agent.py->Agent"
    steps: int = 60
    package: str | None = None
    extra: str | None = None
    needs_tasks: bool = field(default=True, kw_only=True)

    def files(self, project: str) -> dict[str, str]:
        tasks = word_problems() if self.needs_tasks else {}
        variables = {
            "name": project,
            "kind": self.name,
            "about": self.about,
            "workflow": self.workflow,
            "steps": self.steps,
            "install": install_command(*filter(None, ["train", self.extra])),
        }
        # The README lists the files, so they are rendered twice: first for their names.
        files = rendered((*self.folders, self.name), variables | {"files": {}})
        names = {part for file in (*files, *tasks) for part in (file, file.partition("/")[0])}
        roles = {name: role for name, role in ROLES.items() if name in names}
        return rendered((*self.folders, self.name), variables | {"files": roles}) | tasks


def word_problems(
    num_trained: int = TRAINED, num_held_out: int = HELD_OUT, **fields: object
) -> dict[str, str]:
    """Returns the two files of tasks: embedded word problems, rows of question and answer, each
    with these fields too."""
    splits = {"tasks.jsonl": ("train", num_trained), "tasks_held_out.jsonl": ("test", num_held_out)}
    texts: dict[str, str] = {}
    for name, (split, number) in splits.items():
        rows = read_jsonl(EMBEDDED_DIR / "arithmetic" / f"{split}.jsonl")[:number]
        pairs = ((row["question"], row["answer"].rpartition("#### ")[2]) for row in rows)
        lines = [json.dumps({"question": q, "answer": answer} | fields) for q, answer in pairs]
        texts[name] = "\n".join([*lines, ""])
    return texts


def project_folder(file: Path) -> Path:
    """Returns the folder from which the file's module is imported: above its packages."""
    folder = file.parent
    while (folder / "__init__.py").exists():
        folder = folder.resolve().parent
    return folder


def project_files(agent: FoundAgent, file: Path, folder: Path, model: str | None) -> dict[str, str]:
    """Returns the workflow of an agent, with a judge, tasks to fill in, and a config, by their
    paths in the folder."""
    below = file.resolve().relative_to(folder.resolve())
    variables = {
        "agent": agent,
        "file": str(below),
        "module": ".".join(below.with_suffix("").parts),
        "name": below.stem,
        "model": None if model is None else json.dumps(model),
        "is_small": model is not None and model.startswith("embedded:"),
    }
    tasks = word_problems(*NUM_PLACEHOLDERS, placeholder=True)
    return rendered(("from_agent",), variables) | tasks


def rendered(folders: Sequence[str], variables: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text of each file of these folders by its path in the project. A file of a later
    folder replaces that of an earlier one."""
    from jinja2 import Environment, StrictUndefined

    jinja = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    files: dict[str, str] = {}
    for folder in folders:
        root = TEMPLATES / folder
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            if "__pycache__" in file.parts:
                continue
            text = file.read_text(encoding="utf-8")
            if file.suffix == TEMPLATE:
                text = jinja.from_string(text).render(variables)
            # The dots that names in the package lack.
            first, *rest = file.relative_to(root).parts
            path = "/".join([f".{first}" if first in DOTTED else first, *rest])
            files[path.removesuffix(TEMPLATE)] = text
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files into the folder, or raises ConfigError if any of them exists already."""
    # All names are checked before the first file is written.
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        verb = "is" if len(existing) == 1 else "are"
        raise ConfigError(
            f"{folder}: {', '.join(existing)} {verb} there already, and "
            "nothing was written: move what is there away, or give another folder",
            code=Code.OUTPUT_EXISTS,
        )
    for name, text in files.items():
        write_file(folder / name, text)


def write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; give another folder",
            code=Code.OUTPUT_NOT_WRITTEN,
        ) from error


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "langgraph",
            "A LangGraph agent (LangChain's `create_agent`) that solves word problems with a tool.",
            package="langchain",
            extra="langgraph",
        ),
        Kind("openai", "An agent on OpenAI's client that solves word problems with a tool."),
        Kind(
            "agentscope",
            "An AgentScope `ReActAgent` that solves word problems with a tool.",
            package="agentscope",
            extra="agentscope",
        ),
        Kind("chat", "An agent without a framework that solves word problems with a tool."),
        Kind(
            "environment",
            "An environment, a number to be found, and ajet's own agent that plays it.",
            folders=("shared",),
            steps=120,
            needs_tasks=False,
        ),
        Kind(
            "http",
            "An agent that speaks HTTP with its model and solves word problems with a tool.",
            workflow="workflow.py->Agent",
        ),
        Kind("tools", "Tools, and ajet's own agent that solves word problems with them."),
    )
}
