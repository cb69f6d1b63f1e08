"""Plans a run on a cluster before it starts: what each GPU and node needs, and rough times.

    memory_estimate.py    ranks, engines, nodes, disk
    update_time.py        the parts of an update
    here                  rollout, weight sync, what does not fit, the rows of the tables

It uses the config, a placement and the model's config.json; nothing is loaded. Not covered: the
estimates' own gaps, which these files name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ajet.cluster.data_sheet import Gpu
from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.layer_shape import ModelShape
from ajet.cluster.memory_estimate import (
    GIB,
    RUNTIME_GIB,
    WEIGHT_VERSIONS,
    EngineMemoryInputs,
    MemoryPart,
    NodeMemory,
    TrainerMemoryInputs,
    cache_tokens,
    checkpoint_bytes,
    engine_memory,
    engine_memory_inputs,
    node_memory,
    offloaded_memory,
    resident_memory,
    trainer_memory,
    trainer_memory_inputs,
)
from ajet.cluster.placement import Placement, ResourceRequest
from ajet.cluster.update_time import UpdateTime, update_inputs
from ajet.cluster.weight_store import start_in_memory, sync_method
from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.servers.serving import planned_engine

OFFLOAD = "ajet.trainer_common.fsdp_config.param_offload"
PREFILL_SHARE, DECODE_SHARE = 0.4, 0.5
"""Shares of the data sheet's FLOP/s that prefill reaches, and of its memory bandwidth that decoding
reaches."""
SYNC_S_PER_GB = 1.6
"""Seconds for each GB of weights that travels through files: copied to the host, written, read into
the engine, and a checksum of 0.78 s there; one processor for each engine."""
HANDOVER_BYTES = 1e10
"""Bytes a second between two processes on one GPU, assumed: copies and checksums take a tenth of
the time, the gathering of each tensor and the waiting of both sides for each other the rest."""
BROADCAST_BYTES = 2e9
"""Bytes a second of a broadcast from the trainer's copy in CPU memory."""


