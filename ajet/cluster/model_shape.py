"""Reads the shape of a model from its config.json or GGUF header, without weights or torch.

    {"hidden_size": 896, "num_hidden_layers": 24, …}   ->   494,032,768 parameters

Not covered: what the sizes mean (family_shapes.py).
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ajet.cluster.family_shapes import shape_of
from ajet.cluster.gguf_header import GgufHeader
from ajet.cluster.layer_shape import ModelShape
from ajet.core.error_codes import Code
from ajet.core.error_text import extra_advice, first_line
from ajet.core.errors import ModelError

EMBEDDED = Path(__file__).parents[1] / "embedded"
IN_GGUF = ("llama", "mistral", "qwen2", "qwen3")
"""The families of which a GGUF header says all sizes that matter."""
SIZES = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")


def model_shape(path: str, *, download: bool = False) -> ModelShape:
    """Returns the shape of `model.path`, which may be a GGUF file; `download` as for
    `find_config`."""
    file = Path(path).expanduser()
    if file.suffix == ".gguf" and file.is_file():
        content = GgufHeader.of(file).model_config()
        if content["model_type"] not in IN_GGUF:
            raise ModelError(
                f"{path}: model_type {content['model_type']!r}: of a GGUF file sizes are known "
                f"for {', '.join(IN_GGUF)} alone; give a folder with a config.json",
                code=Code.MODEL_UNSUPPORTED,
            )
        return shape_of(content, path)
    return read_shape(find_config(path, download=download))


def read_shape(file: Path) -> ModelShape:
    """Returns the shape in a config.json; ModelError for an unknown architecture."""
    return shape_of(_read_json(file), str(file))


def sizes(file: Path) -> dict[str, Any]:
    """Returns the entries of a config.json that all checkpoints of one model share, for models of
    any family."""
    content = _read_json(file)
    text_config = content.get("text_config")
    found = content | text_config if isinstance(text_config, dict) else content
    return {name: found[name] for name in SIZES if name in found}


def find_config(path: str, *, download: bool) -> Path:
    """Returns the config.json of `model.path`. For a name on the hub it is the cached one; with
    `download` that one file is downloaded if it is not cached."""
    if path.startswith("embedded:"):
        return EMBEDDED / path.removeprefix("embedded:") / "config.json"
    local = Path(path).expanduser()
    if local.is_dir():
        return local / "config.json"
    if local.is_file() or path.endswith(".gguf"):
        raise ModelError(
            f"model '{path}': no config.json: give a folder, a name on the Hub or a .gguf file",
            code=Code.MODEL_NOT_FOUND,
        )
    if find_spec("huggingface_hub") is None:
        raise ModelError(
            f"model '{path}': the Hub's cache cannot be read: {extra_advice('huggingface_hub')}",
            code=Code.PACKAGE_MISSING,
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = try_to_load_from_cache(path, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        if download:
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(path, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model '{path}': no config.json: {first_line(str(error))}", code=Code.MODEL_NOT_FOUND
        ) from error
    raise ModelError(
        f"model '{path}': its config.json is not on this machine", code=Code.MODEL_NOT_FOUND
    )


def _read_json(file: Path) -> dict[str, Any]:
    """Returns the content of a config.json."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file}: no model's config.json can be read there: {error}", code=Code.MODEL_NOT_LOADED
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: a model's config.json is a mapping", code=Code.MODEL_NOT_LOADED)
    return content
