"""Defines the options that several commands share, each with its help."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def yaml_files(incomplete: str) -> list[str]:
    """Returns the YAML files and folders that begin with what was typed, for the shell."""
    head, slash, name = incomplete.rpartition("/")
    folder = Path(head + slash).expanduser()
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.startswith(name)]
    return sorted(
        f"{head}{slash}{path.name}{'/' * path.is_dir()}"
        for path in found
        if path.suffix in (".yaml", ".yml") or (path.is_dir() and not path.name.startswith("."))
    )


Conf = Annotated[
    Path,
    typer.Option(
        "--conf",
        help="The YAML that names workflow, tasks, judge and model.",
        autocompletion=yaml_files,
    ),
]
Backbone = Annotated[
    Literal["debug", "verl", "trinity"] | None,
    typer.Option("--backbone", help="Where the loop runs; debug is this process. [ajet.backbone]"),
]
ExpDir = Annotated[
    Path | None,
    typer.Option("--exp-dir", help="The folder of run folders. [default: launcher_record]"),
]
ProjectDir = Annotated[
    Path | None,
    typer.Option("--project-dir", help="Look for the config's modules and files here first."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show the traceback of an error (or AJET_TRACEBACK=1).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Config overrides as Hydra takes them: ajet.seed=1, +my.key=2, ~my.key.",
    ),
]
