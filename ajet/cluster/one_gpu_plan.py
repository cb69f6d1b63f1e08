"""Plans a run on backbone `debug` whose model and engine are on one GPU, from the model's shape.

    weights, float32 masters, gradients, moments, reference + cache + activations of a micro-batch

One process holds the weights once: the in-process engine samples with the policy's own. Nothing is
loaded or measured. Not covered: what passes between a rollout and an update, a critic, a teacher.
"""

from dataclasses import dataclass
from functools import cached_property

from ajet.cluster.data_sheet import Gpu
from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.layer_shape import ModelShape
from ajet.cluster.memory_estimate import (
    GIB,
    RUNTIME_GIB,
    MemoryPart,
    TrainerMemoryInputs,
    activation_bytes,
    has_reference,
    head_memory,
    number_bytes,
)
from ajet.cluster.plan import format_seconds, update_rows
from ajet.cluster.update_time import BANDWIDTH_SHARE, UpdateTime, update_inputs
from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import tokens_per_pass

CACHE_GIB, CACHE_SHARE = 0.375, 0.1
"""KV_BYTES and KV_SHARE of core/inference/engines/in_process.py, which is not imported because it
needs torch; a test compares them. The budget counts twice: running rows, and kept prefixes."""
LAUNCHES = 16
"""A decode step of the in-process engine runs so many kernels for each layer, with Triton's."""
LAUNCH_S, REPLAY_S = 12e-6, 4.7e-6
"""Seconds from one of them to the next, on average: where each is launched, and within a CUDA
graph; measured on an H100 with 24 layers and 128 rows."""
HOST_S = 1.4e-3
"""The GPU waits for the host so many seconds in each decode step; measured there."""


@dataclass(frozen=True)
class OneGpuPlan:
    """A config on one GPU: tables to print, and what does not fit."""

    config: AjetConfig
    shape: ModelShape
    gpu: Gpu
    size: EpisodeSize

    @property
    def _bytes(self) -> tuple[int, int]:
        return number_bytes(self.config, gpu=True)

    @property
    def memory_parts(self) -> list[MemoryPart]:
        """Returns the parts of the GPU's memory at the peak of an update."""
        trainer, shape = self.config.ajet.trainer_common, self.shape
        (value, wide), rank = self._bytes, trainer.lora.total_rank
        trained = shape.trained_parameters(rank)
        masters = 0 if value == wide else wide * trained
        weights = value * shape.parameters
        one_weight = value * shape.largest_weight  # the largest gradient of backward()
        recomputes = bool(trainer.fsdp_config.activation_checkpointing)  # auto: on a GPU
        inputs = TrainerMemoryInputs(
            tokens=tokens_per_pass(self.config), compute_bytes=value, checkpointing=recomputes
        )
        kept = "one layer at a time" if recomputes else "kept"
        part = MemoryPart.of_bytes
        parts = [
            part("weights", weights, f"{value} bytes"),
            part("adapters" if rank else "masters", masters, f"{wide} bytes"),
            part("gradients", wide * trained + (0 if rank else one_weight), f"{wide} bytes"),
            part("optimizer", 2 * wide * trained, f"{2 * wide} bytes"),
            part("reference", weights if has_reference(self.config) and not rank else 0, "a copy"),
            MemoryPart("cache", 2 * self._cache_gib, "keys and values, running and kept"),
            part(
                "activations", activation_bytes(shape, inputs), f"{inputs.tokens:,} tokens, {kept}"
            ),
            head_memory(shape, inputs.tokens, has_gradient=not rank),
            MemoryPart("runtime", RUNTIME_GIB, "CUDA"),
        ]
        return [each for each in parts if each.gib]

    @property
    def _cache_gib(self) -> float:
        return max(CACHE_GIB, CACHE_SHARE * self.gpu.memory)

    @property
    def needed_gib(self) -> float:
        return sum(part.gib for part in self.memory_parts)

    @cached_property
    def update(self) -> UpdateTime:
        """Returns the time of a step's update."""
        inputs = update_inputs(self.config, self.size, ranks=1, is_sharded=False)
        return UpdateTime(self.shape, self.gpu, inputs)

    @property
    def at_once(self) -> int:
        """Returns the episodes that run at a time, as many as the cache of running rows holds."""
        episodes = BatchPlan(self.config, 1, 0).episodes_per_step
        row_bytes = self.shape.kept_bytes(self._bytes[0], self.size.length)
        fits = int(self._cache_gib * GIB / row_bytes)
        return max(1, min(self.config.ajet.rollout.max_env_worker, episodes, fits))

    @property
    def rollout_s(self) -> float:
        """Returns the seconds of decoding: each token reads the weights, of experts those that the
        rows choose, and the cache, and waits for its kernels one after another, and for the host.
        Steps that differ in their kernels are not replayed."""
        shape, value, rows = self.shape, self._bytes[0], self.at_once
        read = value * shape.read_parameters(rows)
        read += shape.kept_bytes(value, rows * self.size.length / 2, rows)
        read_s = read / (BANDWIDTH_SHARE * self.gpu.bandwidth)
        rollout = self.config.ajet.rollout
        is_replayed = rollout.cuda_graphs and shape.is_plain(rollout.max_model_len)
        kernel_s = REPLAY_S if is_replayed else LAUNCH_S
        token_s = max(read_s, LAUNCHES * kernel_s * shape.layers) + HOST_S
        episodes = BatchPlan(self.config, 1, 0).episodes_per_step
        return episodes * self.size.reply / self.at_once * token_s

    def memory_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (part, GiB, note) and their sum."""
        rows = [(part.name, f"{part.gib:.1f}", part.note) for part in self.memory_parts]
        return [*rows, ("all", f"{self.needed_gib:.1f}", f"of {self.gpu.memory:g} GiB")]

    def time_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (name, estimate, note) for one training step."""
        size = f"{self.size.prompt:,} + {self.size.reply:,} tokens an episode"
        step = format_seconds(self.rollout_s + self.update.seconds)
        return [
            ("rollout", format_seconds(self.rollout_s), f"{self.at_once} at once, {size}"),
            *update_rows(self.update),
            ("step", step, "one after the other; without tools and judges"),
        ]

    def problems(self) -> list[str]:
        """Returns a line if the run does not fit in the GPU."""
        if self.needed_gib <= self.gpu.memory:
            return []
        biggest = max(self.memory_parts, key=lambda part: part.gib)
        return [
            f"the run needs about {self.needed_gib:.0f} GiB of {self.gpu.memory:g} (most of it "
            f"{biggest.name}, {biggest.gib:.0f}); set ajet.trainer_common.lora.rank, lower "
            "ajet.trainer_common.max_tokens_per_micro_batch, or take a smaller model"
        ]
