"""Estimates the memory of a run's processes on GPUs and on their nodes, before it starts.

    trainer rank    weights, gradients, optimizer (shards) + gathered layers + activations + head
    engine          weights + KV cache
    node            what is offloaded, weights in /dev/shm, copies of engines that sleep; or, if
                    that is more, the whole models that ranks load before they shard them
    disk            checkpoints

It uses the config and the model's shape; nothing is loaded. Of fragmentation and the libraries' own
buffers only `RUNTIME_GIB` and `PROCESS_GIB` are counted. Not covered: attention masks of packed
batches, what workflows, tools and judges need.
"""

from dataclasses import dataclass
from typing import Self

from ajet.cluster.layer_shape import ModelShape
from ajet.core.config import AjetConfig
from ajet.core.config.precision import BYTES, dtype_on, state_dtype
from ajet.core.update.settings import tokens_per_pass
from ajet.servers.serving import planned_engine

GIB = 2.0**30
RUNTIME_GIB = 1.5
"""CUDA's context, NCCL's and cuBLAS's buffers of one process."""
PROCESS_GIB, WORKER_GIB = 2.0, 0.5
"""CPU memory of a process that has loaded Python, torch and CUDA's libraries, and of a rollout
worker; assumptions."""
LOGITS_AT_ONCE = 1 << 27
"""The value of MAX_LOGITS_ON_GPU in core/update/loss.py, which is not imported because it needs
torch; a test compares the two."""
LOGIT_BYTES = 14
"""Bytes of one logit at the peak of a slice: itself, and float32 logits, softmax, probabilities."""
WEIGHT_VERSIONS = 2
"""Versions of the weights, or of the adapters, in /dev/shm while the newer one is written."""


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory of a rank or engine, on one GPU, or on its node if it is offloaded."""

    name: str
    gib: float
    note: str

    @classmethod
    def of_bytes(cls, name: str, num_bytes: float, note: str) -> Self:
        return cls(name, num_bytes / GIB, note)


def number_bytes(config: AjetConfig, *, gpu: bool) -> tuple[int, int]:
    """Returns the bytes of a weight, and of its gradient and each of the optimizer's numbers."""
    dtype = dtype_on(config, gpu=gpu)
    return BYTES[dtype], BYTES[state_dtype(dtype)]


def has_reference(config: AjetConfig) -> bool:
    """Tells whether the run compares its model with the one that it began with."""
    trainer = config.ajet.trainer_common
    return trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward


@dataclass(frozen=True)
class TrainerMemoryInputs:
    """The numbers that a trainer rank's memory depends on."""

    ranks: int = 1
    sequence_parallel: int = 1
    tokens: int = 4096
    compute_bytes: int = 2
    state_bytes: int = 4
    checkpointing: bool = True
    offload: bool = False
    keeps_gathered: bool = False
    lora_rank: int = 0
    has_reference: bool = True
    has_critic: bool = False


@dataclass(frozen=True)
class EngineMemoryInputs:
    """The numbers that an engine's memory depends on."""

    tensor_parallel: int = 1
    share: float = 0.6
    max_model_len: int = 18000
    max_num_seqs: int = 64
    value_bytes: int = 2
    lora_rank: int = 0
    """The rank of several adapters together, which lie beside the weights."""
    has_latents: bool = True
    """The cache has latents where keys and values are made of them, as in servers."""

    def resident_bytes(self, shape: ModelShape) -> float:
        """Returns what a GPU of the engine has before its cache: its part of the weights, and all
        adapters."""
        adapters = shape.lora_parameters(self.lora_rank) if self.lora_rank else 0
        return self.value_bytes * (shape.parameters / self.tensor_parallel + adapters)


