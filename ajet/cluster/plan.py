"""Estimates what a run needs on a cluster before it starts: memory of each GPU and rough times.

    trainer rank    weights, gradients, optimizer (shards) + gathered layers + activations + logits
    engine          weights + KV cache
    a step          tokens generated / tokens a second, then 6 FLOPs for each parameter and token

It uses the config, a placement and the model's config.json; nothing is loaded. The formulas name
what is counted: of fragmentation and the libraries' own buffers only `RUNTIME_GIB` is counted. Not
covered: networks (gathering shards over slow links), attention masks of packed batches, what a rank
needs only while it loads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ajet.cluster.model_shape import ModelShape
from ajet.cluster.placement import Placement, ResourceRequest
from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import tokens_per_pass

GIB = 2.0**30
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
RUNTIME_GIB = 1.5
"""CUDA's context, NCCL's and cuBLAS's buffers of one process."""
LOGITS_AT_ONCE = 1 << 24
"""The value of MAX_LOGITS in core/update/loss.py, which is not imported because it needs torch; a
test compares the two."""
TRAINING_MFU, PREFILL_MFU, DECODE_SHARE = 0.35, 0.4, 0.5
"""Shares of the data sheet's FLOP/s that training and prefill reach, and of its memory bandwidth
that decoding reaches."""
EXPECTED_SHARE = 0.5
"""The expected length of an episode, as a share of its maximum length."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet: memory in GiB, dense bfloat16 FLOP/s, bandwidth in bytes a second."""

    name: str
    memory: float
    flops: float
    bandwidth: float


GPUS = {
    "a100": Gpu("a100", 80, 312e12, 2.0e12),
    "h100": Gpu("h100", 80, 989e12, 3.35e12),
    "h200": Gpu("h200", 141, 989e12, 4.8e12),
    "l40s": Gpu("l40s", 48, 362e12, 0.86e12),
    "a10": Gpu("a10", 24, 125e12, 0.6e12),
}


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory of a rank or engine, on one GPU, or on its node if it is offloaded."""

    name: str
    gib: float
    note: str


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
    lora_rank: int = 0
    has_reference: bool = True
    has_critic: bool = False


@dataclass(frozen=True)
class EngineMemoryInputs:
    """The numbers that an engine's memory depends on."""

    tensor_parallel: int = 1
    share: float = 0.6
    max_model_len: int = 18000
    max_num_seqs: int = 10
    value_bytes: int = 2


def trainer_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Estimates the memory of one rank's GPU at the peak of a step.

    States as in ZeRO (Rajbhandari et al. 2020, section 3): N ranks hold 1/N of the float32 weights
    (4 bytes a parameter), gradients (4) and Adam's two moments (8); of float64 twice that. A
    layer is gathered in the compute type for its own pass, the next one is on its way, and each has
    its gradient; the embeddings stay gathered from the forward to the end of the backward pass.
    """
    trained = shape.lora_parameters(inputs.lora_rank) if inputs.lora_rank else shape.parameters
    states = _states(shape, trained, inputs)
    gathered = 2 * inputs.compute_bytes * (shape.embedding_parameters + 2 * shape.layer_parameters)
    here = [part for part in states if not inputs.offload or part.name == "runtime"]
    logits = min(LOGITS_AT_ONCE, inputs.tokens // inputs.sequence_parallel * shape.vocab)
    return [
        *here,
        MemoryPart("gathered layers", gathered / GIB, "embeddings and two layers, with gradients"),
        MemoryPart(
            "activations",
            activation_bytes(shape, inputs) / GIB,
            f"{inputs.tokens:,} tokens, "
            f"{'one layer at a time' if inputs.checkpointing else 'kept'}",
        ),
        MemoryPart(
            "logits", 3 * 4 * logits / GIB, f"{logits:,} at once: values, softmax, gradient"
        ),
        MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]


def _states(shape: ModelShape, trained: int, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Returns the memory that a rank keeps between passes."""
    per_rank, size = GIB * inputs.ranks, inputs.state_bytes
    frozen = shape.parameters if inputs.lora_rank else 0
    parts = [
        MemoryPart(
            "weights", size * (trained + frozen) / per_rank, f"{size} bytes, 1/{inputs.ranks}"
        ),
        MemoryPart("gradients", size * trained / per_rank, f"{size} bytes, 1/{inputs.ranks}"),
        MemoryPart(
            "optimizer", 2 * size * trained / per_rank, f"{2 * size} bytes, 1/{inputs.ranks}"
        ),
    ]
    if inputs.has_reference and not inputs.lora_rank:
        parts.append(
            MemoryPart("reference", size * shape.parameters / per_rank, "use_kl_loss: a copy")
        )
    if inputs.has_critic:
        parts.append(
            MemoryPart("critic", 4 * size * shape.parameters / per_rank, "gae: its own model")
        )
    return parts


