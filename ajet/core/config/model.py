"""Defines `ajet.model`: which model is trained."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt

from ajet.core.config.section import Section
from ajet.core.images.image import ImageLimits
from ajet.core.process.processor import has_bfloat16_instructions


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise ValueError(f"auto, cpu, cuda, cuda:N or mps is expected, got {value!r}")
    return value


def _dtype_here(value: str) -> str:
    # `fastest` is resolved by the process that reads the config, for all processes of the run:
    # workers on other machines must not compute in another format.
    if value != "fastest":
        return value
    return "bfloat16" if has_bfloat16_instructions() else "auto"


class ImagesConfig(Section):
    """Configures what a model that sees images may be shown."""

    enabled: bool = Field(
        default=False,
        description="Load the vision tower of a multimodal model, so that prompts may have images; "
        "without it only the text model is loaded.",
    )
    train_tower: bool = Field(
        default=False,
        description="Train the vision tower and what joins it to the text model, too; otherwise "
        "they are frozen.",
    )
    max_bytes: PositiveInt = Field(
        default=20 << 20, description="The largest encoded image, in bytes."
    )
    max_pixels: PositiveInt = Field(
        default=1 << 24, description="The largest image, in pixels (width times height)."
    )
    max_images: PositiveInt = Field(default=64, description="The most images in one prompt.")
    allow_files: bool = Field(
        default=False,
        description="Read files that messages name; whoever writes messages can then show the "
        "model any image of this machine.",
    )
    allow_addresses: bool = Field(
        default=False,
        description="Fetch images from addresses (http, https) in messages, each once in a "
        "process; a resumed run then depends on what their servers answer.",
    )

    @property
    def limits(self) -> ImageLimits:
        return ImageLimits(
            self.max_bytes,
            self.max_pixels,
            self.max_images,
            files=self.allow_files,
            addresses=self.allow_addresses,
        )


class ModelConfig(Section):
    """Configures the policy and how it is loaded."""

    path: str | None = Field(
        default=None,
        description="The model: a folder, a Hub name, a .gguf file or embedded:NAME. Required.",
    )
    dtype: Annotated[
        Literal["auto", "fastest", "float64", "float32", "bfloat16"], AfterValidator(_dtype_here)
    ] = Field(
        default="auto",
        description="Number format that trainer and engines compute in; auto is float32 on CPU, "
        "bfloat16 on CUDA; fastest is bfloat16 on a CPU that has instructions for it, else auto; "
        "with float64 rounding decides nothing where runs are compared.",
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        default="auto",
        description="auto, cpu, cuda, cuda:N or mps (a Mac's GPU, on backbone debug, which has not "
        "been tried); auto takes a CUDA GPU if any.",
    )
    chat_template: str | None = Field(
        default=None,
        description="A Jinja file used instead of the tokenizer's own chat template, or "
        "embedded:qwen2_5.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={},
        description="Variables of the chat template, such as {enable_thinking: false} for Qwen3 "
        "without thinking; an agent may set others in a call.",
    )
    images: ImagesConfig = Field(
        default=ImagesConfig(),
        description="Prompts with images, for models that see (docs/images.md).",
    )
