"""Defines the options that several commands share, and what follows from them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ajet.core.errors import ConfigError, OptionError
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import is_special_file

if TYPE_CHECKING:
    from ajet.cluster.connection import SessionSettings
    from ajet.core.config import AjetConfig


def no_words() -> list[str]:
    """Returns no completions, so that the shell completes paths."""
    return []


def output_file(ctx: typer.Context, param: typer.CallbackParam, path: Path | None) -> Path | None:
    """Calls `check_outputs` for an option that names a file to write; ``-`` is the screen."""
    if path is not None and path != Path("-"):
        check_outputs(param.opts[0], path, overwrite=ctx.params["overwrite"])
    return path


def check_outputs(option: str, *files: Path, overwrite: bool) -> None:
    """Refuses files that could not be written, or that exist without `overwrite`. Special files
    such as ``/dev/null`` and pipes are written to."""
    for path in files:
        folder = path.parent
        problem = ""
        try:
            if path.is_dir():
                problem = "is a folder; name a file in it"
            elif not folder.is_dir():
                problem = f"the folder {folder} does not exist; name a file in one that does"
            elif not (is_special_file(path) or os.access(path.resolve().parent, os.W_OK)):
                problem = "no right to write there; name another file"
        except OSError:  # a folder above is unreadable, or the name is too long
            problem = "no right to write there; name another file"
        if problem:
            raise typer.BadParameter(f"{path}: {problem}", param_hint=f"'{option}'")
    refuse_existing(option, *files, overwrite=overwrite)


def refuse_existing(option: str, *files: Path, overwrite: bool) -> None:
    """Raises ConfigError for the first plain file that exists, unless `overwrite`."""
    for file in files:
        if file.is_file() and not overwrite:
            raise ConfigError(
                f"{option}: {file} exists already; add --overwrite to replace it, or name another "
                "file",
                code=Code.OUTPUT_EXISTS,
            )


def refuse_existing_folder(folder: Path) -> None:
    """Raises ConfigError if the folder that a command is to write exists."""
    if folder.exists():
        raise ConfigError(
            f"{folder}: exists already; name a folder that does not", code=Code.OUTPUT_EXISTS
        )


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
    bool, typer.Option("--skip-check-avail-gpu", help="Start even if GPUs are in use.")
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
        help="Config overrides in Hydra's syntax: ajet.seed=1, +my.key=2, ~my.key.",
    ),
]
Overwrite = Annotated[
    bool,
    # Eager, so that `output_file` can read it wherever it is on the command line.
    typer.Option("--overwrite", help="Replace an existing file.", is_eager=True),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(help="A checkpoint's folder, or a run folder: its newest one."),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        help="An OpenAI-compatible address (https://…/v1) instead of a model; its key is "
        "AJET_ENDPOINT_API_KEY or OPENAI_API_KEY in the environment."
    ),
]
EndpointModel = Annotated[str | None, typer.Option(help="The model's name at the endpoint.")]


@dataclass(frozen=True)
class RayFlags:
    """Whether to start a Ray here, or to join one or be part of it; with neither, RAY_ADDRESS is
    joined if it is set, else one is started."""

    with_ray: bool = False
    with_ray_cluster: bool = False
    skip_check_avail_gpu: bool = False

    def notices(self, backbone: str) -> list[str]:
        """Returns a line for each flag that has no effect on this backbone."""
        if backbone != "debug":
            return []
        flags = {
            "--with-ray": self.with_ray,
            "--with-ray-cluster": self.with_ray_cluster,
            "--skip-check-avail-gpu": self.skip_check_avail_gpu,
        }
        return [
            f"ignored by backbone debug: {flag} (the run is one process)"
            for flag, is_given in flags.items()
            if is_given
        ]


def session_settings(flags: RayFlags, debug: str | None) -> "SessionSettings":
    """Returns how the run gets Ray. Also sets this process's debug tags, for backbone debug."""
    from ajet.cluster.connection import SessionSettings
    from ajet.core.user_code.breakpoint import TAGS_VARIABLE, debug_tags

    if flags.with_ray and flags.with_ray_cluster:
        raise typer.BadParameter("give one of --with-ray and --with-ray-cluster")
    tags = debug_tags(debug or "")
    if debug is not None and not tags:
        raise OptionError('--debug: give a tag, as in bp("TAG"); several as "A|B"')
    if tags:
        os.environ[TAGS_VARIABLE] = "|".join(tags)
    return SessionSettings(
        mode="start" if flags.with_ray else "cluster" if flags.with_ray_cluster else "auto",
        debug_tags=tags,
        check_gpus=not flags.skip_check_avail_gpu,
    )


def serve_or_check(config: "AjetConfig", session: "SessionSettings") -> bool:
    """Returns True after this machine has served another machine's run. If it starts a Ray, raises
    ConfigError unless the run fits this machine."""
    from ajet.cluster.connection import choose_connection
    from ajet.cluster.session import serve_as_node

    connection = choose_connection(session, os.environ)
    if connection.action == "serve":
        return serve_as_node(session, lambda text: typer.echo(text, err=True))
    if connection.action == "start":
        from ajet.plan.gpu_plan import check_local

        check_local(config)
    return False
