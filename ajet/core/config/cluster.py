"""`verl:` and `trinity:`: the few settings that only one cluster backbone has."""

from typing import Annotated, Literal

from pydantic import Field

from ajet.core.config.section import NoEffect, Section

NOT_VERL = NoEffect("only backbone verl reads it", on=("debug", "trinity"))
NOT_TRINITY = NoEffect("only backbone trinity reads it", on=("debug", "verl"))


class VerlTrainer(Section):
    """The trainer's share of a GPU."""

    max_token_len_per_gpu: Annotated[int | None, NOT_VERL] = Field(
        default=None,
        ge=1,
        description="Tokens of one forward pass on a GPU; null is trainer_common's.",
    )


class VerlRollout(Section):
    """The inference engine's share of a GPU."""

    gpu_memory_utilization: Annotated[float, NOT_VERL] = Field(
        default=0.6, gt=0, lt=1, description="Share of a GPU's memory for inference."
    )


class VerlConfig(Section):
    """Backbone verl: training and inference share their GPUs."""

    trainer: VerlTrainer = Field(default=VerlTrainer(), description="The trainer.")
    rollout: VerlRollout = Field(default=VerlRollout(), description="The inference engine.")


class TrinityTrainer(Section):
    """The trainer's own GPUs."""

    max_token_len_per_gpu: Annotated[int | None, NOT_TRINITY] = Field(
        default=None,
        ge=1,
        description="Tokens of one forward pass on a GPU; null is trainer_common's.",
    )


class Synchronizer(Section):
    """When the explorer gets the trainer's weights."""

    sync_method: Annotated[Literal["nccl", "checkpoint", "memory"], NOT_TRINITY] = Field(
        default="nccl", description="How weights travel."
    )
    sync_style: Annotated[
        Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"], NOT_TRINITY
    ] = Field(default="fixed", description="Who asks for weights.")
    sync_interval: Annotated[int, NOT_TRINITY] = Field(
        default=1, ge=1, description="Steps between two transfers of weights."
    )
    sync_offset: Annotated[int, NOT_TRINITY] = Field(
        default=0, ge=0, description="Steps that the explorer is ahead of the trainer."
    )


class TrinityConfig(Section):
    """Backbone trinity: an explorer and a trainer on GPUs of their own."""

    trainer: TrinityTrainer = Field(default=TrinityTrainer(), description="The trainer.")
    synchronizer: Synchronizer = Field(default=Synchronizer(), description="Weight transfers.")
