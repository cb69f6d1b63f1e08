"""Implements `ajet inspect schema`: the JSON Schema of a config, for editors."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, output_file


def schema(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write it here, not to the screen.", callback=output_file
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the JSON Schema of a config file.

    With it editors complete keys, explain them, and underline unknown ones, in a YAML that begins
    with the line: # yaml-language-server: $schema=ajet.schema.json
    """
    import json

    from ajet.core.config.json_schema import config_schema
    from ajet.core.record.atomic_file import write_output

    schema = config_schema()
    text = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    if out is None or out == Path("-"):
        answer(schema=schema)
        typer.echo(text, nl=False)
        return
    write_output(out, text)
    answer(file=out)
    typer.echo(f"{out}: put `# yaml-language-server: $schema={out.name}` at the top of a YAML")
