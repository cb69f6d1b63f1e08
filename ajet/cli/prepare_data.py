"""Implements `ajet data prepare`: writes a data set as train and test files for any config."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, Verbose


def prepare_data(
    name: Annotated[
        Literal["gsm8k", "math-lighteval", "arithmetic"],
        typer.Argument(help="Which data; arithmetic is generated and needs no network."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Local files with the splits train and test, not the Hub."),
    ] = None,
    form: Annotated[
        Literal["jsonl", "parquet"], typer.Option("--format", help="The files' format.")
    ] = "jsonl",
    num_train: Annotated[
        int | None, typer.Option(min=1, help="Training rows. [default: all; arithmetic 4096]")
    ] = None,
    num_test: Annotated[
        int | None, typer.Option(min=1, help="Test rows. [default: all; arithmetic 512]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of arithmetic. [default: 0]")
    ] = None,
    agent_name: Annotated[
        str | None, typer.Option(help="Write this agent_name in every row.")
    ] = None,
    agent_cfg_path: Annotated[
        str | None, typer.Option(help="Write this agent_cfg_path in every row.")
    ] = None,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
) -> None:
    """Write a data set as train and test files."""
    if name == "arithmetic" and source is not None:
        raise typer.BadParameter("arithmetic is generated: leave --from out")
    if name != "arithmetic" and seed is not None:
        raise typer.BadParameter(f"{name} needs no seed: leave --seed out")
    from ajet.sources.prepare import DataRecipe, write_splits

    sizes = {"train": num_train, "test": num_test}
    values = {"agent_name": agent_name, "agent_cfg_path": agent_cfg_path}
    columns = {column: value for column, value in values.items() if value is not None}
    recipe = DataRecipe(name, source, sizes, seed or 0, columns)
    files = write_splits(recipe, out, form, overwrite=overwrite)
    answer(files=files)
    for path, count in files.items():
        typer.echo(f"{path}: {count:,} rows")
    typer.echo("Read it with:")
    typer.echo("  ajet.task_reader.type=huggingface_dat_repo")
    typer.echo(f"  ajet.task_reader.huggingface_dat_repo.dataset_path={out}")
