"""Loads a model and its tokenizer from the config's `model.path`: a transformers folder, a name on
the Hugging Face hub, a GGUF file (its weights are expanded to `dtype`), or `embedded:math`, which
comes with this package. Every failure is a `ModelError` of one line.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ajet.core.errors import ModelError, UnsupportedModel
from ajet.core.errors.codes import Code
from ajet.core.images.processor import ImageProcessor, load_processor
from ajet.core.images.store import ImageStore
from ajet.core.model.allocator import is_large, prepare_memory
from ajet.core.model.gguf_file import gguf_read_once
from ajet.core.model.lfs import pointer_problem
from ajet.core.model.multimodal import causal_model, load_text_model, text_config_of
from ajet.core.model.precision import float64_device, to_float64
from ajet.core.model.tokenizer import (
    EMBEDDED,
    EMBEDDED_DIR,
    set_template_variables,
    template_file,
)
from ajet.core.model.vision import SEEING, Vision, vision_of
from ajet.core.text.error_text import extra_advice
from ajet.core.text.plain_value import printable

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
HUB_TIMEOUT_S = 10
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)
LOAD_ERRORS = (OSError, ValueError, TypeError, LookupError, ImportError, RuntimeError, MemoryError)
LOAD_ERRORS += (AttributeError, ArithmeticError, SafetensorError, UnpicklingError)
LOAD_ERRORS += (StrictDataclassError,)  # a value of config.json that transformers refuses
LOAD_ERRORS += (struct.error,)  # a GGUF file that ends too early
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass
class LoadedModel:
    """A causal model on its device, and its tokenizer; `name` is `model.path`, and `whole` is the
    multimodal checkpoint, if the model is the text model of one."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    whole: "ModelSource | None" = None

    @property
    def vision(self) -> Vision | None:
        """The vision tower, if the model sees images."""
        return vision_of(self.model)


@dataclass(frozen=True)
class ModelSource:
    """The arguments of `from_pretrained` that say where the files are."""

    name_or_path: str
    options: dict[str, Any]

    @property
    def is_gguf(self) -> bool:
        return "gguf_file" in self.options


def load_model(
    path: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    with_weights: bool = True,
    images: ImageStore | None = None,
    train_tower: bool = False,
) -> LoadedModel:
    """Loads a causal language model. `with_weights=False` makes the same model on torch's meta
    device, without memory for weights: another process has them.

    `dtype` and `device` "auto" mean CUDA with bfloat16 where there is CUDA, else CPU with float32.
    `chat_template` is the path of a jinja file that replaces the tokenizer's own template, or
    embedded:qwen2_5; `chat_template_kwargs` sets its variables. With a store of `images`, the model
    of a multimodal checkpoint sees them; `train_tower` makes its vision tower a part of the
    model's weights."""
    target = resolve_device(device)
    source = find_source(path)
    options = {**source.options, "trust_remote_code": False}  # a model's own code is not run
    with gguf_read_once() if source.is_gguf else nullcontext():
        text_config = None
        if not source.is_gguf:  # first, since a tokenizer reads config.json too
            _refuse_kernels_of_the_hub(path, source, options)
            text_config = _load(path, "config", text_config_of, source.name_or_path, **options)
        tokenizer = _load(
            path, "tokenizer", AutoTokenizer.from_pretrained, source.name_or_path, **options
        )
        if len(tokenizer) < 2:
            raise ModelError(
                f"model '{path}': its tokenizer is empty; save one next to the weights",
                code=Code.NO_TOKENIZER,
            )
        if chat_template is not None:
            tokenizer.chat_template = _read_template(chat_template)
        if chat_template_kwargs:
            set_template_variables(tokenizer, chat_template_kwargs)
        processor = None
        if images is not None:
            processor = _image_processor(path, source, text_config, images, options)
        model, multimodal = _load(
            path,
            "model",
            _make_model,
            source.name_or_path,
            text_config=text_config,
            dtype=_dtype(dtype, target),
            with_weights=with_weights,
            **options,
        )
    if model.dtype == torch.float64:
        to_float64(multimodal or model)
    whole = None if text_config is None else source
    if source.is_gguf:
        _clear_quantization_config(model)
        model.config.architectures = [type(model).__name__]  # servers read it from the saved folder
    place = target if with_weights else torch.device("meta")
    if place.type == "cpu" and is_large(model):
        prepare_memory()
    if processor is not None and multimodal is not None:
        Vision(multimodal.to(place), processor).attach(model, train=train_tower)
    return LoadedModel(model.to(place), tokenizer, path, whole)


