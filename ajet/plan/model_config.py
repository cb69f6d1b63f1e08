"""Finds and reads a model's config.json, or the header of a GGUF file, but no weights."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import extra_advice, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

EMBEDDED = Path(__file__).parents[1] / "embedded"
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")
SIZES = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")


def sizes(file: Path) -> dict[str, Any]:
    """Returns the entries of a config.json that are the same in all checkpoints of a model."""
    content = _read_json(file)
    text_config = content.get("text_config")
    fields = content | text_config if isinstance(text_config, dict) else content
    return {name: fields[name] for name in SIZES if name in fields}


def stored_parameters(folder: Path) -> int | None:
    """Returns the number of weights according to the headers of a model's safetensors files; None
    if there are no such files, or weights are packed. Needs no package."""
    num = 0
    for file in folder.glob("model*.safetensors"):
        try:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                # Another kind of file may begin with any number.
                header = json.loads(stream.read(min(length, file.stat().st_size)))
        except (OSError, ValueError):
            return None
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        if any(tensor["dtype"] not in PLAIN_DTYPES for tensor in tensors):
            return None
        num += sum(math.prod(tensor["shape"]) for tensor in tensors)
    return num or None


def find_config(path: str, *, download: bool) -> Path:
    """Returns the config.json of `model.path`; for a name on the Hub the cached one, which is
    downloaded first if `download`."""
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
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = try_to_load_from_cache(path, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        if download:
            return Path(hf_hub_download(path, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model '{path}': no config.json: {first_line(str(error))}", code=Code.MODEL_NOT_FOUND
        ) from error
    raise ModelError(
        f"model '{path}': its config.json is not on this machine", code=Code.MODEL_NOT_FOUND
    )


def read_config(path: str, *, download: bool = False) -> "PreTrainedConfig":
    """Returns transformers' config of `model.path` (of the text model, if multimodal)."""
    file = Path(path).expanduser()
    if file.suffix == ".gguf" and file.is_file():
        return load_config(str(file.parent), path, gguf_file=file.name)
    return read_config_file(find_config(path, download=download))


def read_config_file(file: Path) -> "PreTrainedConfig":
    """Returns transformers' config from a config.json of any name."""
    _read_json(file)
    return load_config(str(file), str(file))


def load_config(name_or_path: str, label: str, **options: Any) -> "PreTrainedConfig":
    """Has transformers read a config; errors begin with `label`."""
    try:
        from transformers import AutoConfig

        from ajet.core.model.load import LOAD_ERRORS
        from ajet.core.model.multimodal import text_config_of
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{label}: reading its sizes needs transformers: {extra_advice('transformers')}",
            code=Code.PACKAGE_MISSING,
        ) from error

    options["trust_remote_code"] = False
    try:
        text_config = None if "gguf_file" in options else text_config_of(name_or_path, **options)
        return text_config or AutoConfig.from_pretrained(name_or_path, **options)
    except LOAD_ERRORS as error:
        raise ModelError(
            f"{label}: transformers cannot read the model's config: {first_line(str(error))}",
            code=Code.MODEL_NOT_LOADED,
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file}: cannot be read as a model's config.json: {error}", code=Code.MODEL_NOT_LOADED
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object", code=Code.MODEL_NOT_LOADED)
    return content
