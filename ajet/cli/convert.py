"""Implements `ajet convert`: turns another system's config into an ajet YAML."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, Verbose, refuse_existing

if TYPE_CHECKING:
    from ajet.convert import Conversion


def convert(
    source: Annotated[
        Path, typer.Argument(help="Its YAML, or the shell script that starts its training.")
    ],
    system: Annotated[
        Literal["roll", "verl", "chatlearn", "agentjet", "trinity"],
        typer.Option("--from", help="Whose config it is."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of that system's keys."),
    ] = None,
    launch: Annotated[
        int | None,
        typer.Option(
            "--launch",
            min=1,
            help="Which training of a script that starts several, by its number. [default: 1]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The YAML to write. [default: stdout]")
    ] = None,
    overwrite: Overwrite = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 if what was left out changes the algorithm, or may."
        ),
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Convert a config of verl or another system to ajet.

    Reads configs of ROLL, verl, ChatLearn, AgentJet and Trinity-RFT. Each key becomes an ajet key,
    or is listed at the top of the YAML with the reason why not.
    """
    from ajet.convert import convert as converted
    from ajet.convert import yaml_text
    from ajet.core.errors import ConfigError, OptionError
    from ajet.core.errors.codes import Code
    from ajet.core.record.atomic_file import write_output, writing_output

    result = converted(system, source, overrides or [], launch)
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise OptionError(f"--out {out}: a config ends in .yaml")
    if out is not None and out.exists() and out.samefile(source):
        raise ConfigError(
            f"--out {out}: this is the config to convert; name another file",
            code=Code.OUTPUT_EXISTS,
        )
    if out is not None:
        refuse_existing("--out", out, overwrite=overwrite)
    text = yaml_text(result)
    if out is None:
        typer.echo(text, nl=False)
    else:
        with writing_output(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        write_output(out, text)
    answer(
        source=result.source,
        system=result.system,
        out=out,
        yaml=text,
        left_blank=result.blanks,
        left_out=[
            {"key": omitted.shown, "reason": omitted.reason, "category": omitted.category}
            for omitted in result.left_out
        ],
        to_do=result.to_do,
        changes_the_algorithm=result.changes_the_algorithm,
    )
    _show(result, out)
    raise typer.Exit(1 if strict and result.changes_the_algorithm else 0)


def _show(result: "Conversion", out: Path | None) -> None:
    """Prints what became of the keys, on stderr if the YAML is on stdout."""
    from rich.markup import escape
    from rich.table import Table

    from ajet.core.text.terminal import Console

    table = Table(title=escape(f"{result.source} ({result.system})"))
    table.add_column("keys", justify="right")
    table.add_column("")
    for count, text in result.summary():
        table.add_row(str(count), escape(text))
    console = Console(stderr=out is None)
    console.print(table)
    for key, origin in result.blanks.items():
        console.print(escape(f"left blank: {key}: {origin}"), soft_wrap=True)
    for entry in [*result.of("algorithm"), *result.of("unknown")]:
        console.print(escape(f"left out: {entry.shown}: {entry.reason}"), soft_wrap=True)
    for text in result.to_do:
        console.print(escape(f"to do: {text}"), soft_wrap=True)
    if out is not None:
        console.print(escape(f"{out}: `ajet check --conf {shlex.quote(str(out))}` checks it"))
