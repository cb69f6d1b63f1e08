"""Implements `ajet examples [NAME]...`: lists the examples, or copies some into ./tutorial."""

from importlib.resources import files
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.core.errors import ConfigError, UnknownName
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import writing_output

TARGET = Path("tutorial")
"""Documentation, YAMLs and imports expect the examples in this folder."""
PREFIX = "example_"


def known_names(incomplete: str = "") -> list[str]:
    """Returns the examples whose names begin so, also for the shell's completion."""
    folders = Path(str(files("ajet.examples"))).glob(f"{PREFIX}*")
    names = (folder.name.removeprefix(PREFIX) for folder in folders if folder.is_dir())
    return sorted(name for name in names if name.startswith(incomplete))


def examples(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Examples to copy into ./tutorial.",
            autocompletion=known_names,
        ),
    ] = None,
) -> None:
    """List the examples, or copy some to ./tutorial.

    Their YAMLs and the documentation expect them there. `ajet examples math_agent`, then `ajet
    --conf tutorial/example_math_agent/demo.yaml`.
    """
    source = Path(str(files("ajet.examples")))
    available = known_names()
    if not names:
        readmes = {name: source / f"{PREFIX}{name}" / "README.md" for name in available}
        titles = {
            name: readme.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            for name, readme in readmes.items()
        }
        answer(examples=titles)
        for name, title in titles.items():
            typer.echo(f"{name:<18} {title}")
        return
    chosen = [name.removeprefix(PREFIX) for name in names]
    if unknown := sorted(set(chosen) - set(available)):
        raise UnknownName(f"examples: no {', '.join(unknown)}; there are {', '.join(available)}")
    targets = {source / f"{PREFIX}{name}": TARGET / f"{PREFIX}{name}" for name in chosen}
    if existing := [str(target) for target in targets.values() if target.exists()]:
        raise ConfigError(
            f"examples: {', '.join(existing)} exists already; move it away to copy it again",
            code=Code.OUTPUT_EXISTS,
        )
    answer(folders=list(targets.values()))
    for folder, target in targets.items():
        with writing_output(target):
            copytree(folder, target, ignore=ignore_patterns("__pycache__"))
        configs = sorted(path.name for path in target.glob("*.yaml"))
        typer.echo(f"{target}: {', '.join(configs)}; its README.md has the commands")
    if not (TARGET / "__init__.py").exists():
        copyfile(source / "__init__.py", TARGET / "__init__.py")