@dataclass(frozen=True)
class ClusterPlan:
    """A config on a placement: tables to print, and what does not fit. Without a `size`, episodes
    are half as long as they may be."""

    config: AjetConfig
    placement: Placement
    shape: ModelShape
    gpu: Gpu
    size: EpisodeSize | None = None

    @property
    def trainer_inputs(self) -> TrainerMemoryInputs:
        return trainer_memory_inputs(self.config, len(self.placement.trainer))

    @property
    def engine_inputs(self) -> EngineMemoryInputs:
        return engine_memory_inputs(self.config, gpu=self.placement.on_gpus)

    @property
    def trainer_parts(self) -> list[MemoryPart]:
        return trainer_memory(self.shape, self.trainer_inputs) if self.placement.trainer else []

    @property
    def engine_parts(self) -> list[MemoryPart]:
        if not self.placement.engines:
            return []
        return engine_memory(self.shape, self.gpu.memory, self.engine_inputs)

    def node_memory(self, bundle: int) -> NodeMemory:
        """Returns the CPU memory of a node."""
        placement = self.placement
        ranks, engines, workers = (
            sum(each.bundle == bundle for each in processes)
            for processes in (placement.trainer, placement.engines, placement.workers)
        )
        return node_memory(
            self.shape,
            self.trainer_inputs,
            ranks=ranks,
            engines=engines,
            workers=workers,
            weight_bytes=self.engine_inputs.value_bytes,
            shared=self.shared_memory,
            has_first_rank=any(each.bundle == bundle for each in placement.trainer[:1]),
            keeps_bases=self.config.has_several_adapters
            and self.engine != "in_process"
            and placement.shares_gpus,
        )

    @cached_property
    def largest_node(self) -> NodeMemory:
        """Returns the CPU memory of the node that needs the most."""
        nodes = map(self.node_memory, range(len(self.placement.nodes)))
        return max(nodes, key=lambda node: node.peak_gib)

    @property
    def sync_method(self) -> str:
        """Returns how weights travel (weight_store.py), or "" where there is no engine or no
        trainer."""
        if not (self.placement.engines and self.placement.trainer):
            return ""
        return sync_method(self.config, self.placement)[0]

    @property
    def engine(self) -> str:
        """Returns the engine that samples where every server is installed."""
        return planned_engine(self.config, on_gpu=self.placement.on_gpus)

    @property
    def sends_adapters(self) -> bool:
        """Tells whether the engines get adapters alone, and add them to their weights themselves or
        compute them beside."""
        if self.config.has_several_adapters:
            return True
        return self.config.ajet.trainer_common.lora.rank > 0 and self.engine != "sglang"

    @property
    def sent_bytes(self) -> int:
        """Returns the size of a new version on its way to an engine."""
        if self.sends_adapters:
            rank = self.config.ajet.trainer_common.lora.total_rank
            return self.trainer_inputs.state_bytes * self.shape.lora_parameters(rank)
        return self.engine_inputs.value_bytes * self.shape.parameters

    @property
    def shared_memory(self) -> MemoryPart:
        """Returns what is in shared memory at once: the versions that travel there, and the weights
        that servers begin with, however later versions travel. Weights that travel there are those
        of the beginning, too; adapters are not."""
        method, num_bytes, notes = self.sync_method, 0, list[str]()
        if method == "memory":
            num_bytes += WEIGHT_VERSIONS * self.sent_bytes
            what = "adapters" if self.sends_adapters else "weights"
            notes.append(f"{WEIGHT_VERSIONS} versions of the {what} on their way to engines")
        begins_apart = method in ("nccl", "ipc") or (method == "memory" and self.sends_adapters)
        if begins_apart and self.engine != "in_process" and start_in_memory(self.placement):
            num_bytes += self.engine_inputs.value_bytes * self.shape.parameters
            notes.append("the weights that servers begin with")
        return MemoryPart.of_bytes("/dev/shm", num_bytes, " and ".join(notes))

    @property
    def disk_bytes(self) -> int:
        """Returns what the checkpoints take, one that is being written included."""
        trainer, inputs = self.config.ajet.trainer_common, self.trainer_inputs
        num = inputs.state_bytes  # ranks keep weights in the masters' format
        one = checkpoint_bytes(self.shape, trainer.lora.total_rank, num, num)
        return one * (trainer.max_checkpoints_to_keep + 1)

    def memory_rows(self) -> list[tuple[str, str, str, str]]:
        """Returns rows of (role, part, GiB, note), with a sum for each role."""
        rows = []
        for role, parts in (("trainer", self.trainer_parts), ("engine", self.engine_parts)):
            rows += _rows(role, parts)
            if parts:
                rows.append((role, "all", f"{_sum(parts):.1f}", f"of {self.gpu.memory:g} GiB"))
        node = self.largest_node
        rows += _rows("node", node.parts)
        rows.append(("node", "peak", f"{node.peak_gib:.1f}", "CPU memory, training or loading"))
        kept = self.config.ajet.trainer_common.max_checkpoints_to_keep
        if self.placement.trainer:
            note = f"{kept} checkpoints, and one that is being written"
            rows.append(("disk", "checkpoints", f"{self.disk_bytes / GIB:.1f}", note))
        return rows

    def problems(self) -> list[str]:
        """Returns a line for each thing that does not fit in a GPU or a node."""
        problems = [*self._trainer_problems(), *self._engine_problems()]
        return [*(problems or self._shared_problems()), *self._node_problems()]

    def nodes_need(self) -> str:
        """Returns what each node must have beside its GPUs, in one line."""
        node = self.largest_node
        shared = sum(part.gib for part in node.parts if part.name == "/dev/shm")
        of_it = f" and {shared:.0f} in /dev/shm" if round(shared) else ""
        disk = f", and {self.disk_bytes / GIB:.0f} GiB of disk" if self.placement.trainer else ""
        return f"{node.peak_gib:.0f} GiB of CPU memory{of_it}{disk}"

    def knows_nodes(self) -> bool:
        """Tells whether the CPU memory of every node is known, and so compared."""
        return all(node.memory for node in self.placement.nodes)

    def _needed(self, inputs: TrainerMemoryInputs) -> float:
        """Returns the GiB of a trainer rank's GPU, with the runtime of an engine that sleeps."""
        needed = _sum(trainer_memory(self.shape, inputs))
        return needed + RUNTIME_GIB * self.placement.shares_gpus

    def _trainer_problems(self) -> Iterable[str]:
        if not self.placement.trainer:
            return
        inputs = self.trainer_inputs
        needed = self._needed(inputs)
        if needed > self.gpu.memory:
            biggest = max(self.trainer_parts, key=lambda part: part.gib)
            yield (
                f"a trainer rank needs about {needed:.0f} GiB of {self.gpu.memory:g} "
                f"(most of it {biggest.name}, {biggest.gib:.0f}); {self._remedy(biggest.name)}"
            )

    def _remedy(self, part: str) -> str:
        """Returns what helps: offloading by itself, if that is enough."""
        offloaded = replace(self.trainer_inputs, offload=True)
        if not self.trainer_inputs.offload and self._needed(offloaded) <= self.gpu.memory:
            in_cpu = offloaded_memory(self.shape, offloaded)
            return (
                f"set {OFFLOAD}=true, which takes {in_cpu:.0f} GiB of CPU memory a rank instead, "
                "use more GPUs, or lora.rank"
            )
        if part in ("activations", "head"):
            return (
                "use more GPUs, fsdp_config.activation_checkpointing, a smaller "
                "max_token_len_per_gpu, or ulysses_sequence_parallel_size"
            )
        return "use more GPUs, or lora.rank"

    def _engine_problems(self) -> Iterable[str]:
        if not self.engine_parts:
            return
        inputs = self.engine_inputs
        tokens, longest = cache_tokens(self.shape, self.gpu.memory, inputs), inputs.max_model_len
        if tokens < longest:
            yield (
                f"an engine's cache has room for {tokens:,} tokens, less than one sequence of "
                f"ajet.rollout.max_model_len={longest:,}; lower that, or raise "
                f"gpu_memory_utilization ({inputs.share:g}) or tensor_model_parallel_size"
            )

    def _shared_problems(self) -> Iterable[str]:
        """Checks that an awake engine fits beside what the rank on the same GPU keeps."""
        if not self.placement.shares_gpus:
            return
        resident = _sum(resident_memory(self.shape, self.trainer_inputs))
        utilization = self.engine_inputs.share
        share = utilization * self.gpu.memory
        if resident + share > self.gpu.memory:
            yield (
                f"an engine has {share:.0f} GiB of {self.gpu.memory:g} (gpu_memory_utilization="
                f"{utilization:g}), and the trainer rank on its GPU keeps {resident:.0f} while "
                f"that works; lower gpu_memory_utilization, or set {OFFLOAD}=true"
            )

    def _node_problems(self) -> Iterable[str]:
        for bundle, node in enumerate(self.placement.nodes):
            needed = self.node_memory(bundle)
            if not node.memory or needed.peak_gib <= node.memory:
                continue
            biggest = max(needed.parts, key=lambda part: part.gib)
            yield (
                f"{node.name} has {node.memory:.0f} GiB of CPU memory, and needs about "
                f"{needed.peak_gib:.0f} (most of it {biggest.name}, {biggest.gib:.0f}); use more "
                "nodes or lora.rank"
            )

    @cached_property
    def times(self) -> "StepTimes":
        """Returns the times of one training step."""
        return step_times(self)

    def time_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (name, estimate, note) for one training step."""
        times = self.times
        rows = [("rollout", format_seconds(times.rollout_s), times.rollout_note)]
        if (update := times.update) is not None:
            rows += update_rows(update)
        if times.sync_note:
            rows.append(("weight sync", format_seconds(times.sync_s), times.sync_note))
        return [*rows, ("step", format_seconds(times.step_s), times.step_note)]


def update_rows(update: UpdateTime) -> list[tuple[str, str, str]]:
    """Returns rows of the update's parts, their sum and the MFU."""
    parts = [(f"  {part.name}", format_seconds(part.seconds), part.note) for part in update.parts]
    ranks = update.inputs.ranks
    note = (
        f"{update.tokens:,} tokens ({update.layout}); ranks: {ranks}, micro-batches of each "
        f"in an optimizer step: {update.micro_batches}"
    )
    flops = f"{update.model_flops / 1e12:,.0f} TFLOP without recomputation, on {update.gpu.name}"
    return [
        *parts,
        ("update", format_seconds(update.seconds), note),
        ("MFU of the update", f"{update.mfu:.0%}", flops),
    ]


