"""The files of a model's folder other than weights: config, tokenizer, chat template."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ajet.core.model.load import LoadedModel


def model_files(loaded: LoadedModel) -> dict[str, bytes]:
    """Returns the content of each file by its name, as transformers writes and reads it."""
    with TemporaryDirectory() as folder:
        loaded.model.config.save_pretrained(folder)
        if loaded.model.generation_config is not None:
            loaded.model.generation_config.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        return {
            str(file.relative_to(folder)): file.read_bytes()
            for file in sorted(Path(folder).rglob("*"))
            if file.is_file()
        }
