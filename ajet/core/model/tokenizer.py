"""Loads a tokenizer without its model, from a run folder, which holds no weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Loads the tokenizer that `save_pretrained` left in `folder`, with its chat template."""
    try:
        is_there = (folder / "tokenizer_config.json").is_file()
    except PermissionError as error:
        raise ModelError(
            f"{folder} cannot be read: {error.strerror}", code=Code.NO_TOKENIZER
        ) from error
    if not is_there:
        raise ModelError(
            f"{folder}: no tokenizer there; it is saved when a run starts", code=Code.NO_TOKENIZER
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the tokenizers library raises plain exceptions for a damaged file
        one_line = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder}: the tokenizer does not load: {one_line}", code=Code.NO_TOKENIZER
        ) from error
    # Without this file a fast tokenizer loads too, but has no vocabulary.
    if tokenizer.is_fast and not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"{folder / 'tokenizer.json'}: no such file; restore a copy of it",
            code=Code.NO_TOKENIZER,
        )
    return tokenizer
