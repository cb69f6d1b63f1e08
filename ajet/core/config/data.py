"""Defines `ajet.data`: how many tasks a step takes and how long a conversation may be."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ajet.core.config.section import ImportPath, Section


class CurriculumConfig(Section):
    """Configures how data.sampler takes tasks by their results."""

    results_path: str | None = Field(
        default=None,
        description="The JSON of `ajet eval --split training --out FILE`: the results that the "
        "sampler starts from; null starts from none.",
    )
    rest: int = Field(
        default=8,
        ge=1,
        description="Batches in which a task without signal rests the first time; then 2, 4, 8 and "
        "at most 16 times as many.",
    )
    quotas: dict[str, float] = Field(
        default={},
        description="Shares of the batch by tag, which add up to 1; empty: tags do not count.",
    )
    tag_field: str = Field(default="tag", description="The field of a row that has its tag.")

    @field_validator("quotas")
    @classmethod
    def _add_up_to_one(cls, quotas: dict[str, float]) -> dict[str, float]:
        if quotas and (min(quotas.values()) <= 0 or abs(sum(quotas.values()) - 1) > 1e-6):
            raise ValueError("shares above 0 are expected, which add up to 1")
        return quotas


class DataConfig(Section):
    """Configures the batch size in tasks, and the limits of an episode in tokens."""

    train_batch_size: int = Field(
        default=32, ge=1, description="Tasks of one step; each is run num_repeat times."
    )
    sampler: Literal["uniform", "adaptive"] | ImportPath = Field(
        default="uniform",
        description="Which tasks are next: uniform takes each once an epoch, adaptive those whose "
        "groups have signal; or file.py->function of your own.",
    )
    curriculum: CurriculumConfig = Field(
        default=CurriculumConfig(), description="Settings of a sampler that sees results."
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

    @field_validator("sampler", mode="before")
    @classmethod
    def _null_is_uniform(cls, sampler: Any) -> Any:
        return "uniform" if sampler is None else sampler  # as configs of earlier runs have it
