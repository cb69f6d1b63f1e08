"""Implements `ajet init`: writes a new project, or puts an existing agent behind a workflow."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ajet.cli.json_document import answer, can_ask
from ajet.cli.options import Verbose
from ajet.core.text.plain_value import printable

if TYPE_CHECKING:
    from ajet.projects.found_agent import FoundAgent

KindName = Literal["langgraph", "openai", "agentscope", "chat", "environment", "http", "tools"]


def init(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Where to write it. [default: this folder]"),
    ] = None,
    agent_kind: Annotated[
        KindName | None, typer.Option("--kind", help="What the agent is written in.")
    ] = None,
    from_agent: Annotated[
        Path | None,
        typer.Option(
            "--from-agent",
            metavar="FILE.py",
            help="Put the agent of this file behind a workflow, in its folder. The file is read, "
            "neither run nor changed.",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="Which function, class or variable of the file is the agent."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="With --from-agent: the model to train.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Write a project that is ready to train.

    It has an agent, a judge, tasks, a YAML, a test and VS Code's settings. With --from-agent: a
    workflow for an existing agent, with a judge and tasks to fill in. Existing files are never
    overwritten.
    """
    if from_agent is None:
        if agent is not None or model is not None:
            raise typer.BadParameter("--agent and --model go with --from-agent")
        _write_kind(folder or Path(), agent_kind or _asked_kind())
    elif agent_kind is not None:
        raise typer.BadParameter("--from-agent determines the kind: leave --kind out")
    else:
        _write_workflow(folder, from_agent, agent, model)


def _asked_kind() -> str:
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.projects.project import KINDS

    if not can_ask():
        raise ConfigError(
            f"--kind is missing: give one of {', '.join(KINDS)}", code=Code.ARGUMENT_MISSING
        )
    for project_kind in KINDS.values():
        typer.echo(f"  {project_kind.name:<12} {project_kind.about}")
    return _choice("kind", list(KINDS))


def _choice(noun: str, names: list[str]) -> str:
    """Asks until the answer is one of the names."""
    while (name := typer.prompt(f"{noun} ({', '.join(names)})")) not in names:
        typer.echo(f"no {noun} is called {name}")
    return name


def _write_kind(folder: Path, name: str) -> None:
    import json
    import re
    from importlib.util import find_spec

    from ajet.core.config.json_schema import config_schema
    from ajet.core.text.install import install_command
    from ajet.projects.project import KINDS, write_files

    project_kind = KINDS[name]
    project = re.sub(r"[^\w.-]+", "_", folder.resolve().name).strip(".-") or "agent"
    schema = json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"
    files = project_kind.files(project) | {".vscode/ajet.schema.json": schema}
    write_files(folder, files)
    answer(folder=folder, files=sorted(files))
    typer.echo(f"{printable(str(folder))}: {', '.join(sorted(files))}")
    commands = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    needed = {"torch": "train"}
    if project_kind.package is not None and project_kind.extra is not None:
        needed[project_kind.package] = project_kind.extra
    missing = {package: extra for package, extra in needed.items() if find_spec(package) is None}
    if missing:
        packages = " and ".join(missing)
        are = "is" if len(missing) == 1 else "are"
        command = install_command(*missing.values())
        commands.append(f"{command}      # {packages} {are} not installed")
    commands += ["ajet check --conf train.yaml", "ajet --conf train.yaml --backbone debug"]
    _show_next(commands, "README.md says which three lines make it yours.")


def _write_workflow(folder: Path | None, file: Path, agent: str | None, model: str | None) -> None:
    from ajet.projects.found_agent import chosen_agent, found_agents
    from ajet.projects.project import project_files, project_folder, write_files

    agents = found_agents(file, agent)
    target = project_folder(file)
    if folder is not None and folder.resolve() != target.resolve():
        raise typer.BadParameter(
            f"{folder}: the workflow imports {file.name}, so it must be in {target}: leave DIR out"
        )
    if agent is None and len(agents) > 1 and can_ask():
        for candidate in agents:
            typer.echo(f"  {candidate.name:<12} {candidate.described}")
        agent = _choice("agent", [candidate.name for candidate in agents])
    chosen: FoundAgent = chosen_agent(agents, agent, file)
    files = project_files(chosen, file, target, model)
    write_files(target, files)
    answer(folder=target, files=sorted(files), agent=chosen.name, line=chosen.line)
    typer.echo(f"found: {printable(str(file))}:{chosen.line}: {chosen.described}")
    typer.echo(f"{printable(str(target))}: {', '.join(sorted(files))}")
    here = target.resolve() == Path.cwd()
    place = Path() if here else target
    conf, test = (shlex.quote(str(place / name)) for name in ("train.yaml", "test_workflow.py"))
    commands = [f"python {test}"]
    if chosen.own_model_line is not None and not os.environ.get("OPENAI_API_KEY"):
        commands.insert(
            0,
            f"export OPENAI_API_KEY=none      # line {chosen.own_model_line} makes a model that "
            "may want a key; no episode calls it",
        )
    check = f"ajet check --conf {conf}"
    if model is None:
        check += "      # when ajet.model.path in it is filled in"
    to_do = "Fill in the judge (judge.py) and the tasks (tasks.jsonl, tasks_held_out.jsonl)."
    to_do = " ".join([to_do, *chosen.reminders])
    _show_next([*commands, check, f"ajet debug --conf {conf} --tasks 2"], to_do)


def _show_next(commands: list[str], last: str) -> None:
    answer(next=commands, to_do=last)
    typer.echo("next:")
    for command in commands:
        typer.echo(f"  {printable(command)}")
    typer.echo(last)
