"""Plans a run on GPUs, on a cluster or as one process on one GPU, from the model's shape and data
sheets: the memory of each GPU and node (memory.py), rough times (update_time.py has those of an
update) and what does not fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ajet.cluster.machine import local_node, visible_gpus
from ajet.cluster.placement import Placement, ResourceRequest, place
from ajet.cluster.weight_store import start_in_memory, sync_method
from ajet.core.config import AjetConfig
from ajet.core.errors import ModelError, TooFewGpus
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import LoraSettings, is_kept, tokens_per_pass
from ajet.plan.memory import (
    GIB,
    PROCESS_GIB,
    RUNTIME_GIB,
    WORKER_GIB,
    EngineMemoryInputs,
    MemoryPart,
    NodeMemory,
    TrainerMemoryInputs,
    activation_values,
    cache_tokens,
    checkpoint_bytes,
    engine_memory,
    has_reference,
    head_memory,
    number_bytes,
    total,
    trainer_memory,
    trainer_states,
)
from ajet.plan.model_config import read_config, read_config_file
from ajet.plan.model_shape import ModelShape, shape_of
from ajet.plan.update_time import (
    BANDWIDTH_SHARE,
    GPUS,
    EpisodeSize,
    Gpu,
    UpdateTime,
    format_seconds,
)
from ajet.servers.serving import planned_engine

FITS = "by these estimates it fits"
OFFLOAD = "ajet.trainer_common.fsdp_config.param_offload"
WEIGHT_VERSIONS = 2
"""Versions of the weights or adapters in /dev/shm while a new one is written."""
PREFILL_SHARE, DECODE_SHARE = 0.4, 0.5
"""Fractions of the data sheet's FLOP/s in prefill, and of its memory bandwidth in decoding."""
SYNC_S_PER_GB = 1.6
"""Through files: copied to the host, written, read by the engine, and a checksum (0.78 s) there,
with one processor for each engine."""
HANDOVER_BYTES = 1e10
"""Bytes/s between two processes on one GPU, assumed. Copies and checksums take a tenth of the time;
the rest is gathering each tensor and waiting for the other side."""
BROADCAST_BYTES = 2e9
"""Bytes/s of a broadcast from the trainer's copy in CPU memory."""
LAUNCHES, LAUNCHES_JOINED = 16, 9
"""Kernels per layer of a decode step in the in-process engine, with Triton's; fewer if weights with
the same input are joined (copied_decoder.py)."""
LAUNCH_S, REPLAY_S = 50e-6, 4.8e-6
"""Mean seconds per kernel: if Python launches it, and within a CUDA graph for one row. Measured on
an H100 with 24 layers."""
HOST_S = 0.2e-3
"""What the host adds on average to a decode step of 128 rows by rebuilding the batch as rows end,
measured there."""


