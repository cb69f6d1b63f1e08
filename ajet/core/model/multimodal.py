"""The text model of a multimodal checkpoint: only it is trained, and it is exported inside the
whole model. Its modules are those of the whole model, the rest of which is freed.

    Gemma3ForConditionalGeneration              Gemma3ForCausalLM
      model.vision_tower, …
      model.language_model            ->          model
      lm_head                         ->          lm_head
"""

from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils.hub import cached_file

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code

PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def text_config_of(name_or_path: str, **options: Any) -> PreTrainedConfig | None:
    """Returns the config of the text model inside a multimodal checkpoint; None where transformers
    loads the checkpoint itself as a causal language model."""
    config = AutoConfig.from_pretrained(name_or_path, **options)
    text_config: Any = config.get_text_config()
    if text_config is config:
        return None
    if type(text_config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return None
        raise _unsupported(name_or_path, config)
    # Where the two differ, the whole model's class decides whether weights are tied.
    text_config.tie_word_embeddings = config.tie_word_embeddings
    return text_config


def load_text_model(
    name_or_path: str, *, text_config: PreTrainedConfig, dtype: torch.dtype, **options: Any
) -> PreTrainedModel:
    """Loads the whole checkpoint and returns its text model as a causal language model."""
    whole = _load_whole(name_or_path, dtype=dtype, **options)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(text_config, dtype=dtype)
    part = _text_part(whole, model, name_or_path)
    setattr(model, model.base_model_prefix, part)
    model.set_output_embeddings(whole.get_output_embeddings())
    part.config.tie_word_embeddings = text_config.tie_word_embeddings
    # One object for all modules: a change of the model's config must change what they compute.
    model.config = part.config
    model.generation_config = whole.generation_config
    model.config.architectures = [type(model).__name__]  # servers read it from the saved folder
    return model.eval()


def whole_model(name_or_path: str, model: PreTrainedModel, **options: Any) -> PreTrainedModel:
    """Returns the checkpoint's multimodal model with the weights of `model` as its text model."""
    whole = _load_whole(name_or_path, dtype=model.dtype, **options)
    _text_part(whole, model, name_or_path).load_state_dict(model.base_model.state_dict())
    head: Any = whole.get_output_embeddings()
    trained: Any = model.get_output_embeddings()
    head.load_state_dict(trained.state_dict())
    return whole


def copy_processor(name_or_path: str, folder: Path, **options: Any) -> None:
    """Copies a multimodal checkpoint's files that say how images become inputs."""
    for name in PROCESSOR_FILES:
        file = cached_file(
            name_or_path, name, **options, _raise_exceptions_for_missing_entries=False
        )
        if file is not None:
            copyfile(file, folder / name)


def _load_whole(name_or_path: str, **options: Any) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(name_or_path, **options)
    architecture = getattr(transformers, (config.architectures or [""])[0], None)
    if architecture is None:
        raise _unsupported(name_or_path, config)
    return architecture.from_pretrained(name_or_path, **options)


def _text_part(whole: PreTrainedModel, model: PreTrainedModel, name_or_path: str) -> Any:
    """Returns the module of the whole model that is the base of `model`."""
    modules = [part for part in whole.modules() if type(part) is type(model.base_model)]
    if len(modules) != 1 or whole.get_output_embeddings() is None:
        raise _unsupported(name_or_path, whole.config)
    return modules[0]


def _unsupported(name_or_path: str, config: PreTrainedConfig) -> ModelError:
    name = (config.architectures or [config.model_type])[0]
    return ModelError(
        f"model '{name_or_path}': {name} is multimodal, and transformers has no causal language "
        "model for its text alone; give a checkpoint of a text model",
        code=Code.MODEL_UNSUPPORTED,
    )
