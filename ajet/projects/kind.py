"""The kinds of project that `ajet init` makes: which templates, how many steps, what they need.

    KINDS["langgraph"].files("my_agent")   ->   {"agent.py": "…", "train.yaml": "…", …}

A kind's files come from its folders in templates/; a later folder overrides an earlier one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ajet.core.task.jsonl import read_jsonl
from ajet.core.task.row_files import EMBEDDED_DIR
from ajet.core.text.install import install_command
from ajet.projects.files import rendered

TRAINED, HELD_OUT = 4096, 128
"""How many of the embedded word problems a project gets as its tasks."""
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
    splits = {
        "tasks.jsonl": ("train", num_trained),
        "tasks_held_out.jsonl": ("test", num_held_out),
    }
    texts: dict[str, str] = {}
    for name, (split, number) in splits.items():
        rows = read_jsonl(EMBEDDED_DIR / "arithmetic" / f"{split}.jsonl")[:number]
        pairs = ((row["question"], row["answer"].rpartition("#### ")[2]) for row in rows)
        lines = [json.dumps({"question": q, "answer": answer} | fields) for q, answer in pairs]
        texts[name] = "\n".join([*lines, ""])
    return texts


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