@dataclass(frozen=True)
class ClusterPlan:
    """The plan of a config on a placement."""

    config: AjetConfig
    placement: Placement
    shape: ModelShape
    gpu: Gpu
    size: EpisodeSize

    @cached_property
    def trainer_inputs(self) -> TrainerMemoryInputs:
        return TrainerMemoryInputs.from_config(self.config, len(self.placement.trainer))

    @cached_property
    def engine_inputs(self) -> EngineMemoryInputs:
        return EngineMemoryInputs.from_config(self.config, gpu=self.placement.on_gpus)

    @property
    def trainer_parts(self) -> list[MemoryPart]:
        return trainer_memory(self.shape, self.trainer_inputs) if self.placement.trainer else []

    @property
    def engine_parts(self) -> list[MemoryPart]:
        if not self.placement.engines:
            return []
        return engine_memory(self.shape, self.gpu.memory, self.engine_inputs)

    def node_memory(self, bundle: int) -> NodeMemory:
        placement, inputs = self.placement, self.trainer_inputs
        ranks, engines, workers = (
            sum(process.bundle == bundle for process in processes)
            for processes in (placement.trainer, placement.engines, placement.workers)
        )
        whole = self.engine_inputs.value_bytes * self.shape.parameters / GIB
        # Sleeping servers move their weights to the CPU if only adapters are sent to them.
        keeps_bases = self.config.has_several_adapters and placement.shares_gpus
        keeps_bases = keeps_bases and self.engine != "in_process"
        offloaded = ranks * inputs.offload * total(trainer_states(self.shape, inputs))
        has_first_rank = any(rank.bundle == bundle for rank in placement.trainer[:1])
        copies = 1 + (inputs.has_reference and not inputs.lora_rank)
        loaded = f"at the start: the model{' and its reference' * (copies - 1)} whole in rank 0"
        counts = f"{ranks} ranks, {engines} engines, {workers} workers"
        processes = PROCESS_GIB * (ranks + engines) + WORKER_GIB * workers
        return NodeMemory(
            running=[
                MemoryPart("offloaded", offloaded, "param_offload"),
                self.shared_memory,
                MemoryPart("bases", keeps_bases * engines * whole, "of servers that sleep"),
            ],
            loading=MemoryPart("loading", has_first_rank * copies * whole, loaded),
            processes=MemoryPart("processes", processes, counts),
        )

    @cached_property
    def largest_node(self) -> NodeMemory:
        """The CPU memory of the node that needs the most."""
        nodes = map(self.node_memory, range(len(self.placement.nodes)))
        return max(nodes, key=lambda node: node.peak_gib)

    @property
    def sync_method(self) -> str:
        """How weights travel (weight_store.py); "" without engines or without a trainer."""
        if not (self.placement.engines and self.placement.trainer):
            return ""
        return sync_method(self.config, self.placement)[0]

    @property
    def engine(self) -> str:
        """The engine that samples, if the servers are installed."""
        return planned_engine(self.config, on_gpu=self.placement.on_gpus)

    @property
    def sends_adapters(self) -> bool:
        """Whether engines get only adapters, and merge them or apply them separately."""
        has_adapters = self.config.ajet.trainer_common.lora.rank > 0
        return self.config.has_several_adapters or (has_adapters and self.engine != "sglang")

    @property
    def sent_bytes(self) -> int:
        """The size of a new version that is sent to an engine."""
        if self.sends_adapters:
            rank = self.config.ajet.trainer_common.lora.total_rank
            return self.trainer_inputs.state_bytes * self.shape.trained_parameters(rank)
        return self.engine_inputs.value_bytes * self.shape.parameters

    @property
    def shared_memory(self) -> MemoryPart:
        """The peak in shared memory: versions that are sent through it, and the weights that
        servers start from, unless these are such a version."""
        method, num_bytes, notes = self.sync_method, 0, list[str]()
        if method == "memory":
            num_bytes += WEIGHT_VERSIONS * self.sent_bytes
            content = "adapters" if self.sends_adapters else "weights"
            notes.append(f"{WEIGHT_VERSIONS} versions of the {content} for the engines")
        needs_start = method in ("nccl", "ipc") or (method == "memory" and self.sends_adapters)
        if needs_start and self.engine != "in_process" and start_in_memory(self.placement):
            num_bytes += self.engine_inputs.value_bytes * self.shape.parameters
            notes.append("the weights that servers start from")
        return MemoryPart.from_bytes("/dev/shm", num_bytes, " and ".join(notes))

    @property
    def disk_bytes(self) -> int:
        """The size of all checkpoints, including one that is being written."""
        trainer, inputs = self.config.ajet.trainer_common, self.trainer_inputs
        num = inputs.state_bytes  # ranks keep weights in the masters' format
        checkpoint = checkpoint_bytes(self.shape.trained_parameters(inputs.lora_rank), num, num)
        return checkpoint * (trainer.max_checkpoints_to_keep + 1)

    def memory_rows(self) -> list[tuple[str, str, str, str]]:
        """Returns rows of (role, part, GiB, note), with sums."""
        node, kept = self.largest_node, self.config.ajet.trainer_common.max_checkpoints_to_keep
        rows = []
        for role, memory in (
            ("trainer", self.trainer_parts),
            ("engine", self.engine_parts),
            ("node", node.parts),
        ):
            rows += [(role, part.name, f"{part.gib:.1f}", part.note) for part in memory]
            if memory and role != "node":
                rows.append((role, "all", f"{total(memory):.1f}", f"of {self.gpu.memory:g} GiB"))
        rows.append(("node", "peak", f"{node.peak_gib:.1f}", "CPU memory, training or loading"))
        if self.placement.trainer:
            note = f"{kept} checkpoints, and one that is being written"
            rows.append(("disk", "checkpoints", f"{self.disk_bytes / GIB:.1f}", note))
        return rows

    @property
    def verdict(self) -> str:
        """What is true of a run without problems."""
        if not self.placement.on_gpus:
            return "it can be placed"
        if all(node.memory for node in self.placement.nodes):
            return FITS
        shared = f" and {self.shared_memory.gib:.0f} in /dev/shm"
        in_shm = shared if round(self.shared_memory.gib) else ""
        disk = f", and {self.disk_bytes / GIB:.0f} GiB of disk" if self.placement.trainer else ""
        return (
            f"{FITS} the GPUs; a node needs {self.largest_node.peak_gib:.0f} GiB of CPU memory"
            f"{in_shm}{disk}, which was not compared (--host-memory)"
        )

    def problems(self) -> list[str]:
        """Returns a line for each role that does not fit in a GPU or a node."""
        if not self.placement.on_gpus:
            return []
        problems = list(self._trainer_problems())
        inputs = self.engine_inputs
        tokens, longest = cache_tokens(self.shape, self.gpu.memory, inputs), inputs.max_model_len
        if self.placement.engines and tokens < longest:
            problems.append(
                f"an engine's cache holds {tokens:,} tokens, less than one sequence of "
                f"ajet.rollout.max_model_len={longest:,}; lower that, or raise "
                f"gpu_memory_utilization ({inputs.share:g}) or tensor_model_parallel_size"
            )
        problems = problems or list(self._shared_problems())
        for bundle, node in enumerate(self.placement.nodes):
            needed = self.node_memory(bundle)
            if node.memory and needed.peak_gib > node.memory:
                largest = max(needed.parts, key=lambda part: part.gib)
                problems.append(
                    f"{node.name} has {node.memory:.0f} GiB of CPU memory, and needs about "
                    f"{needed.peak_gib:.0f} (most of it {largest.name}, {largest.gib:.0f}); use "
                    "more nodes or lora.rank"
                )
        return problems

    def _trainer_problems(self) -> Iterator[str]:
        inputs, memory = self.trainer_inputs, self.gpu.memory

        def needed(inputs: TrainerMemoryInputs) -> float:
            """Returns the GiB of a rank's GPU, with the runtime of a sleeping engine."""
            parts = trainer_memory(self.shape, inputs)
            return total(parts) + RUNTIME_GIB * self.placement.shares_gpus

        if not self.placement.trainer or needed(inputs) <= memory:
            return
        largest = max(self.trainer_parts, key=lambda part: part.gib)
        remedy = "use more GPUs, or lora.rank"
        if largest.name in ("activations", "head"):
            remedy = (
                "use more GPUs, fsdp_config.activation_checkpointing, a smaller "
                "max_token_len_per_gpu, or ulysses_sequence_parallel_size"
            )
        if not inputs.offload and needed(replace(inputs, offload=True)) <= memory:
            in_cpu = total(trainer_states(self.shape, inputs))
            remedy = (
                f"set {OFFLOAD}=true, which needs {in_cpu:.0f} GiB of CPU memory a rank instead, "
                "use more GPUs, or lora.rank"
            )
        yield (
            f"a trainer rank needs about {needed(inputs):.0f} GiB of {memory:g} "
            f"(most of it {largest.name}, {largest.gib:.0f}); {remedy}"
        )

    def _shared_problems(self) -> Iterator[str]:
        """Checks that an awake engine fits on a GPU together with the states of the trainer rank
        there."""
        inputs = self.trainer_inputs
        states = [] if inputs.offload else trainer_states(self.shape, inputs)
        resident = total([part for part in states if part.name != "gradients"]) + RUNTIME_GIB
        share = self.engine_inputs.share * self.gpu.memory
        if self.placement.shares_gpus and resident + share > self.gpu.memory:
            yield (
                f"an engine has {share:.0f} GiB of {self.gpu.memory:g} (gpu_memory_utilization="
                f"{self.engine_inputs.share:g}), and the trainer rank on its GPU keeps "
                f"{resident:.0f} meanwhile; lower gpu_memory_utilization, or set {OFFLOAD}=true"
            )

    @cached_property
    def update(self) -> UpdateTime | None:
        if not self.placement.trainer:
            return None
        first = self.placement.trainer[0]
        return UpdateTime(
            self.config,
            self.shape,
            self.gpu,
            self.size,
            recomputes=self.trainer_inputs.checkpointing,
            ranks=len(self.placement.trainer),
            ranks_of_node=sum(rank.bundle == first.bundle for rank in self.placement.trainer),
            cpus_of_rank=self.placement.threads_of(first) or 1,
        )

    def rollout(self) -> tuple[float, float]:
        """Returns the seconds of prefill and decoding, and how many sequences an engine runs at a
        time."""
        serving, shape, engines = self.engine_inputs, self.shape, self.placement.engines
        if not engines:
            return 0.0, 0.0
        size, length = self.size, max(1, self.size.length)
        episodes = float(BatchPlan(self.config, 1, 0).episodes_per_step)
        in_flight = min(episodes, self.config.ajet.rollout.max_env_worker) / len(engines)
        fits = cache_tokens(shape, self.gpu.memory, serving, length) / length
        running = max(1.0, min(serving.max_num_seqs, in_flight, fits))
        # A decode step reads the weights once for the batch (of experts, those that rows choose)
        # and the cache, on average half full.
        read = serving.value_bytes * shape.read_parameters(running)
        read += shape.kept_bytes(
            serving.value_bytes, running * length / 2, running, has_latents=serving.has_latents
        )
        bandwidth = DECODE_SHARE * self.gpu.bandwidth * serving.tensor_parallel
        steps = episodes * size.reply / (running * len(engines))
        gpus = sum(len(engine.gpus) for engine in engines)
        prefill_s = 2 * shape.active_parameters * episodes * size.prompt
        prefill_s /= PREFILL_SHARE * self.gpu.flops * max(1, gpus)
        return prefill_s + steps * read / bandwidth, running

    def sync(self) -> tuple[float, str]:
        """Returns the seconds of a weight sync, and a note."""
        num_bytes, method = self.sent_bytes, self.sync_method
        if not method:
            return 0.0, ""
        amount = f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
        if self.config.has_several_adapters:
            amount += " of adapters"
        elif self.sends_adapters:
            amount += " of adapters (merging them not included)"
        if method == "nccl":
            return num_bytes / BROADCAST_BYTES, f"{amount} by broadcast"
        if method == "ipc":
            return num_bytes / HANDOVER_BYTES, f"{amount} by handles of memory on the same GPU"
        path = "/dev/shm" if method == "memory" else "files of the run folder"
        return SYNC_S_PER_GB * num_bytes / 1e9, f"{amount} through {path}, with a checksum"

    @property
    def takes_turns(self) -> bool:
        """Whether rollout and update alternate."""
        return ResourceRequest.from_config(self.config).colocated

    @property
    def step_s(self) -> float:
        """The seconds of a step, without tools and judges."""
        both = (self.rollout()[0], self.update.seconds if self.update else 0.0)
        return self.sync()[0] + (sum(both) if self.takes_turns else max(both))

    def time_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (name, estimate, note) for one training step."""
        (rollout_s, running), (sync_s, sync_note) = self.rollout(), self.sync()
        note = (
            f"{running:.0f} sequences at once on each engine, {DECODE_SHARE:.0%} of the bandwidth "
            f"of {self.gpu.name}; {self.size.prompt:,} + {self.size.reply:,} tokens an episode"
        )
        rows = [("rollout", format_seconds(rollout_s), note)]
        rows += self.update.rows() if self.update else []
        if sync_note:
            rows.append(("weight sync", format_seconds(sync_s), sync_note))
        how = "one after the other" if self.takes_turns else "at the same time: the longer one"
        return [*rows, ("step", format_seconds(self.step_s), f"{how}; without tools and judges")]


@dataclass(frozen=True)
class OneGpuPlan:
    """The plan of a config on backbone `debug` on one GPU. Its engine samples with the policy's
    weights, so they are in memory once. A critic and a teacher are not counted."""

    config: AjetConfig
    shape: ModelShape
    gpu: Gpu
    size: EpisodeSize
    verdict = FITS

    @property
    def memory_parts(self) -> list[MemoryPart]:
        return self._parts(recomputes=self.recomputes)

    def _parts(self, *, recomputes: bool) -> list[MemoryPart]:
        trainer, shape = self.config.ajet.trainer_common, self.shape
        (value, wide), rank = number_bytes(self.config, gpu=True), trainer.lora.total_rank
        trained, weights = shape.trained_parameters(rank), value * shape.parameters
        masters = 0 if value == wide else wide * trained
        reference = weights if has_reference(self.config) and not rank else 0
        # backward() makes one weight's gradient at a time in the compute type.
        gradients = wide * trained + (0 if rank else value * shape.largest_weight)
        tokens = tokens_per_pass(self.config)
        activations = value * activation_values(shape, tokens, recomputes=recomputes)
        note = f"{tokens:,} tokens, {'one layer at a time' if recomputes else 'kept'}"
        part = MemoryPart.from_bytes
        memory = [
            part("weights", weights, f"{value} bytes"),
            part("adapters" if rank else "masters", masters, f"{wide} bytes"),
            part("gradients", gradients, f"{wide} bytes"),
            part("optimizer", 2 * wide * trained, f"{2 * wide} bytes"),
            part("reference", reference, "a copy"),
            MemoryPart("cache", 2 * self._cache_gib, "keys and values, running and kept"),
            part("activations", activations, note),
            head_memory(shape, tokens, has_gradient=not rank),
            MemoryPart("runtime", RUNTIME_GIB, "CUDA"),
        ]
        return [part for part in memory if part.gib]

    @cached_property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes layers; auto does unless there is memory for their
        activations (update/layouts/tree.py)."""
        setting = self.config.ajet.trainer_common.fsdp_config.activation_checkpointing
        if setting != "auto":
            return setting
        parts = self._parts(recomputes=False)
        rest = total([part for part in parts if part.name != "activations"])
        kept = total([part for part in parts if part.name == "activations"])
        return not (self._is_plain_decoder and is_kept(kept * GIB, (self.gpu.memory - rest) * GIB))

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
        return UpdateTime(
            self.config, self.shape, self.gpu, self.size, self.recomputes, is_sharded=False
        )

    @property
    def at_once(self) -> int:
        """The episodes that run at a time: as many as the cache of running rows holds."""
        episodes = BatchPlan(self.config, 1, 0).episodes_per_step
        value = number_bytes(self.config, gpu=True)[0]
        fits = int(self._cache_gib * GIB / self.shape.kept_bytes(value, self.size.length))
        return max(1, min(self.config.ajet.rollout.max_env_worker, episodes, fits))

    @property
    def rollout_s(self) -> float:
        shape, rows, rollout = self.shape, self.at_once, self.config.ajet.rollout
        value = number_bytes(self.config, gpu=True)[0]
        bandwidth = BANDWIDTH_SHARE * self.gpu.bandwidth
        weights_s = value * shape.read_parameters(rows) / bandwidth
        cache_s = shape.kept_bytes(value, rows * self.size.length / 2, rows) / bandwidth
        # A CUDA graph needs the same kernels at each step.
        is_replayed = rollout.cuda_graphs and shape.longest_plain >= rollout.max_model_len
        kernels = LAUNCHES_JOINED if self._is_plain_decoder else LAUNCHES
        launches_s = kernels * (REPLAY_S if is_replayed else LAUNCH_S) * len(shape.layers)
        # Small models wait for launches, large ones for reading the weights.
        token_s = max(weights_s, launches_s) + cache_s + HOST_S
        episodes = BatchPlan(self.config, 1, 0).episodes_per_step
        return episodes * self.size.reply / rows * token_s

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