def load_image_processor(path: str, images: ImageStore) -> ImageProcessor:
    """Loads what a chat template needs of a model that sees images, without the model."""
    source = find_source(path)
    text_config = _load(path, "model", text_config_of, source.name_or_path, **source.options)
    return _image_processor(path, source, text_config, images, source.options)


def _image_processor(
    path: str,
    source: "ModelSource",
    text_config: PreTrainedConfig | None,
    images: ImageStore,
    options: dict[str, Any],
) -> ImageProcessor:
    if text_config is None:
        raise UnsupportedModel(
            f"model '{path}': it sees no images; set ajet.model.images.enabled=false, or give a "
            "multimodal checkpoint"
        )
    config = _load(path, "model", AutoConfig.from_pretrained, source.name_or_path, **options)
    if config.model_type not in SEEING:
        raise UnsupportedModel(
            f"model '{path}': models of type {config.model_type!r} do not see images here yet; set "
            f"ajet.model.images.enabled=false, or give one of {', '.join(sorted(SEEING))}"
        )
    processor = _load(
        path, "image processor", load_processor, source.name_or_path, config=config, **options
    )
    return ImageProcessor(processor, config.image_token_id, images)


def _refuse_kernels_of_the_hub(path: str, source: ModelSource, options: dict[str, Any]) -> None:
    """Refuses a config.json that names a repository of the hub as an implementation, because
    transformers would download and run its code."""
    config, _ = _load(
        path, "model", PreTrainedConfig.get_config_dict, source.name_or_path, **options
    )
    sections = [config]
    for section in sections:  # the list grows during the loop: nested sections are appended
        for key, value in section.items():
            if isinstance(value, dict):
                sections.append(value)
            elif key.endswith("_implementation") and "/" in str(value):
                raise ModelError(
                    f"model '{path}': its config.json asks for code of the hub "
                    f"({key}: {printable(str(value))}), which ajet does not run: remove that line",
                    code=Code.MODEL_NOT_LOADED,
                )


def _make_model(
    name_or_path: str,
    *,
    text_config: PreTrainedConfig | None,
    dtype: torch.dtype,
    with_weights: bool,
    **options: Any,
) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """Makes a model, or with a `text_config` the text model of a multimodal checkpoint, and that
    one; without weights on torch's meta device."""
    if text_config is not None:
        return load_text_model(
            name_or_path,
            text_config=text_config,
            dtype=dtype,
            with_weights=with_weights,
            **options,
        )
    if not with_weights:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(name_or_path, **options)
            return causal_model(config, dtype), None
    # Newer versions of transformers leave GGUF weights packed where they have a kernel for that;
    # packed weights cannot be trained.
    config_class = getattr(transformers, "GgufConfig", None)
    if "gguf_file" in options and config_class is not None:
        options["quantization_config"] = config_class(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype, **options), None


def find_source(path: str) -> ModelSource:
    """Returns where the files of `model.path` are."""
    if path.startswith(EMBEDDED):
        name = path.removeprefix(EMBEDDED)
        if not name or not (EMBEDDED_DIR / name / "config.json").is_file():
            raise ModelError(
                f"model '{path}': not in this package; there is {_embedded_names()}",
                code=Code.MODEL_NOT_FOUND,
            )
        return ModelSource(str(EMBEDDED_DIR / name), {})
    local = Path(path).expanduser()
    if local.is_file():
        return _gguf_source(local)
    if local.is_dir():
        _check_folder(local)
        return ModelSource(str(local), {})
    if HUB_NAME.fullmatch(path) and not path.endswith(".gguf"):
        return _hub_source(path)
    raise ModelError(
        f"model '{path}': no such file or folder; give a transformers folder, a .gguf file, "
        f"a hub name or {_embedded_names()}",
        code=Code.MODEL_NOT_FOUND,
    )


def _embedded_names() -> str:
    names = sorted(EMBEDDED + config.parent.name for config in EMBEDDED_DIR.glob("*/config.json"))
    return ", ".join(names) or "no embedded model"


