"""`ajet.model`: which model is trained."""

from typing import Literal

from pydantic import Field

from ajet.core.config.section import Section


class ModelConfig(Section):
    """The policy and how it is loaded."""

    path: str | None = Field(
        default=None,
        description="The model: a folder, a Hub name, a .gguf file or embedded:NAME. Required.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Number format of the weights; auto is float32 on CPU, bfloat16 on CUDA.",
    )
    device: str = Field(
        default="auto", description="auto, cpu, cuda or cuda:N; auto takes a GPU if any."
    )
    chat_template: str | None = Field(
        default=None, description="A Jinja file used instead of the tokenizer's own chat template."
    )