def configured_shape(
    config: AjetConfig, model_config: Path | None = None, *, download: bool = False
) -> ModelShape:
    """Returns the shape of this config.json, or of `model.path`, with the run's adapters."""
    label = str(model_config or config.ajet.model.path or "")
    if model_config is not None:
        contents = read_config_file(model_config)
    else:
        contents = read_config(label, download=download)
    return shape_of(contents, label, LoraSettings.from_config(config))


def local_gpu() -> Gpu | None:
    """Returns the visible GPU with the least memory, according to nvidia-smi, or None."""
    memory = [gpu.total / 1024 for gpu in visible_gpus()]
    if not memory:
        return None
    return replace(GPUS["a100"], name="GPUs of this machine", memory=min(memory))


def memory_problems(config: AjetConfig, placement: Placement, gpu: Gpu) -> list[str]:
    """Returns a line for each role that does not fit on these GPUs; none if the model's config.json
    is not on this machine."""
    try:
        shape = configured_shape(config)
    except ModelError:
        return []
    planned = ClusterPlan(config, placement, shape, gpu, EpisodeSize.of(config))
    return [f"{gpu.name}, {gpu.memory:g} GiB: {problem}" for problem in planned.problems()]


def check_local(config: AjetConfig) -> None:
    """Raises ConfigError if the run does not fit on this machine."""
    placement, gpu = place(config, [local_node()]), local_gpu()
    if placement.on_gpus and gpu is not None:
        for problem in memory_problems(config, placement, gpu):
            raise TooFewGpus(problem)