def _gguf_source(file: Path) -> ModelSource:
    if file.suffix != ".gguf":
        raise ModelError(
            f"model '{file}': is a file but not a .gguf; give the folder around it",
            code=Code.MODEL_NOT_FOUND,
        )
    try:
        import_module("gguf")
    except ImportError as error:
        raise ModelError(
            f"model '{file}': reading GGUF needs a package ({error}): {extra_advice('gguf')}",
            code=Code.PACKAGE_MISSING,
        ) from error
    return ModelSource(str(file.parent), {"gguf_file": file.name})


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model '{folder}': no config.json there; give a transformers folder",
            code=Code.MODEL_NOT_FOUND,
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"model '{folder}': no tokenizer there (no {TOKENIZER_FILES[0]}); "
            "save it next to the weights with tokenizer.save_pretrained",
            code=Code.NO_TOKENIZER,
        )
    if problem := pointer_problem(folder):
        raise ModelError(f"model '{folder}': {problem}", code=Code.MODEL_NOT_LOADED)


def _hub_source(name: str) -> ModelSource:
    """Asks the hub once, with a short timeout: transformers would retry for a minute."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # from whichever HTTP client it uses
    )

    cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except (HTTPError, OSError) as error:
        if cached:
            return ModelSource(name, {"local_files_only": True})
        raise ModelError(
            f"model '{name}': no such folder, not in the local cache, and not from the hub "
            f"({_one_line(error)}); give the path of a folder, set HF_HOME to a cache that has it, "
            f"or take one that comes with this package: {_embedded_names()}",
            code=Code.MODEL_NOT_FOUND,
        ) from error
    return ModelSource(name, {})


def _load(path: str, part: str, load: Callable[..., Any], name_or_path: str, **options: Any) -> Any:
    try:
        with without_progress_bar():
            return load(name_or_path, **options)
    except LOAD_ERRORS as error:
        raise ModelError(
            f"model '{path}': its {part} does not load: {_one_line(error)}",
            code=Code.MODEL_NOT_LOADED,
        ) from error


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Hides the progress bars of loading: the run has its own display, and a log file would keep
    each state of a bar as text."""
    from transformers.utils import logging

    with suppress(ImportError):  # not all versions have this module
        from transformers import modeling_gguf_pytorch_utils as gguf

        # It uses tqdm's own bar, which transformers' switch does not affect.
        gguf.tqdm = logging.tqdm  # pyright: ignore[reportPrivateImportUsage]
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _clear_quantization_config(model: Any) -> None:
    """Removes the marks of quantisation from a model whose weights were expanded; with them
    `save_pretrained` would refuse it."""
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    for name in ("hf_quantizer", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    model.is_quantized = False


def _read_template(file: str) -> str:
    try:
        return template_file(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(
            f"chat template '{file}': {error.strerror}; give a jinja file",
            code=Code.TEMPLATE_NOT_FOUND,
        ) from error
    except UnicodeDecodeError as error:
        raise ModelError(
            f"chat template '{file}': not a text file in UTF-8", code=Code.TEMPLATE_NOT_FOUND
        ) from error


def resolve_device(device: str) -> torch.device:
    """Returns the device that the config names; auto is CUDA where there is CUDA."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise ModelError(
                "device 'mps': torch finds no GPU of a Mac on this machine; use auto or cpu",
                code=Code.DEVICE,
            )
        return torch.device(device)
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not match:
        raise ModelError(
            f"device '{device}': unknown; use auto, cpu, cuda, cuda:N or mps", code=Code.DEVICE
        )
    num = torch.cuda.device_count()
    if device != "cpu" and int(match[1] or 0) >= num:
        there = f"cuda:0 to cuda:{num - 1}" if num else "no CUDA device"
        raise ModelError(
            f"device '{device}': torch finds {there} on this machine; use auto or cpu",
            code=Code.DEVICE,
        )
    return torch.device(device)


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise ModelError(
            f"dtype '{dtype}': unknown; use auto, {', '.join(DTYPES)}", code=Code.DEVICE
        )
    if dtype == "float64" and float64_device(device) != device:
        raise ModelError(
            f"dtype 'float64': {device} has none; use float32, or device cpu", code=Code.DEVICE
        )
    return DTYPES[dtype]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
