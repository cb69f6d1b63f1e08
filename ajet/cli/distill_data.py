"""Implements `ajet data distill RUN`: writes episodes as rows for a run on given replies."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, Verbose, output_file


def distill_data(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    out: Annotated[
        Path,
        typer.Option("--out", help="The JSON-lines file to write.", callback=output_file),
    ],
    min_reward: Annotated[
        float,
        typer.Option(help="Training episodes (of pairs, the best) with at least this reward."),
    ] = 1.0,
    per_task: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of each task, the newest N whose replies differ, or the newest N pairs. "
            "[default: all]",
        ),
    ] = None,
    pairs: Annotated[
        bool,
        typer.Option(help="The best and the worst episode of each group, for a preference run."),
    ] = False,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
) -> None:
    """Write a run's good episodes, or pairs of them, as rows of chat messages.

    The rows also have the sampled token ids."""
    from ajet.core.errors import DataError
    from ajet.core.errors.codes import Code
    from ajet.core.record.atomic_file import write_output
    from ajet.core.record.run_log import begin_screen_log
    from ajet.core.task.jsonl import jsonl_text
    from ajet.read.recorded_run import RecordedRun
    from ajet.sources.recorded import recorded_pairs, recorded_rows

    begin_screen_log(verbose)
    recorded = RecordedRun(run)
    with recorded.reader() as reader:
        make = recorded_pairs if pairs else recorded_rows
        data = make(reader, recorded.template, min_reward=min_reward, per_task=per_task)
    if not data.rows:
        wanted = f"a reward of {min_reward:g} or more"
        raise DataError(
            f"{run}: no group has an episode with {wanted} and one that earned less"
            if pairs
            else f"{run}: no training episode has {wanted}",
            code=Code.NO_GOOD_EPISODE,
        )
    write_output(out, jsonl_text(data.rows))
    answer(
        file=out,
        num_rows=len(data.rows),
        num_exact=data.num_exact,
        num_without_messages=data.num_without_messages,
        num_of_several=data.num_of_several,
        num_asked_otherwise=data.num_asked_otherwise,
    )
    of_pairs = "conversations" if pairs else "them"
    typer.echo(
        f"{out}: {len(data.rows):,} rows, {data.num_exact:,} of {of_pairs} with "
        "exactly the recorded prompts"
    )
    for num, reason in (
        (data.num_without_messages, "episodes that called the model with token ids"),
        (data.num_of_several, "episodes of several conversations, which no pair compares"),
        (data.num_asked_otherwise, "groups whose episodes began with other messages or tools"),
    ):
        if num:
            typer.echo(f"left out: {num:,} {reason}")
    typer.echo("Read it with:")
    kind = "preference" if pairs else "supervised"
    typer.echo(f"  ajet.kind={kind} ajet.task_reader.type=jsonl_dataset_file")
    typer.echo(f"  ajet.task_reader.jsonl_dataset_file.training.file_path={out}")
