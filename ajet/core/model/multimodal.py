"""The text model of a multimodal checkpoint: only it is trained, and it is exported inside the
whole model. Its modules are those of the whole model (`model.language_model` becomes `model`,
`lm_head` stays), the rest of which is freed, or becomes the `Vision` of the run (vision.py).
"""

from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.hub import cached_file

from ajet.core.errors import ModelError, UnsupportedModel

WITHOUT_CLASS = frozenset(("glm4v_text", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"))
"""The types of text models for which transformers has no class of causal language models."""
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
        if text_config.model_type not in WITHOUT_CLASS:
            raise _unsupported(name_or_path, config)
    # Where the two differ, the whole model's class decides whether weights are tied.
    text_config.tie_word_embeddings = config.tie_word_embeddings
    return text_config


def load_text_model(
    name_or_path: str,
    *,
    text_config: PreTrainedConfig,
    dtype: torch.dtype,
    with_weights: bool = True,
    **options: Any,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Loads the whole checkpoint, or makes it without weights on torch's meta device; returns its
    text model as a causal language model, and the whole, whose modules it shares."""
    if with_weights:
        whole = _load_whole(name_or_path, dtype=dtype, **options)
    else:
        config = AutoConfig.from_pretrained(name_or_path, **options)
        with torch.device("meta"):
            whole = _whole_class(name_or_path, config)._from_config(config, dtype=dtype)
    with torch.device("meta"):
        model: Any = causal_model(text_config, dtype)
    part = _text_part(whole, model, name_or_path)
    setattr(model, model.base_model_prefix, part)
    model.set_output_embeddings(whole.get_output_embeddings())
    part.config.tie_word_embeddings = text_config.tie_word_embeddings
    # One object for all modules: a change of the model's config must change what they compute.
    model.config = part.config
    model.generation_config = whole.generation_config
    model.config.architectures = [type(model).__name__]  # servers read it from the saved folder
    return model.eval(), whole


def causal_model(text_config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Makes a causal language model of a text model's config, with the weights that torch's current
    device gives it."""
    if type(text_config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM.from_config(text_config, dtype=dtype, trust_remote_code=False)
    model: Any = causal_class(MODEL_MAPPING[type(text_config)])(text_config)
    return model.to(dtype)


@cache
def causal_class(text_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Returns a causal language model over a text model for which transformers has none."""
    family: Any = next(c for c in text_class.__mro__[1:] if issubclass(c, PreTrainedModel))

    class TextCausalLM(family, GenerationMixin):
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
        base_model_prefix = "model"

        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.model = text_class(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(
            self,
            input_ids: Tensor | None = None,
            attention_mask: Tensor | None = None,
            position_ids: Tensor | None = None,
            cache: Any = None,
            use_cache: bool | None = None,
            logits_to_keep: int = 0,
            **options: Any,
        ) -> CausalLMOutputWithPast:
            out = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                cache=cache,
                use_cache=use_cache,
                **options,
            )
            hidden = out.last_hidden_state[:, -logits_to_keep:]
            return CausalLMOutputWithPast(
                logits=self.lm_head(hidden), cache=getattr(out, "cache", None)
            )

    TextCausalLM.__name__ = text_class.__name__.removesuffix("Model") + "ForCausalLM"
    return TextCausalLM


def whole_model(name_or_path: str, model: PreTrainedModel, **options: Any) -> PreTrainedModel:
    """Returns the checkpoint's multimodal model with the weights of `model` as its text model."""
    whole = _load_whole(name_or_path, dtype=model.dtype, **options)
    _text_part(whole, model, name_or_path).load_state_dict(model.base_model.state_dict())
    tower: Any = getattr(model, "vision_tower", None)
    if tower is not None:  # it was trained too
        for name, module in tower.items():
            getattr(whole.base_model, name).load_state_dict(module.state_dict())
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


def save_processor(name_or_path: str, folder: Path, options: dict[str, Any]) -> None:
    """Copies what `load_processor` needs next to a tokenizer."""
    copy_processor(name_or_path, folder, **options)
    AutoConfig.from_pretrained(name_or_path, **options).save_pretrained(folder)


def _load_whole(name_or_path: str, **options: Any) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(name_or_path, **options)
    return _whole_class(name_or_path, config).from_pretrained(name_or_path, **options)


def _whole_class(name_or_path: str, config: PreTrainedConfig) -> Any:
    architecture = getattr(transformers, (config.architectures or [""])[0], None)
    if architecture is None:
        raise _unsupported(name_or_path, config)
    return architecture


def _text_part(whole: PreTrainedModel, model: PreTrainedModel, name_or_path: str) -> Any:
    """Returns the module of the whole model that is the base of `model`."""
    modules = [part for part in whole.modules() if type(part) is type(model.base_model)]
    if len(modules) != 1 or whole.get_output_embeddings() is None:
        raise _unsupported(name_or_path, whole.config)
    return modules[0]


def _unsupported(name_or_path: str, config: PreTrainedConfig) -> ModelError:
    name = (config.architectures or [config.model_type])[0]
    return UnsupportedModel(
        f"model '{name_or_path}': {name} is multimodal, and transformers has no causal language "
        "model for its text alone; give a checkpoint of a text model"
    )
