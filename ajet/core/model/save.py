"""The files of a model's folder other than weights: config, tokenizer, chat template, processor."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ajet.core.model.load import LoadedModel
from ajet.core.model.multimodal import save_processor


def model_files(loaded: LoadedModel, *, is_whole: bool = False) -> dict[str, bytes]:
    """Returns the content of each file by its name, as transformers writes and reads it. `is_whole`
    means those of the multimodal checkpoint instead of its text model's."""
    with TemporaryDirectory() as folder:
        loaded.model.config.save_pretrained(folder)
        if loaded.model.generation_config is not None:
            loaded.model.generation_config.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        if is_whole:
            assert loaded.whole is not None and loaded.vision is not None
            save_processor(loaded.whole.name_or_path, Path(folder), loaded.whole.options)
            loaded.vision.processor.save(Path(folder))
        return {
            str(file.relative_to(folder)): file.read_bytes()
            for file in sorted(Path(folder).rglob("*"))
            if file.is_file()
        }
