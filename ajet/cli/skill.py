"""Implements `ajet skill`: instructions for coding agents, in the form of Agent Skills."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, refuse_existing

Tool = Literal["claude", "codex", "cursor", "opencode"]
FOLDERS: dict[Tool, tuple[str, str]] = {
    "claude": (".claude/skills", ".claude/skills"),
    "codex": (".agents/skills", ".agents/skills"),
    "cursor": (".cursor/skills", ".cursor/skills"),
    "opencode": (".opencode/skills", ".config/opencode/skills"),
}
"""Where a tool looks for skills: in a project, and in the home folder."""


def skill(
    install: Annotated[
        Tool | None,
        typer.Option(help="Write it where this tool looks, instead of printing it."),
    ] = None,
    user: Annotated[
        bool,
        typer.Option("--user", help="With --install: in the home folder, not in this project."),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Print or install instructions for coding agents.

    They say how to connect an agent, tasks and a judge, check, train, and read why a reward does
    not move. --install writes ajet/SKILL.md below .claude/skills, .agents/skills (Codex),
    .cursor/skills or .opencode/skills.
    """
    from ajet.projects.project import SKILL, write_file

    if user and install is None:
        raise typer.BadParameter("--user goes with --install")
    text = SKILL.read_text(encoding="utf-8")
    if install is None:
        answer(text=text)
        typer.echo(text, nl=False)
        return
    in_project, at_home = FOLDERS[install]
    folder = Path.home() / at_home if user else Path(in_project)
    file = folder / "ajet" / SKILL.name
    is_same = file.is_file() and file.read_text(encoding="utf-8") == text
    if not is_same:
        refuse_existing("--install", file, overwrite=overwrite)
        write_file(file, text)
    answer(file=file, is_new=not is_same)
    typer.echo(f"{'unchanged' if is_same else 'written'}: {file}")
