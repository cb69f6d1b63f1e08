"""Implements `ajet export RUN --out DIR`: writes the trained model as a Hugging Face folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Verbose, refuse_existing_folder


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The run folder: its newest checkpoint; or RUN/checkpoints/step_N; or a folder "
            "that a client of `ajet serve --tinker` has saved.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, which must be new.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write only the LoRA adapters, not merged.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Which adapter, if the run trained several."),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(help="The weights' number format; auto is the one that the run computed in."),
    ] = "auto",
    verbose: Verbose = False,
) -> None:
    """Write a checkpoint's weights as a folder for other tools.

    transformers, vLLM and SGLang load it. Config, tokenizer and untrained weights are read from the
    model that the run began with.
    """
    import os

    from ajet.core.checkpoint.manifest import find_checkpoint
    from ajet.core.record.screen_log import begin_screen_log

    begin_screen_log(verbose)
    target = out.absolute()
    checkpoint = find_checkpoint(source.absolute())
    refuse_existing_folder(target)

    # Imported after the checks, since they load torch.
    from ajet import assembly
    from ajet.core.update.export import export_model
    from ajet.core.update.settings import UpdateSettings
    from ajet.read.recorded_run import RecordedRun
    from ajet.serve.tinker.export import saved_by_client

    saved = saved_by_client(checkpoint)
    if saved is not None:
        config, lora = saved
    else:
        run = RecordedRun(checkpoint.parent.parent)
        os.chdir(run.current_folder)  # the model's path may be relative
        config, lora = run.config, UpdateSettings.from_config(run.config).lora
    loaded = assembly.load_policy_model(config, dtype=None if dtype == "auto" else dtype)
    export_model(loaded, checkpoint, target, lora=lora, adapter=adapter, name=name)
    answer(folder=target, checkpoint=checkpoint)
    typer.echo(f"written: {target}, from {checkpoint}")
