"""Estimates the memory of a run's processes on GPUs and on their nodes, before it starts: of a
trainer rank, an engine, a node and a checkpoint. Fragmentation, attention masks, workflows, tools
and judges need more.
"""

from dataclasses import dataclass
from typing import Self

from ajet.core.config import AjetConfig
from ajet.core.config.precision import BYTES, dtype_on, state_dtype
from ajet.core.update.settings import tokens_per_pass
from ajet.plan.model_shape import ModelShape
from ajet.servers.serving import planned_engine

GIB = 2.0**30
RUNTIME_GIB = 1.5
"""Of one process: CUDA's context, NCCL's and cuBLAS's buffers."""
PROCESS_GIB, WORKER_GIB = 2.0, 0.5
"""Assumed CPU memory of a process with torch and CUDA's libraries, and of a rollout worker."""
LOGIT_BYTES = 14
"""Of one logit at the peak of a slice: itself, and float32 logits, softmax, probabilities."""


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory of a rank or engine, on its GPU or, if offloaded, its node."""

    name: str
    gib: float
    note: str

    @classmethod
    def from_bytes(cls, name: str, num_bytes: float, note: str) -> Self:
        return cls(name, num_bytes / GIB, note)


def total(memory_parts: list[MemoryPart]) -> float:
    return sum(part.gib for part in memory_parts)


def number_bytes(config: AjetConfig, *, gpu: bool) -> tuple[int, int]:
    """Returns the bytes of a weight, and of a number of its gradient and the optimizer."""
    dtype = dtype_on(config, gpu=gpu)
    return BYTES[dtype], BYTES[state_dtype(dtype)]


def has_reference(config: AjetConfig) -> bool:
    trainer = config.ajet.trainer_common
    in_reward = trainer.algorithm.use_kl_in_reward
    return trainer.use_kl_loss or in_reward or config.ajet.kind == "preference"


@dataclass(frozen=True)
class TrainerMemoryInputs:
    """The settings on which a trainer rank's memory depends."""

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

    @classmethod
    def from_config(cls, config: AjetConfig, ranks: int) -> Self:
        trainer = config.ajet.trainer_common
        compute_bytes, state_bytes = number_bytes(config, gpu=True)
        return cls(
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


@dataclass(frozen=True)
class EngineMemoryInputs:
    """The settings on which an engine's memory depends."""

    tensor_parallel: int = 1
    share: float = 0.6
    max_model_len: int = 18000
    max_num_seqs: int = 64
    value_bytes: int = 2
    lora_rank: int = 0
    """The ranks of several adapters, which an engine keeps apart from the weights, added up."""
    has_latents: bool = True
    """A server's cache has latents; the in-process engine expands them to keys and values."""

    @classmethod
    def from_config(cls, config: AjetConfig, *, gpu: bool = True) -> Self:
        rollout, lora = config.ajet.rollout, config.ajet.trainer_common.lora
        return cls(
            tensor_parallel=rollout.tensor_model_parallel_size,
            share=config.gpu_memory_utilization,
            max_model_len=rollout.max_model_len,
            max_num_seqs=rollout.num_server_seqs,
            value_bytes=number_bytes(config, gpu=gpu)[0],
            lora_rank=lora.total_rank if config.has_several_adapters else 0,
            has_latents=planned_engine(config, on_gpu=gpu) != "in_process",
        )


def trainer_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Estimates the memory of one rank's GPU at the peak of a step.

    States are sharded as in ZeRO (Rajbhandari et al. 2020, section 3).
    """
    largest = max(layer.parameters for layer in shape.layers)
    # FSDP gathers a layer in the compute type while it prefetches the next one, each with its
    # gradient. The embeddings stay gathered until the end of the backward pass.
    gathered = 2 * inputs.compute_bytes * (shape.embedding_parameters + 2 * largest)
    note = "embeddings and two layers, with gradients"
    if inputs.keeps_gathered:
        gathered = inputs.compute_bytes * shape.parameters
        gathered += inputs.state_bytes * shape.trained_parameters(inputs.lora_rank)
        note = "keep_gathered: all weights, with gradients"
    tokens = inputs.tokens // inputs.sequence_parallel
    activations = activation_values(
        shape, inputs.tokens / inputs.sequence_parallel, recomputes=inputs.checkpointing
    )
    kept = "one layer at a time" if inputs.checkpointing else "kept"
    part = MemoryPart.from_bytes
    return [
        *([] if inputs.offload else trainer_states(shape, inputs)),
        part("gathered layers", gathered, note),
        part(
            "activations", inputs.compute_bytes * activations, f"{inputs.tokens:,} tokens, {kept}"
        ),
        head_memory(shape, tokens, has_gradient=not inputs.lora_rank),
        MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]


def trainer_states(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Returns the states that a rank keeps between passes, on its GPU or offloaded."""
    size, share = inputs.state_bytes, f"1/{inputs.ranks}"
    trained = shape.trained_parameters(inputs.lora_rank)
    frozen = shape.parameters if inputs.lora_rank else 0
    states = [
        ("weights", size * (trained + frozen), f"{size} bytes, {share}"),
        ("gradients", size * trained, f"{size} bytes, {share}"),
        ("optimizer", 2 * size * trained, f"{2 * size} bytes, {share}"),
    ]
    if inputs.has_reference and not inputs.lora_rank:
        states.append(("reference", size * shape.parameters, "KL or preferences: a copy"))
    if inputs.has_critic:
        states.append(("critic", 4 * size * shape.parameters, "gae: a separate model"))
    return [
        MemoryPart.from_bytes(name, num_bytes / inputs.ranks, note)
        for name, num_bytes, note in states
    ]


def activation_values(shape: ModelShape, tokens: float, *, recomputes: bool) -> float:
    """Returns how many activations a pass over so many tokens keeps at its peak."""
    hidden, kept = shape.hidden, [layer.kept for layer in shape.layers]
    # With recomputation layers keep their inputs, and one layer at a time keeps everything.
    values = len(kept) * hidden + max(kept) if recomputes else sum(kept)
    # A layer's backward pass adds gradients of its output and input (2 h), and of gate and up.
    return tokens * (values + 2 * hidden + max(layer.mlp for layer in shape.layers))


def head_memory(shape: ModelShape, tokens: int, *, has_gradient: bool = True) -> MemoryPart:
    """Returns the head's memory: a slice of logits, and the gradient, summed in float32."""
    from ajet.core.update.loss import MAX_LOGITS_ON_GPU

    logits = min(MAX_LOGITS_ON_GPU, tokens * shape.vocab)
    gradient = 4 * shape.vocab * shape.hidden if has_gradient else 0
    note = f"{logits:,} logits at once, {LOGIT_BYTES} bytes each; float32 gradient"
    return MemoryPart.from_bytes("head", LOGIT_BYTES * logits + gradient, note)


def engine_memory(
    shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs
) -> list[MemoryPart]:
    """Estimates the memory of one GPU of an engine; the cache gets the rest of its share."""
    weights, adapters, cache = (
        num_bytes / GIB for num_bytes in _engine_bytes(shape, gpu_gib, inputs)
    )
    tokens = cache_tokens(shape, gpu_gib, inputs)
    memory = [
        MemoryPart("weights", weights, f"{inputs.value_bytes} bytes, 1/{inputs.tensor_parallel}"),
        MemoryPart("adapters", adapters, f"{inputs.value_bytes} bytes, all of them"),
        MemoryPart("KV cache", max(cache, 0.0), f"{tokens:,} tokens: what the share leaves"),
        MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]
    return [part for part in memory if part.gib or part.name == "KV cache"]


def cache_tokens(
    shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs, length: int | None = None
) -> int:
    """Returns how many tokens of rows of this length (default: the maximum) an engine's cache
    holds."""
    length = max(1, length or inputs.max_model_len)
    cache = _engine_bytes(shape, gpu_gib, inputs)[2]
    # A GPU has at least one KV head, so with more GPUs than heads some have the same ones; a latent
    # cannot be split at all.
    shards = min(inputs.tensor_parallel, shape.kv_heads)
    row_bytes = shape.kept_bytes(inputs.value_bytes, length, has_latents=inputs.has_latents)
    return max(0, int(cache * shards / (row_bytes / length)))


def _engine_bytes(
    shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs
) -> tuple[float, float, float]:
    """Returns the bytes of an engine's weights, adapters and cache on one GPU."""
    weights = inputs.value_bytes * shape.parameters / inputs.tensor_parallel
    adapters = inputs.value_bytes * inputs.lora_rank * shape.adapted
    return weights, adapters, (inputs.share * gpu_gib - RUNTIME_GIB) * GIB - weights - adapters


@dataclass(frozen=True)
class NodeMemory:
    """A node's CPU memory: while the run trains, or while rank 0 loads the model before that; and
    the processes' in both cases."""

    running: list[MemoryPart]
    loading: MemoryPart
    processes: MemoryPart

    @property
    def parts(self) -> list[MemoryPart]:
        return [part for part in (*self.running, self.loading, self.processes) if part.gib]

    @property
    def peak_gib(self) -> float:
        return max(total(self.running), self.loading.gib) + self.processes.gib


def checkpoint_bytes(
    trained: int, weight_bytes: int, state_bytes: int, *, is_adapter: bool = False
) -> int:
    """Returns the size of a checkpoint: trained weights and AdamW's two moments."""
    # Weights narrower than the moments have masters in the checkpoint, too; adapters are as wide.
    has_masters = weight_bytes != state_bytes and not is_adapter
    return (has_masters * weight_bytes + 3 * state_bytes) * trained
