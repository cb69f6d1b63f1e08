"""Implements `ajet export RUN`: writes the trained model as a Hugging Face folder or a GGUF file,
and puts it on the Hub."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, Verbose, output_file, refuse_existing_folder


def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The run folder: its newest checkpoint; or RUN/checkpoints/step_N; or a folder "
            "that a client of `ajet serve --tinker` has saved.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write, which must be new.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Upload the folder to this repository of the Hugging Face Hub, which must be new.",
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(help="With --push: the branch, of a repository that may be there already."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="With --push: everybody may see it. [private]")
    ] = False,
    gguf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.gguf",
            help="Write the model as a GGUF file, for llama.cpp and what builds on it.",
            callback=output_file,
        ),
    ] = None,
    gguf_type: Annotated[
        Literal["f32", "f16", "bf16", "q8_0"],
        typer.Option("--type", help="The number format of the GGUF file's matrices."),
    ] = "f16",
    overwrite: Overwrite = False,
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
    """Write a checkpoint's weights for other tools.

    As a folder that transformers, vLLM and SGLang load (--out), with a model card; on the Hub
    (--push); as a file for llama.cpp (--gguf). Config, tokenizer and untrained weights are read
    from the model that the run began with.
    """
    import os
    import tempfile

    from ajet.core.checkpoint.manifest import find_checkpoint
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.record.run_log import begin_screen_log

    problem = None
    if out is None and push is None and gguf is None:
        problem = "where to? give --out DIR, --push OWNER/NAME or --gguf FILE.gguf"
    elif push is None and (revision is not None or public):
        problem = "--revision and --public are about --push OWNER/NAME: give it, too"
    elif gguf is not None and gguf.suffix != ".gguf":
        problem = f"--gguf {gguf}: the name of such a file ends in .gguf"
    elif gguf is not None and adapter:
        problem = "--gguf writes the whole model: leave --adapter out, and adapters are merged"
    if problem is not None:
        raise ConfigError(problem, code=Code.OPTIONS_TOGETHER)
    begin_screen_log(verbose)
    target, file = (place and place.absolute() for place in (out, gguf))
    checkpoint = find_checkpoint(source.absolute())
    if target is not None:
        refuse_existing_folder(target)
    repository = None
    if push is not None:
        from ajet.core.update.push import HubRepository

        repository = HubRepository(push, revision, public)
        repository.check()  # before minutes of work

    # Imported after the checks, since they load torch.
    from ajet import assembly
    from ajet.core.record.run_folder import RunFolder
    from ajet.core.update.export import trained_model, write_model
    from ajet.core.update.settings import UpdateSettings
    from ajet.read.recorded_run import RecordedRun
    from ajet.read.reports.model_card import model_card
    from ajet.serve.tinker.samplers import saved_by_client

    saved = saved_by_client(checkpoint)
    folder = None
    if saved is not None:
        config, lora = saved
    else:
        run = RecordedRun(checkpoint.parent.parent)
        os.chdir(run.current_folder)  # the model's path may be relative
        config, lora = run.config, UpdateSettings.from_config(run.config).lora
        folder = RunFolder(run.folder.path)
    loaded = assembly.load_policy_model(config, dtype=None if dtype == "auto" else dtype)
    model = trained_model(loaded, checkpoint, lora=lora, adapter=adapter, name=name)
    if file is not None:
        from ajet.core.model.gguf_writer import write_gguf

        write_gguf(loaded, model, file, gguf_type)
        typer.echo(f"written: {file}, from {checkpoint}")
    answer(folder=target, gguf=file, checkpoint=checkpoint)
    if target is None and repository is None:
        return
    card = model_card(config, checkpoint, folder, adapter=adapter)
    with tempfile.TemporaryDirectory() as temporary:
        written = target or Path(temporary) / "model"
        write_model(loaded, model, written, is_whole=not adapter, card=card)
        if target is not None:
            typer.echo(f"written: {target}, from {checkpoint}")
        if repository is not None:
            address = repository.push(written, f"{checkpoint.name} of {config.experiment_name}")
            answer(pushed=address)
            typer.echo(f"pushed: {address}")
