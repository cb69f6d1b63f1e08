"""Implements `ajet examples [NAME]...`: lists the examples, or copies some into ./tutorial."""

from importlib.resources import files
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from typing import Annotated

import typer

from ajet.core.errors import ConfigError

TARGET = Path("tutorial")
"""The folder by which documentation, YAMLs and imports name the examples."""


def examples(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Examples to copy into ./tutorial."),
    ] = None,
) -> None:
    """List the examples, or copy some to ./tutorial, where their YAMLs and the documentation
    expect them.

    `ajet examples math_agent`, then `ajet --conf tutorial/example_math_agent/demo.yaml`.
    """
    source = Path(str(files("ajet.examples")))
    known = sorted(folder.name for folder in source.glob("example_*") if folder.is_dir())
    if not names:
        for name in known:
            title = (source / name / "README.md").read_text(encoding="utf-8").partition("\n")[0]
            typer.echo(f"{name.removeprefix('example_'):<18} {title.lstrip('# ')}")
        return
    chosen = [f"example_{name.removeprefix('example_')}" for name in names]
    if unknown := sorted(set(chosen) - set(known)):
        raise ConfigError(f"examples: no {', '.join(unknown)}; there are {', '.join(known)}")
    if there := [str(TARGET / name) for name in chosen if (TARGET / name).exists()]:
        raise ConfigError(f"examples: {', '.join(there)}: there already; move it away to copy anew")
    for name in chosen:
        copytree(source / name, TARGET / name, ignore=ignore_patterns("__pycache__"))
        configs = sorted(path.name for path in (TARGET / name).glob("*.yaml"))
        typer.echo(f"{TARGET / name}: {', '.join(configs)}; its README.md has the commands")
    if not (TARGET / "__init__.py").exists():
        copyfile(source / "__init__.py", TARGET / "__init__.py")