def resident_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> list[MemoryPart]:
    """Returns what a rank keeps on its GPU between two updates, when an engine on the same GPU may
    be awake."""
    trained = shape.lora_parameters(inputs.lora_rank) if inputs.lora_rank else shape.parameters
    states = [] if inputs.offload else _states(shape, trained, inputs)
    resident = [part for part in states if part.name != "gradients"]
    return [*resident, MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL")]


def offloaded_memory(shape: ModelShape, inputs: TrainerMemoryInputs) -> float:
    """Returns the GiB of CPU memory that one rank needs if its state is offloaded."""
    trained = shape.lora_parameters(inputs.lora_rank) if inputs.lora_rank else shape.parameters
    return sum(part.gib for part in _states(shape, trained, inputs)) if inputs.offload else 0.0


def activation_bytes(shape: ModelShape, inputs: TrainerMemoryInputs) -> float:
    """Returns the bytes kept for the backward pass of one micro-batch on one rank.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), counted anew for a gated MLP,
    grouped queries and attention that keeps no score matrix. Of a layer and token, in values:
    two norms' inputs and outputs (4 h), queries and attention's output (2 q), keys and values
    (2 kv), gate, up, their product and the activation (4 m). With checkpointing a layer keeps its
    input (h), and one layer at a time is whole.
    """
    tokens = inputs.tokens / inputs.sequence_parallel
    whole = (
        4 * shape.hidden + 2 * shape.attention_width + 2 * shape.kv_width + 4 * shape.intermediate
    )
    values = shape.layers * shape.hidden + whole if inputs.checkpointing else shape.layers * whole
    return tokens * values * inputs.compute_bytes


def engine_memory(
    shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs
) -> list[MemoryPart]:
    """Estimates the memory of one GPU of an engine: of its share, the cache has what is left.

    A token's cache is 2 (key, value) x layers x KV heads x head size values. Each GPU of the engine
    has a part of the KV heads, at least one: with more GPUs than heads, several have the same.
    """
    weights = inputs.value_bytes * shape.parameters / inputs.tensor_parallel / GIB
    cache = inputs.share * gpu_gib - weights - RUNTIME_GIB
    tokens = cache_tokens(shape, gpu_gib, inputs)
    return [
        MemoryPart("weights", weights, f"{inputs.value_bytes} bytes, 1/{inputs.tensor_parallel}"),
        MemoryPart("KV cache", max(cache, 0.0), f"{tokens:,} tokens: what the share leaves"),
        MemoryPart("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]


def cache_tokens(shape: ModelShape, gpu_gib: float, inputs: EngineMemoryInputs) -> int:
    """Returns how many tokens an engine's cache holds. Every GPU of the engine holds all of them,
    for its own KV heads."""
    weights = inputs.value_bytes * shape.parameters / inputs.tensor_parallel
    cache = inputs.share * gpu_gib * GIB - weights - RUNTIME_GIB * GIB
    parts = min(inputs.tensor_parallel, shape.kv_heads)
    token_bytes = inputs.value_bytes * shape.kv_values_per_token / parts
    return max(0, int(cache / token_bytes))


@dataclass(frozen=True)
class ClusterPlan:
    """A config on a placement: tables to print, and what does not fit."""

    config: AjetConfig
    placement: Placement
    shape: ModelShape
    gpu: Gpu

    @property
    def trainer_inputs(self) -> TrainerMemoryInputs:
        return trainer_memory_inputs(self.config, len(self.placement.trainer))

    @property
    def engine_inputs(self) -> EngineMemoryInputs:
        return engine_memory_inputs(self.config)

    @property
    def trainer_parts(self) -> list[MemoryPart]:
        return trainer_memory(self.shape, self.trainer_inputs) if self.placement.trainer else []

    @property
    def engine_parts(self) -> list[MemoryPart]:
        if not self.placement.engines:
            return []
        return engine_memory(self.shape, self.gpu.memory, self.engine_inputs)

    def memory_rows(self) -> list[tuple[str, str, str, str]]:
        """Returns rows of (role, part, GiB, note), with a sum for each role."""
        rows = []
        for role, parts in (("trainer", self.trainer_parts), ("engine", self.engine_parts)):
            rows += [(role, part.name, f"{part.gib:.1f}", part.note) for part in parts]
            if parts:
                rows.append((role, "all", f"{_sum(parts):.1f}", f"of {self.gpu.memory:g} GiB"))
        if offloaded := offloaded_memory(self.shape, self.trainer_inputs):
            rows.append(("trainer", "in CPU memory", f"{offloaded:.1f}", "for each rank"))
        return rows

    def problems(self) -> list[str]:
        """Returns a line for each thing that does not fit in a GPU."""
        problems = [*self._trainer_problems(), *self._engine_problems()]
        return problems or [*self._shared_problems()]

    def _trainer_problems(self) -> Iterable[str]:
        needed = _sum(self.trainer_parts)
        if self.placement.shares_gpus:
            needed += RUNTIME_GIB  # of the engine that sleeps meanwhile
        if needed > self.gpu.memory:
            biggest = max(self.trainer_parts, key=lambda part: part.gib)
            yield (
                f"a trainer rank needs about {needed:.0f} GiB of {self.gpu.memory:g} "
                f"(most of it {biggest.name}, {biggest.gib:.0f}); use more GPUs, "
                f"{_remedy(biggest.name)}"
            )

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
                "that works; lower gpu_memory_utilization, or set fsdp_config.param_offload"
            )

    def time_rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of (name, estimate, note) for one training step."""
        times = step_times(self)
        return [
            ("tokens of a step", f"{times.tokens:,.0f}", f"{EXPECTED_SHARE:.0%} of the most"),
            ("rollout", format_seconds(times.rollout_s), times.rollout_note),
            ("update", format_seconds(times.update_s), times.update_note),
            ("step", format_seconds(times.step_s), times.step_note),
        ]


@dataclass(frozen=True)
class StepTimes:
    """The seconds of one training step, without tools, judges and weight sync."""

    tokens: float
    rollout_s: float
    update_s: float
    takes_turns: bool
    rollout_note: str
    update_note: str

    @property
    def step_s(self) -> float:
        both = (self.rollout_s, self.update_s)
        return sum(both) if self.takes_turns else max(both)

    @property
    def step_note(self) -> str:
        return "one after the other" if self.takes_turns else "at the same time: the longer one"


def step_times(plan: ClusterPlan) -> StepTimes:
    """Estimates the times of rollout and update of a step.

    Decoding a token reads the weights and the cache once for the whole batch; an update costs 2
    FLOPs a parameter and token forward, 4 backward (Kaplan et al. 2020, section 2.1), 2 more where
    layers are recomputed, and attention 6 (8) x layers x width x length of the sequence.
    """
    ajet, shape, gpu = plan.config.ajet, plan.shape, plan.gpu
    batch = BatchPlan(plan.config, 1, 0)
    length = EXPECTED_SHARE * batch.tokens_per_episode
    episodes = float(batch.episodes_per_step)
    tokens = episodes * length
    prompt = min(ajet.data.max_prompt_length * EXPECTED_SHARE, length)
    rollout_s, running = _rollout_seconds(plan, episodes, length, length - prompt)
    prefill_s = 2 * shape.parameters * episodes * prompt
    prefill_s /= PREFILL_MFU * gpu.flops * max(1, _gpus(plan.placement.engines))
    passes = 4 if plan.trainer_inputs.checkpointing else 3
    per_token = 2 * passes * shape.parameters
    per_token += 2 * passes * shape.layers * shape.attention_width * length
    speed = TRAINING_MFU * gpu.flops * max(1, len(plan.placement.trainer))
    return StepTimes(
        tokens=tokens,
        rollout_s=rollout_s + prefill_s,
        update_s=ajet.trainer_common.ppo_epochs * tokens * per_token / speed,
        takes_turns=ResourceRequest.from_config(plan.config).colocated,
        rollout_note=f"{running:.0f} sequences at once on each engine, {DECODE_SHARE:.0%} of the "
        f"bandwidth of {gpu.name}",
        update_note=f"{TRAINING_MFU:.0%} of the FLOP/s of {gpu.name}, not networks, offload",
    )


def _rollout_seconds(
    plan: ClusterPlan, episodes: float, length: float, new: float
) -> tuple[float, float]:
    """Returns the seconds of decoding, and how many sequences an engine runs at a time."""
    serving, shape, engines = plan.engine_inputs, plan.shape, plan.placement.engines
    if not engines:
        return 0.0, 0.0
    in_flight = min(episodes, plan.config.ajet.rollout.max_env_worker) / len(engines)
    fits = cache_tokens(shape, plan.gpu.memory, serving) / max(1.0, length)
    running = max(1.0, min(serving.max_num_seqs, in_flight, fits))
    read = serving.value_bytes * (
        shape.parameters + running * shape.kv_values_per_token * length / 2
    )
    bandwidth = DECODE_SHARE * plan.gpu.bandwidth * serving.tensor_parallel
    steps = episodes * new / (running * len(engines))
    return steps * read / bandwidth, running


def trainer_memory_inputs(config: AjetConfig, ranks: int) -> TrainerMemoryInputs:
    """Returns what the trainer's memory depends on, from the config."""
    trainer, dtype = config.ajet.trainer_common, config.ajet.model.dtype
    computed_in = trainer.fsdp_config.param_dtype
    if computed_in == "auto" and dtype in ("float64", "float32"):
        computed_in = dtype
    return TrainerMemoryInputs(
        ranks=max(1, ranks),
        sequence_parallel=trainer.ulysses_sequence_parallel_size,
        tokens=tokens_per_pass(config),
        compute_bytes=BYTES.get(computed_in, 2),
        state_bytes=8 if dtype == "float64" else 4,
        checkpointing=bool(trainer.fsdp_config.activation_checkpointing),  # auto: on GPUs
        offload=trainer.fsdp_config.param_offload,
        lora_rank=trainer.lora.rank,
        has_reference=trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward,
        has_critic=trainer.algorithm.adv_estimator == "gae",
    )


def engine_memory_inputs(config: AjetConfig) -> EngineMemoryInputs:
    """Returns what an engine's memory depends on, from the config."""
    rollout = config.ajet.rollout
    return EngineMemoryInputs(
        tensor_parallel=rollout.tensor_model_parallel_size,
        share=config.gpu_memory_utilization,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        value_bytes=BYTES.get(config.ajet.model.dtype, 2),
    )


def _gpus(processes: Iterable) -> int:
    return sum(len(each.gpus) for each in processes)


def _sum(parts: Sequence[MemoryPart]) -> float:
    return sum(part.gib for part in parts)


def _remedy(part: str) -> str:
    if part in ("activations", "logits"):
        return (
            "fsdp_config.activation_checkpointing, a smaller max_token_len_per_gpu, or "
            "ulysses_sequence_parallel_size"
        )
    return "fsdp_config.param_offload, or lora.rank"


def format_seconds(seconds: float) -> str:
    """Returns a time that a person reads at a glance."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
