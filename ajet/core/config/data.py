"""Defines `ajet.data`: how many tasks a step takes and how long a conversation may be."""

from pydantic import Field

from ajet.core.config.section import Section


class DataConfig(Section):
    """Configures the batch size in tasks, and the limits of an episode in tokens."""

    train_batch_size: int = Field(
        default=32, ge=1, description="Tasks of one step; each is run num_repeat times."
    )
    shuffle: bool = Field(
        default=True,
        description="Draw the tasks of every epoch in a new seeded order; false keeps theirs.",
    )
    val_max_tasks: int | None = Field(
        default=None,
        ge=1,
        description="Validate on the first N tasks only; null takes all of them.",
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