@dataclass(frozen=True)
class StepTimes:
    """The seconds of one training step, without tools and judges."""

    rollout_s: float
    rollout_note: str
    update: UpdateTime | None
    sync_s: float
    sync_note: str
    takes_turns: bool

    @property
    def update_s(self) -> float:
        return 0.0 if self.update is None else self.update.seconds

    @property
    def step_s(self) -> float:
        both = (self.rollout_s, self.update_s)
        return self.sync_s + (sum(both) if self.takes_turns else max(both))

    @property
    def step_note(self) -> str:
        if self.takes_turns:
            return "one after the other; without tools and judges"
        return "rollout and update at the same time: the longer one; without tools and judges"


def step_times(plan: ClusterPlan) -> StepTimes:
    """Estimates the times of rollout, update and weight sync of a step."""
    placement = plan.placement
    size = plan.size or EpisodeSize.of(plan.config, None, None)
    rollout_s, running = _rollout_seconds(plan, size)
    update = None
    if placement.trainer:
        first = placement.trainer[0]
        inputs = update_inputs(
            plan.config,
            size,
            ranks=len(placement.trainer),
            ranks_of_node=sum(each.bundle == first.bundle for each in placement.trainer),
            cpus_of_rank=placement.threads_of(first) or 1,
        )
        update = UpdateTime(plan.shape, plan.gpu, inputs)
    sync_s, sync_note = _sync_seconds(plan)
    return StepTimes(
        rollout_s=rollout_s,
        rollout_note=f"{running:.0f} sequences at once on each engine, {DECODE_SHARE:.0%} of the "
        f"bandwidth of {plan.gpu.name}; {size.prompt:,} + {size.reply:,} tokens an episode",
        update=update,
        sync_s=sync_s,
        sync_note=sync_note,
        takes_turns=ResourceRequest.from_config(plan.config).colocated,
    )


