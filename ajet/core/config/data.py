"""Defines `ajet.data`: how many tasks a step takes and how long a conversation may be."""

from typing import Annotated, Literal

from pydantic import Field

from ajet.core.config.import_path import ImportPath
from ajet.core.config.section import Section


class DataConfig(Section):
    """Configures the batch size in tasks, and the limits of an episode in tokens."""

    train_batch_size: int = Field(
        default=32, ge=1, description="Tasks of one step; each is run num_repeat times."
    )
    sampler: ImportPath | None = Field(
        default=None,
        description="file.py->function of your own that orders the tasks of an epoch; null is "
        "shuffle.",
    )
    shuffle: bool = Field(
        default=True,
        description="Draw the tasks of every epoch in a new seeded order; false keeps theirs.",
    )
    val_max_tasks: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default="auto",
        description="Validate on so many held-out tasks: auto draws 100 by the seed, N takes the "
        "first N, null all.",
    )
    max_prompt_length: int = Field(
        default=3000,
        ge=1,
        description="Tokens of an episode's first prompt; a longer one is truncated.",
    )
    max_response_length: int = Field(
        default=15000,
        ge=1,
        description="Tokens of an episode after its first prompt, tool results included.",
    )
