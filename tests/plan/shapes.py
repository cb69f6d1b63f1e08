"""Shapes of dense models, of published ones and of tiny ones of each family."""

import functools

from transformers import AutoConfig

from ajet.core.update.settings import LoraSettings
from ajet.plan.model_shape import shape_of
from tests.core.model.families import ALL, FIRST
from tests.plan.published_configs import PUBLISHED

NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "intermediate_size", "vocab_size")  # fmt: skip
TINY = FIRST | ALL
NO_ADAPTERS = {"falcon_h1", "mamba2"}
"""peft refuses these families."""


@functools.cache
def dense(*sizes, tied, qkv_bias=False):
    """The shape of a model of Qwen2 with biases, of Llama without."""
    family = "qwen2" if qkv_bias else "llama"
    fields = dict(zip(NAMES, sizes, strict=True)) | {"tie_word_embeddings": tied}
    return shape_of(AutoConfig.for_model(family, **fields), "by hand", LoraSettings())


@functools.cache
def published(name):
    fields = dict(PUBLISHED[name])
    return shape_of(AutoConfig.for_model(fields.pop("model_type"), **fields), name)


@functools.cache
def tiny(name):
    lora = None if name in NO_ADAPTERS else LoraSettings()
    return shape_of(AutoConfig.for_model(name, **TINY[name]), name, lora)


def qwen_0_5b():
    return dense(896, 24, 14, 2, 64, 4864, 151936, tied=True, qkv_bias=True)


def qwen_1_5b():
    return dense(1536, 28, 12, 2, 128, 8960, 151936, tied=True, qkv_bias=True)


def qwen_7b():
    return dense(3584, 28, 28, 4, 128, 18944, 152064, tied=False, qkv_bias=True)


def qwen_14b():
    return dense(5120, 48, 40, 8, 128, 13824, 152064, tied=False, qkv_bias=True)