def _rollout_seconds(plan: ClusterPlan, size: EpisodeSize) -> tuple[float, float]:
    """Returns the seconds of prefill and decoding, and how many sequences an engine runs at a time.
    Decoding a token reads the cache, and the weights once for the whole batch: of experts those
    that its rows choose."""
    serving, shape, engines = plan.engine_inputs, plan.shape, plan.placement.engines
    if not engines:
        return 0.0, 0.0
    episodes = float(BatchPlan(plan.config, 1, 0).episodes_per_step)
    in_flight = min(episodes, plan.config.ajet.rollout.max_env_worker) / len(engines)
    length = max(1, size.length)
    fits = cache_tokens(shape, plan.gpu.memory, serving, length) / length
    running = max(1.0, min(serving.max_num_seqs, in_flight, fits))
    read = serving.value_bytes * shape.read_parameters(running)
    read += shape.kept_bytes(
        serving.value_bytes, running * length / 2, running, has_latents=serving.has_latents
    )
    bandwidth = DECODE_SHARE * plan.gpu.bandwidth * serving.tensor_parallel
    steps = episodes * size.reply / (running * len(engines))
    gpus = sum(len(engine.gpus) for engine in engines)
    prefill_s = 2 * shape.active_parameters * episodes * size.prompt
    prefill_s /= PREFILL_SHARE * plan.gpu.flops * max(1, gpus)
    return prefill_s + steps * read / bandwidth, running


def _sync_seconds(plan: ClusterPlan) -> tuple[float, str]:
    """Returns the seconds in which new weights reach the engines, and what they follow from."""
    num_bytes, method = plan.sent_bytes, plan.sync_method
    if not method:
        return 0.0, ""
    amount = f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
    if plan.config.has_several_adapters:
        amount += " of adapters"
    elif plan.sends_adapters:
        amount += " of adapters, without the adding of them to the weights,"
    if method == "nccl":
        return num_bytes / BROADCAST_BYTES, f"{amount} by broadcast"
    if method == "ipc":
        return num_bytes / HANDOVER_BYTES, f"{amount} by handles of memory on the same GPU"
    where = "/dev/shm" if method == "memory" else "files of the run folder"
    return SYNC_S_PER_GB * num_bytes / 1e9, f"{amount} through {where}, with a checksum"


def _rows(role: str, parts: Iterable[MemoryPart]) -> list[tuple[str, str, str, str]]:
    return [(role, part.name, f"{part.gib:.1f}", part.note) for part in parts]


def _sum(parts: Sequence[MemoryPart]) -> float:
    return sum(part.gib for part in parts)


def format_seconds(seconds: float) -> str:
    """Returns a time that a person reads at a glance."""
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