def trainer_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Estimates the memory of one rank's GPU at the peak of a step.

    States as in ZeRO (Rajbhandari et al. 2020, section 3): N ranks hold 1/N of the float32 weights
    (4 bytes a parameter), gradients (4) and Adam's two moments (8); of float64 twice that. A
    layer is gathered in the compute type for its own pass, the next one is on its way, and each has
    its gradient; the embeddings stay gathered from the forward to the end of the backward pass.
    """
    states = _states(shape, inputs)
    gathered = 2 * inputs.compute_bytes * (shape.embedding_parameters + 2 * shape.largest_layer)
    note = "embeddings and two layers, with gradients"
    if inputs.keeps_gathered:
        gathered = inputs.compute_bytes * shape.parameters
        gathered += inputs.state_bytes * shape.trained_parameters(inputs.lora_rank)
        note = "keep_gathered: all weights, with gradients"
    here = [part for part in states if not inputs.offload or part.name == "runtime"]
    tokens = inputs.tokens // inputs.sequence_parallel
    return [
        *here,
        MemoryPart.of_bytes("gathered layers", gathered, note),
        MemoryPart.of_bytes(
            "activations",
            activation_bytes(shape, inputs),
            f"{inputs.tokens:,} tokens, "
            f"{'one layer at a time' if inputs.checkpointing else 'kept'}",
        ),
        head_memory(shape, tokens, has_gradient=not inputs.lora_rank),
        MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]


def head_memory(shape: ModelShape, tokens: int, *, has_gradient: bool = True) -> MemoryPart:
    """Returns what the head takes: a slice of logits, and its gradient, summed in float32."""
    logits = min(LOGITS_AT_ONCE, tokens * shape.vocab)
    gradient = 4 * shape.vocab * shape.hidden if has_gradient else 0
    note = f"{logits:,} logits at once, {LOGIT_BYTES} bytes each; float32 gradient"
    return MemoryPart.of_bytes("head", LOGIT_BYTES * logits + gradient, note)


def _states(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Returns the memory that a rank keeps between passes."""
    size, share = inputs.state_bytes, f"1/{inputs.ranks}"
    trained = shape.trained_parameters(inputs.lora_rank)
    frozen = shape.parameters if inputs.lora_rank else 0
    of_all_ranks = [
        ("weights", size * (trained + frozen), f"{size} bytes, {share}"),
        ("gradients", size * trained, f"{size} bytes, {share}"),
        ("optimizer", 2 * size * trained, f"{2 * size} bytes, {share}"),
    ]
    if inputs.has_reference and not inputs.lora_rank:
        of_all_ranks.append(("reference", size * shape.parameters, "use_kl_loss: a copy"))
    if inputs.has_critic:
        of_all_ranks.append(("critic", 4 * size * shape.parameters, "gae: its own model"))
    return [
        MemoryPart.of_bytes(name, num_bytes / inputs.ranks, note)
        for name, num_bytes, note in of_all_ranks
    ]


def resident_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Returns what a rank keeps on its GPU between two updates, when an engine on the same GPU may
    be awake."""
    states = [] if inputs.offload else _states(shape, inputs)
    resident = [part for part in states if part.name != "gradients"]
    return [*resident, MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL")]


def offloaded_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> float:
    """Returns the GiB of CPU memory that one rank needs if its state is offloaded."""
    return sum(part.gib for part in _states(shape, inputs)) if inputs.offload else 0.0


def activation_bytes(shape: ModelShape, inputs: TrainerMemoryInputs) -> float:
    """Returns the bytes kept for the backward pass of one micro-batch on one rank.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), counted anew for a gated MLP,
    grouped queries and attention that keeps no score matrix. Of a layer and token, in values:
    two norms' inputs and outputs (4 h), queries and attention's output (2 q), keys and values
    (2 kv), gate, up, their product and the activation (4 m). Each of a token's k experts has its
    own input and output (2 h) and 4 m; of a router there are scores and probabilities. With
    checkpointing a layer keeps its input (h), and one layer at a time is whole. The backward pass
    of a layer adds the gradients of its output and input (2 h), of gate and up (2 m).
    """
    tokens = inputs.tokens / inputs.sequence_parallel
    hidden = shape.hidden
    whole = [
        (4 + 2 * layer.chosen) * hidden + layer.mixed + 2 * (layer.mlp_width + layer.scores)
        for layer in shape.each_layer
    ]
    values = shape.layers * hidden + max(whole) if inputs.checkpointing else sum(whole)
    values += 2 * hidden + max(layer.mlp_width for layer in shape.each_layer)
    return tokens * values * inputs.compute_bytes


def engine_memory(
    shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs
) -> list[MemoryPart]:
    """Estimates the memory of one GPU of an engine: of its share, the cache has what is left.

    A token's cache is 2 (key, value) x layers x KV heads x head size values, or a latent in each
    layer; layers with a window keep no more than it, layers with a state keep that. Each GPU of the
    engine has a part of the KV heads, at least one: with more GPUs than heads, several have the
    same. All have the whole latents.
    """
    weights = inputs.value_bytes * shape.parameters / inputs.tensor_parallel / GIB
    adapters = inputs.resident_bytes(shape) / GIB - weights
    cache = inputs.share * gpu_gib - weights - adapters - RUNTIME_GIB
    tokens = cache_tokens(shape, gpu_gib, inputs)
    parts = [
        MemoryPart("weights", weights, f"{inputs.value_bytes} bytes, 1/{inputs.tensor_parallel}"),
        MemoryPart("adapters", adapters, f"{inputs.value_bytes} bytes, all of them"),
        MemoryPart("KV cache", max(cache, 0.0), f"{tokens:,} tokens: what the share leaves"),
        MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]
    return parts if inputs.lora_rank else [part for part in parts if part.name != "adapters"]


def cache_tokens(
    shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs, length: int | None = None
) -> int:
    """Returns how many tokens an engine's cache holds, of rows that are so long, or as long as they
    may be. Every GPU of the engine holds all of them, for its own KV heads."""
    length = max(1, length or inputs.max_model_len)
    cache = inputs.share * gpu_gib * GIB - inputs.resident_bytes(shape) - RUNTIME_GIB * GIB
    parts = min(inputs.tensor_parallel, shape.cache_parts(has_latents=inputs.has_latents))
    row_bytes = shape.kept_bytes(inputs.value_bytes, length, has_latents=inputs.has_latents)
    return max(0, int(cache * parts / (row_bytes / length)))


def trainer_memory_inputs(config: AjetConfig, ranks: int) -> TrainerMemoryInputs:
    """Returns what the trainer's memory depends on, from the config."""
    trainer = config.ajet.trainer_common
    compute_bytes, state_bytes = number_bytes(config, gpu=True)
    return TrainerMemoryInputs(
        ranks=max(1, ranks),
        sequence_parallel=trainer.ulysses_sequence_parallel_size,
        tokens=tokens_per_pass(config),
        compute_bytes=compute_bytes,
        state_bytes=state_bytes,
        checkpointing=bool(trainer.fsdp_config.activation_checkpointing),  # auto: on GPUs
        offload=trainer.fsdp_config.param_offload,
        keeps_gathered=trainer.fsdp_config.keep_gathered,
        lora_rank=trainer.lora.total_rank,
        has_reference=has_reference(config),
        has_critic=trainer.algorithm.estimator.needs_critic,
    )


