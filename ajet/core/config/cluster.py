"""Defines `verl:` and `trinity:`, the settings that only one cluster backbone has.

sync_interval 2, sync_offset 1     rollouts run 1 step ahead, weights travel every 2 steps:
                                   a step trains on tokens at most 2 steps old (`staleness`)
max_staleness 0                    the explorer waits for every update, as backbone verl does
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ajet.core.config.section import NoEffect, Section

NOT_VERL = NoEffect("only backbone verl reads it", on=("debug", "trinity"))
NOT_TRINITY = NoEffect("only backbone trinity reads it", on=("debug", "verl"))
STEPS_AHEAD = 1


class VerlTrainer(Section):
    """Configures the trainer's share of a GPU."""

    max_token_len_per_gpu: Annotated[int | None, NOT_VERL] = Field(
        default=None,
        ge=1,
        description="Tokens of one forward pass on a GPU; null is trainer_common's.",
    )


class VerlRollout(Section):
    """Configures the inference engine's share of a GPU."""

    gpu_memory_utilization: Annotated[float, NOT_VERL] = Field(
        default=0.6, gt=0, lt=1, description="Share of a GPU's memory for inference."
    )
    sync_method: Annotated[Literal["auto", "ipc", "memory", "checkpoint"], NOT_VERL] = Field(
        default="auto",
        description="How weights travel: handles of memory on the same GPU (ipc), files in shared "
        "memory, or files on disk; auto is the first that can be.",
    )


class VerlConfig(Section):
    """Configures backbone verl, where training and inference share their GPUs."""

    trainer: VerlTrainer = Field(default=VerlTrainer(), description="The trainer.")
    rollout: VerlRollout = Field(default=VerlRollout(), description="The inference engine.")


class TrinityTrainer(Section):
    """Configures the trainer's own GPUs."""

    max_token_len_per_gpu: Annotated[int | None, NOT_TRINITY] = Field(
        default=None,
        ge=1,
        description="Tokens of one forward pass on a GPU; null is trainer_common's.",
    )


class TrinityRollout(Section):
    """Configures the engines' own GPUs."""

    gpu_memory_utilization: Annotated[float, NOT_TRINITY] = Field(
        default=0.85, gt=0, lt=1, description="Share of a GPU's memory for inference."
    )


class Synchronizer(Section):
    """Configures when the explorer gets the trainer's weights."""

    sync_method: Annotated[Literal["nccl", "checkpoint", "memory", "ipc"], NOT_TRINITY] = Field(
        default="nccl",
        description="How weights travel: nccl (gloo on CPU), files on disk, shared memory, or with "
        "mode colocate handles of memory on the same GPU (ipc).",
    )
    sync_style: Annotated[
        Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"], NOT_TRINITY
    ] = Field(default="fixed", description="Who asks for weights.")
    sync_interval: Annotated[int, NOT_TRINITY] = Field(
        default=1, ge=1, description="Steps between two transfers of weights."
    )
    sync_offset: Annotated[int | None, NOT_TRINITY] = Field(
        default=None,
        ge=0,
        description="Steps that the explorer is ahead of the trainer; null is what max_staleness "
        "leaves, or 1.",
    )


class Buffer(Section):
    """Configures the buffer of groups between the explorer and the trainer."""

    url: Annotated[str | None, NOT_TRINITY] = Field(
        default=None,
        description="The buffer's database, as postgresql://…; null is SQLite in the run folder.",
    )
    priority: Annotated[Literal["oldest", "newest", "spread"], NOT_TRINITY] = Field(
        default="oldest",
        description="Groups that are trained first; spread is that of a group's rewards.",
    )
    max_reuse: Annotated[int, NOT_TRINITY] = Field(
        default=1, ge=1, description="Steps that may train on one group."
    )
    capacity: Annotated[int | None, NOT_TRINITY] = Field(
        default=None,
        ge=1,
        description="Groups that wait at most, then the explorer does; null follows max_staleness.",
    )


class TrinityConfig(Section):
    """Configures backbone trinity: an explorer and a trainer on separate GPUs, and the buffer
    between them."""

    mode: Annotated[
        Literal["both", "explore", "train", "bench", "serve", "colocate"], NOT_TRINITY
    ] = Field(
        default="both",
        description="What runs: explorer and trainer, one of them, validation of checkpoints "
        "(bench), the model over HTTP (serve), or both on the same GPUs (colocate).",
    )
    max_staleness: Annotated[int | None, NOT_TRINITY] = Field(
        default=None,
        ge=0,
        description="Updates between a token's weights and those it trains, at most; older groups "
        "are dropped; null is sync_interval - 1 + sync_offset.",
    )
    partial_rollout: Annotated[Literal["continue", "recompute", "finish"], NOT_TRINITY] = Field(
        default="continue",
        description="Whether episodes that run when weights change continue with the new ones, "
        "start anew (recompute), or finish first.",
    )
    keep_kv_cache: Annotated[bool, NOT_TRINITY] = Field(
        default=False,
        description="Keys and values that earlier weights computed, at most max_staleness updates "
        "before, are kept when weights change; false computes them again. In-process engine only.",
    )
    trainer: TrinityTrainer = Field(default=TrinityTrainer(), description="The trainer.")
    rollout: TrinityRollout = Field(default=TrinityRollout(), description="The engines.")
    synchronizer: Synchronizer = Field(default=Synchronizer(), description="Weight transfers.")
    buffer: Buffer = Field(default=Buffer(), description="The buffer.")

    @property
    def staleness(self) -> int:
        """Returns the bound on a token's age in updates, with `max_staleness` resolved."""
        # Up to interval - 1 steps pass between transfers, and the explorer runs offset steps ahead.
        if self.max_staleness is not None:
            return self.max_staleness
        offset = self.synchronizer.sync_offset
        return self.synchronizer.sync_interval - 1 + (STEPS_AHEAD if offset is None else offset)

    @property
    def broadcasts(self) -> bool:
        """Tells whether engines, on separate devices, receive weights by a broadcast."""
        return self.mode == "both" and self.synchronizer.sync_method == "nccl"

    @property
    def steps_ahead(self) -> int:
        """Returns how many steps the explorer runs ahead, with `sync_offset` resolved."""
        offset = self.synchronizer.sync_offset
        return self.staleness - (self.synchronizer.sync_interval - 1) if offset is None else offset

    @model_validator(mode="after")
    def _bound_leaves_room_for_the_schedule(self) -> Self:
        interval, offset = self.synchronizer.sync_interval, self.synchronizer.sync_offset or 0
        needed = interval - 1 + offset
        if self.staleness < needed:
            raise ValueError(
                f"max_staleness: {self.max_staleness} is less than sync_interval - 1 + "
                f"sync_offset = {needed}: every step would wait for tokens that are too old; "
                f"raise it to {needed} or lower those"
            )
        return self
