"""Plans a run on backbone `debug` on one GPU from the model's shape, without loading or measuring.

    weights, float32 masters, gradients, moments, reference + cache + activations of a micro-batch

The in-process engine samples with the policy's weights, so they are in memory once. A critic and a
teacher are not counted.
"""

from dataclasses import dataclass
from functools import cached_property

from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.activations import is_kept
from ajet.core.update.settings import tokens_per_pass
from ajet.plan.data_sheet import Gpu
from ajet.plan.memory import (
    GIB,
    RUNTIME_GIB,
    MemoryPart,
    activation_values,
    has_reference,
    head_memory,
    number_bytes,
    total,
)
from ajet.plan.model_shape import ModelShape
from ajet.plan.update_time import BANDWIDTH_SHARE, EpisodeSize, UpdateTime, format_seconds

LAUNCHES, LAUNCHES_JOINED = 16, 9
"""Kernels per layer of a decode step in the in-process engine, with Triton's; fewer if weights with
the same input are joined (joined_decoder.py)."""
LAUNCH_S, REPLAY_S = 50e-6, 4.8e-6
"""Mean seconds per kernel: if Python launches it, and within a CUDA graph for one row. Measured on
an H100 with 24 layers."""
HOST_S = 0.2e-3
"""What the host adds on average to a decode step of 128 rows by rebuilding the batch as rows end,
measured there."""


@dataclass(frozen=True)
class OneGpuPlan:
    """The plan of a config on one GPU."""

    config: AjetConfig
    shape: ModelShape
    gpu: Gpu
    size: EpisodeSize

    @property
    def _bytes(self) -> tuple[int, int]:
        return number_bytes(self.config, gpu=True)

    @property
    def memory_parts(self) -> list[MemoryPart]:
        kept = "one layer at a time" if self.recomputes else "kept"
        num_bytes = self._activation_bytes(recomputes=self.recomputes)
        note = f"{tokens_per_pass(self.config):,} tokens, {kept}"
        *fixed, head, runtime = self._other_parts
        memory = (*fixed, MemoryPart.from_bytes("activations", num_bytes, note), head, runtime)
        return [part for part in memory if part.gib]

    @property
    def _other_parts(self) -> list[MemoryPart]:
        trainer, shape = self.config.ajet.trainer_common, self.shape
        (value, wide), rank = self._bytes, trainer.lora.total_rank
        trained = shape.trained_parameters(rank)
        masters = 0 if value == wide else wide * trained
        weights = value * shape.parameters
        # backward() makes one weight's gradient at a time in the compute type.
        one_weight = value * shape.largest_weight
        part = MemoryPart.from_bytes
        return [
            part("weights", weights, f"{value} bytes"),
            part("adapters" if rank else "masters", masters, f"{wide} bytes"),
            part("gradients", wide * trained + (0 if rank else one_weight), f"{wide} bytes"),
            part("optimizer", 2 * wide * trained, f"{2 * wide} bytes"),
            part("reference", weights if has_reference(self.config) and not rank else 0, "a copy"),
            MemoryPart("cache", 2 * self._cache_gib, "keys and values, running and kept"),
            head_memory(shape, tokens_per_pass(self.config), has_gradient=not rank),
            MemoryPart("runtime", RUNTIME_GIB, "CUDA"),
        ]

    def _activation_bytes(self, *, recomputes: bool) -> float:
        tokens = tokens_per_pass(self.config)
        return self._bytes[0] * activation_values(self.shape, tokens, recomputes=recomputes)

    @cached_property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes layers; auto does unless there is memory for their
        activations (update/layouts/tree.py)."""
        setting = self.config.ajet.trainer_common.fsdp_config.activation_checkpointing
        if setting != "auto":
            return setting
        free = self.gpu.memory - total(self._other_parts)
        whole = self._activation_bytes(recomputes=False)
        return not (self._is_plain_decoder and is_kept(whole, free * GIB))

    @property
    def _is_plain_decoder(self) -> bool:
        """Whether core/model/decoder.py computes the model, without adapters."""
        return self.shape.has_decoder and not self.config.ajet.trainer_common.lora.total_rank

    @property
    def _cache_gib(self) -> float:
        from ajet.engines.in_process import kv_bytes

        return kv_bytes(int(self.gpu.memory * GIB)) / GIB

    @property
    def needed_gib(self) -> float:
        return total(self.memory_parts)

    @cached_property
    def update(self) -> UpdateTime:
        config, shape, size = self.config, self.shape, self.size
        recomputes = self.recomputes
        return UpdateTime(config, shape, self.gpu, size, recomputes=recomputes, is_sharded=False)

    @property
    def at_once(self) -> int:
        """The episodes that run at a time: as many as the cache of running rows holds."""
        episodes = BatchPlan(self.config, 1, 0).episodes_per_step
        row_bytes = self.shape.kept_bytes(self._bytes[0], self.size.length)
        fits = int(self._cache_gib * GIB / row_bytes)
        return max(1, min(self.config.ajet.rollout.max_env_worker, episodes, fits))

    @property
    def rollout_s(self) -> float:
        shape, value, rows = self.shape, self._bytes[0], self.at_once
        weights_s, cache_s = (
            num_bytes / (BANDWIDTH_SHARE * self.gpu.bandwidth)
            for num_bytes in (
                value * shape.read_parameters(rows),
                shape.kept_bytes(value, rows * self.size.length / 2, rows),
            )
        )
        rollout = self.config.ajet.rollout
        # A CUDA graph needs the same kernels at each step.
        is_replayed = rollout.cuda_graphs and shape.longest_plain >= rollout.max_model_len
        kernel_s = REPLAY_S if is_replayed else LAUNCH_S
        kernels = LAUNCHES_JOINED if self._is_plain_decoder else LAUNCHES
        # Small models wait for launches, large ones for reading the weights.
        token_s = max(weights_s, kernels * kernel_s * len(shape.layers)) + cache_s + HOST_S
        episodes = BatchPlan(self.config, 1, 0).episodes_per_step
        return episodes * self.size.reply / self.at_once * token_s

    def memory_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (part, GiB, note), with the sum."""
        rows = [(part.name, f"{part.gib:.1f}", part.note) for part in self.memory_parts]
        return [*rows, ("all", f"{self.needed_gib:.1f}", f"of {self.gpu.memory:g} GiB")]

    def time_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (name, estimate, note) for one training step."""
        size = f"{self.size.prompt:,} + {self.size.reply:,} tokens an episode"
        step = format_seconds(self.rollout_s + self.update.seconds)
        return [
            ("rollout", format_seconds(self.rollout_s), f"{self.at_once} at once, {size}"),
            *self.update.rows(),
            ("step", step, "one after the other; without tools and judges"),
        ]

    def problems(self) -> list[str]:
        """Returns a line if the run does not fit on the GPU."""
        if self.needed_gib <= self.gpu.memory:
            return []
        largest = max(self.memory_parts, key=lambda part: part.gib)
        return [
            f"the run needs about {self.needed_gib:.0f} GiB of {self.gpu.memory:g} (most of it "
            f"{largest.name}, {largest.gib:.0f}); set ajet.trainer_common.lora.rank, lower "
            "ajet.trainer_common.max_tokens_per_micro_batch, or take a smaller model"
        ]
