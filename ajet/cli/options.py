"""Defines the options that several commands share, each with its help."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer


def no_words() -> list[str]:
    """Returns no completions, after which a shell completes a path by itself."""
    return []


def output_file(path: Path | None) -> Path | None:
    """Refuses, before anything is computed, a file that could not be written. ``-`` is the
    screen."""
    if path is None or path == Path("-"):
        return path
    folder = path.parent
    try:
        if path.is_dir():
            raise typer.BadParameter(f"{path}: is a folder; name a file in it")
        if not folder.is_dir():
            raise typer.BadParameter(f"{path}: there is no folder {folder}; name a file in one")
        may_write = path.exists() or os.access(folder, os.W_OK)
    except OSError:  # a folder above may not be searched, or the name is too long
        may_write = False
    if not may_write:
        raise typer.BadParameter(f"{path}: it may not be written there; name another file")
    return path


Conf = Annotated[
    Path,
    typer.Option(
        "--conf",
        help="The YAML that names workflow, tasks, judge and model.",
        autocompletion=no_words,
    ),
]
Backbone = Annotated[
    Literal["debug", "verl", "trinity"] | None,
    typer.Option("--backbone", help="Where the loop runs; debug is this process. [ajet.backbone]"),
]
WithRay = Annotated[
    bool, typer.Option("--with-ray", help="Start Ray here (backbones verl and trinity).")
]
WithRayCluster = Annotated[
    bool,
    typer.Option(
        "--with-ray-cluster", help="Join the Ray of RAY_ADDRESS, or make that of MASTER_ADDR."
    ),
]
SkipCheckAvailGpu = Annotated[
    bool, typer.Option("--skip-check-avail-gpu", help="Start though GPUs are in use.")
]
ExpDir = Annotated[
    Path | None,
    typer.Option(
        "--exp-dir",
        help="The folder of run folders. [default: launcher_record]",
        autocompletion=no_words,
    ),
]
ProjectDir = Annotated[
    Path | None,
    typer.Option(
        "--project-dir",
        help="Look for the config's modules and files here first.",
        autocompletion=no_words,
    ),
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
Checkpoint = Annotated[
    Path | None,
    typer.Option(help="A checkpoint's folder, or a run folder: its newest one."),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        help="An OpenAI-compatible address (https://…/v1) instead of a model; its key is "
        "AJET_ENDPOINT_API_KEY or OPENAI_API_KEY of the environment."
    ),
]
EndpointModel = Annotated[str | None, typer.Option(help="The model's name at the endpoint.")]
