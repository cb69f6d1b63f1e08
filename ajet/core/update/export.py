"""Exports a run's weights as a folder that transformers, vLLM and SGLang load.

checkpoints/step_N (of either kind)  ->  config.json, model*.safetensors, tokenizer, …
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ajet.core.checkpoint.checkpoint import read_weights
from ajet.core.checkpoint.manifest import naming_checkpoint, reason_of
from ajet.core.errors import CheckpointError, OptionError
from ajet.core.errors.codes import Code
from ajet.core.model.load import LoadedModel, without_progress_bar
from ajet.core.model.multimodal import copy_processor, whole_model
from ajet.core.update.lora import with_lora
from ajet.core.update.many_adapters import adapter_tensors, check_names
from ajet.core.update.settings import LoraSettings
from ajet.core.update.weights import load_weights, trainable

WRITING = ".writing_"


def export_model(
    loaded: LoadedModel,
    checkpoint: Path,
    out: Path,
    *,
    lora: LoraSettings | None = None,
    adapter: bool = False,
    name: str | None = None,
) -> None:
    """Writes the model with the checkpoint's weights to `out`, with adapters merged; `adapter`
    writes only the adapters, as peft's folder. `name` says which one, where the run trained several
    separately.

    `loaded` is the model that the run began with; it is changed."""
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a new folder", code=Code.OUTPUT_EXISTS)
    model = trained_model(loaded, checkpoint, lora=lora, adapter=adapter, name=name)
    write_model(loaded, model, out, is_whole=not adapter)


def trained_model(
    loaded: LoadedModel,
    checkpoint: Path,
    *,
    lora: LoraSettings | None = None,
    adapter: bool = False,
    name: str | None = None,
) -> Any:
    """Returns the model with the checkpoint's weights, with adapters merged or as `adapter`."""
    names = lora.adapters if lora else ()
    if name not in (names or (None,)):
        problem = "names no adapter" if name is None else f"is {name}"
        there = ", ".join(names) or "only one, without a name"
        raise OptionError(f"--name {problem}: the run's adapters are {there}")
    if adapter and lora is None:
        raise OptionError("--adapter: the run trained all weights, it has no adapters")
    if lora and name is not None:
        lora = lora.for_adapter(name)
    model: Any = with_lora(loaded.model, lora) if lora else loaded.model
    with naming_checkpoint(checkpoint):
        tensors = read_weights(checkpoint)
        if name is not None:
            check_names(tensors, names)
            tensors = adapter_tensors(tensors, name)
        load_weights(trainable(model), tensors)
    return model.merge_and_unload() if lora and not adapter else model


def write_model(
    loaded: LoadedModel, model: Any, out: Path, *, is_whole: bool = True, card: str | None = None
) -> None:
    """Writes the model or its adapters with the tokenizer; with `is_whole` the text model of a
    multimodal checkpoint is put back into that. `card` is the text of its README.md."""
    whole = loaded.whole if is_whole else None
    if whole is not None:
        with without_progress_bar():
            model = whole_model(whole.name_or_path, model, **whole.options)
    # Written under another name and renamed, so `out` is whole or absent.
    writing = out.with_name(f"{WRITING}{out.name}")
    try:
        shutil.rmtree(writing, ignore_errors=True)
        with without_progress_bar():
            model.save_pretrained(writing)
        if whole is not None:
            copy_processor(whole.name_or_path, writing, **whole.options)
        loaded.tokenizer.save_pretrained(writing)
        if card is not None:  # instead of the one that peft writes
            (writing / "README.md").write_text(card, encoding="utf-8")
        writing.rename(out)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(writing, ignore_errors=True)
        raise CheckpointError(
            f"{out} was not written: {reason_of(error)}", code=Code.OUTPUT_NOT_WRITTEN
        ) from error