def engine_memory_inputs(config: AjetConfig, *, gpu: bool = True) -> EngineMemoryInputs:
    """Returns what an engine's memory depends on, from the config."""
    rollout = config.ajet.rollout
    return EngineMemoryInputs(
        tensor_parallel=rollout.tensor_model_parallel_size,
        share=config.gpu_memory_utilization,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.num_server_seqs,
        value_bytes=number_bytes(config, gpu=gpu)[0],
        lora_rank=config.ajet.trainer_common.lora.total_rank if config.has_several_adapters else 0,
        has_latents=planned_engine(config, on_gpu=gpu) != "in_process",
    )


@dataclass(frozen=True)
class NodeMemory:
    """Holds the parts of a node's CPU memory: what is there while the run trains, and what rank 0
    loads at its start instead."""

    running: list[MemoryPart]
    loading: MemoryPart
    processes: MemoryPart

    @property
    def parts(self) -> list[MemoryPart]:
        return [part for part in (*self.running, self.loading, self.processes) if part.gib]

    @property
    def peak_gib(self) -> float:
        running = sum(part.gib for part in self.running)
        return max(running, self.loading.gib) + self.processes.gib


def node_memory(
    shape: ModelShape,
    trainer: TrainerMemoryInputs,
    *,
    ranks: int,
    engines: int,
    workers: int,
    weight_bytes: int,
    shared: MemoryPart,
    has_first_rank: bool,
    keeps_bases: bool,
) -> NodeMemory:
    """Estimates the CPU memory of one node, with so many processes and with what is in shared
    memory at once: while it trains, and before, while rank 0 has the whole model, and the
    reference's copy of it, that it is about to shard among all. With `keeps_bases` each engine
    keeps its weights in CPU memory while it sleeps."""
    whole = weight_bytes * shape.parameters / GIB
    running = [
        MemoryPart("offloaded", ranks * offloaded_memory(shape, trainer), "param_offload"),
        shared,
        MemoryPart("bases", keeps_bases * engines * whole, "of servers that sleep"),
    ]
    copies = 1 + (trainer.has_reference and not trainer.lora_rank)
    loading = MemoryPart(
        "loading",
        has_first_rank * copies * whole,
        f"at the start: the model{' and its reference' * (copies - 1)} whole in rank 0",
    )
    counts = f"{ranks} ranks, {engines} engines, {workers} workers"
    gib = PROCESS_GIB * (ranks + engines) + WORKER_GIB * workers
    return NodeMemory(running, loading, MemoryPart("processes", gib, counts))


def checkpoint_bytes(shape: ModelShape, lora_rank: int, weight_bytes: int, state_bytes: int) -> int:
    """Returns the size of a checkpoint: weights and AdamW's two moments of what is trained, and the
    masters of weights that are narrower than these. Adapters are as wide."""
    has_masters = weight_bytes != state_bytes and not lora_rank
    each = weight_bytes + state_bytes if has_masters else state_bytes
    return (each + 2 * state_bytes) * shape.trained_parameters(lora_rank)
