"""What a run comes to on a cluster, before it starts: memory of each GPU and rough times.

    trainer rank    weights, gradients, optimizer (shards) + gathered layers + activations + logits
    engine          weights + KV cache
    a step          tokens generated / tokens a second, then 6 FLOPs a parameter and token

From the config, a placement and the model's config.json; nothing is loaded. Memory is an estimate
of what the formulas name: fragmentation and the libraries' own buffers are in `RUNTIME_GIB` alone.
Not covered: networks (gathering shards over slow links), attention masks of packed batches, what a
rank needs for a moment while it loads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ajet.cluster.model_shape import ModelShape
from ajet.cluster.placement import Needs, Placement
from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import tokens_per_pass

GIB = 2.0**30
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
RUNTIME_GIB = 1.5
"""CUDA's context, NCCL's and cuBLAS's buffers of one process."""
LOGITS_AT_ONCE = 1 << 24
"""MAX_LOGITS of core/update/loss.py, which this cannot import: it needs torch (a test compares)."""
TRAINING_MFU, PREFILL_MFU, DECODE_SHARE = 0.35, 0.4, 0.5
"""Of the data sheet's FLOP/s, and of its bandwidth while tokens are decoded one by one."""
EXPECTED_SHARE = 0.5
"""Tokens of an episode, of the most it may have."""


@dataclass(frozen=True)
class Gpu:
    """A data sheet: GiB, dense bfloat16 FLOP/s, bytes a second."""

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
class Part:
    """Some memory of a role on one GPU, or on the node where it is offloaded."""

    name: str
    gib: float
    how: str


@dataclass(frozen=True)
class Training:
    """What the trainer's memory depends on."""

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
class Serving:
    """What an engine's memory depends on."""

    tensor_parallel: int = 1
    share: float = 0.6
    max_model_len: int = 18000
    max_num_seqs: int = 10
    value_bytes: int = 2


def trainer_memory(shape: ModelShape, run: Training) -> list[Part]:
    """One rank's GPU at the peak of a step.

    States as in ZeRO (Rajbhandari et al. 2020, section 3): N ranks hold 1/N of the float32 weights
    (4 bytes a parameter), gradients (4) and Adam's two moments (8); of float64 twice that. A
    layer is gathered in the compute type for its own pass, the next one is on its way, and each has
    its gradient; the embeddings stay gathered from the forward to the end of the backward pass.
    """
    learnt = shape.lora_parameters(run.lora_rank) if run.lora_rank else shape.parameters
    states = _states(shape, learnt, run)
    gathered = 2 * run.compute_bytes * (shape.embedding_parameters + 2 * shape.layer_parameters)
    here = [part for part in states if not run.offload or part.name == "runtime"]
    logits = min(LOGITS_AT_ONCE, run.tokens // run.sequence_parallel * shape.vocab)
    return [
        *here,
        Part("gathered layers", gathered / GIB, "embeddings and two layers, with gradients"),
        Part(
            "activations",
            activation_bytes(shape, run) / GIB,
            f"{run.tokens:,} tokens, {'one layer at a time' if run.checkpointing else 'kept'}",
        ),
        Part("logits", 3 * 4 * logits / GIB, f"{logits:,} at once: values, softmax, gradient"),
        Part("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]


def _states(shape: ModelShape, learnt: int, run: Training) -> list[Part]:
    """What a rank keeps between passes."""
    per_rank, size = GIB * run.ranks, run.state_bytes
    frozen = shape.parameters if run.lora_rank else 0
    parts = [
        Part("weights", size * (learnt + frozen) / per_rank, f"{size} bytes, 1/{run.ranks}"),
        Part("gradients", size * learnt / per_rank, f"{size} bytes, 1/{run.ranks}"),
        Part("optimizer", 2 * size * learnt / per_rank, f"{2 * size} bytes, 1/{run.ranks}"),
    ]
    if run.has_reference and not run.lora_rank:
        parts.append(Part("reference", size * shape.parameters / per_rank, "use_kl_loss: a copy"))
    if run.has_critic:
        parts.append(Part("critic", 4 * size * shape.parameters / per_rank, "gae: its own model"))
    return parts


def kept_memory(shape: ModelShape, run: Training) -> list[Part]:
    """What a rank has on its GPU between two updates, when an engine there may be awake."""
    learnt = shape.lora_parameters(run.lora_rank) if run.lora_rank else shape.parameters
    states = [] if run.offload else _states(shape, learnt, run)
    kept = [part for part in states if part.name != "gradients"]
    return [*kept, Part("runtime", RUNTIME_GIB, "CUDA, NCCL")]


def offloaded_memory(shape: ModelShape, run: Training) -> float:
    """GiB of CPU memory that one rank needs where its state is offloaded."""
    learnt = shape.lora_parameters(run.lora_rank) if run.lora_rank else shape.parameters
    return sum(part.gib for part in _states(shape, learnt, run)) if run.offload else 0.0


def activation_bytes(shape: ModelShape, run: Training) -> float:
    """Kept for the backward pass, of the tokens of one micro-batch on one rank.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), counted anew for a gated MLP,
    grouped queries and attention that keeps no score matrix. Of a layer and token, in values:
    two norms' inputs and outputs (4 h), queries and attention's output (2 q), keys and values
    (2 kv), gate, up, their product and the activation (4 m). With checkpointing a layer keeps its
    input (h), and one layer at a time is whole.
    """
    tokens = run.tokens / run.sequence_parallel
    whole = (
        4 * shape.hidden + 2 * shape.attention_width + 2 * shape.kv_width + 4 * shape.intermediate
    )
    values = shape.layers * shape.hidden + whole if run.checkpointing else shape.layers * whole
    return tokens * values * run.compute_bytes


def engine_memory(shape: ModelShape, gpu_gib: float, run: Serving) -> list[Part]:
    """One GPU of an engine: it takes its share of the memory, and what is left is cache.

    A token's cache is 2 (key, value) x layers x KV heads x head size values. Each GPU of the engine
    has a part of the KV heads, at least one: where there are more GPUs, several have the same.
    """
    weights = run.value_bytes * shape.parameters / run.tensor_parallel / GIB
    cache = run.share * gpu_gib - weights - RUNTIME_GIB
    tokens = cache_tokens(shape, gpu_gib, run)
    return [
        Part("weights", weights, f"{run.value_bytes} bytes, 1/{run.tensor_parallel}"),
        Part("KV cache", max(cache, 0.0), f"{tokens:,} tokens: what the share leaves"),
        Part("runtime", RUNTIME_GIB, "CUDA, NCCL"),
    ]


def cache_tokens(shape: ModelShape, gpu_gib: float, run: Serving) -> int:
    """Tokens that the cache of an engine holds: those of each of its GPUs, whose heads differ."""
    weights = run.value_bytes * shape.parameters / run.tensor_parallel
    room = run.share * gpu_gib * GIB - weights - RUNTIME_GIB * GIB
    parts = min(run.tensor_parallel, shape.kv_heads)
    of_token = run.value_bytes * shape.kv_values_per_token / parts
    return max(0, int(room / of_token))


@dataclass(frozen=True)
class ClusterPlan:
    """A config on a placement: tables for people, and what does not fit."""

    config: AjetConfig
    placement: Placement
    shape: ModelShape
    gpu: Gpu

    @property
    def training(self) -> Training:
        return training_of(self.config, len(self.placement.trainer))

    @property
    def serving(self) -> Serving:
        return serving_of(self.config)

    @property
    def trainer_parts(self) -> list[Part]:
        return trainer_memory(self.shape, self.training) if self.placement.trainer else []

    @property
    def engine_parts(self) -> list[Part]:
        if not self.placement.engines:
            return []
        return engine_memory(self.shape, self.gpu.memory, self.serving)

    def memory_rows(self) -> list[tuple[str, str, str, str]]:
        """(role, part, GiB, how), with a sum for each role."""
        rows = []
        for role, parts in (("trainer", self.trainer_parts), ("engine", self.engine_parts)):
            rows += [(role, part.name, f"{part.gib:.1f}", part.how) for part in parts]
            if parts:
                rows.append((role, "all", f"{_sum(parts):.1f}", f"of {self.gpu.memory:g} GiB"))
        if offloaded := offloaded_memory(self.shape, self.training):
            rows.append(("trainer", "in CPU memory", f"{offloaded:.1f}", "for each rank"))
        return rows

    def problems(self) -> list[str]:
        """What does not fit in a GPU, a line each."""
        alone = [*self._trainer_problems(), *self._engine_problems()]
        return alone or [*self._shared_problems()]

    def _trainer_problems(self) -> Iterable[str]:
        needed = _sum(self.trainer_parts)
        asleep = RUNTIME_GIB if self.placement.shares_gpus else 0.0
        if needed + asleep > self.gpu.memory:
            biggest = max(self.trainer_parts, key=lambda part: part.gib)
            yield (
                f"a trainer rank needs about {needed + asleep:.0f} GiB of {self.gpu.memory:g} "
                f"(most of it {biggest.name}, {biggest.gib:.0f}); use more GPUs, "
                f"{_remedy(biggest.name)}"
            )

    def _engine_problems(self) -> Iterable[str]:
        if not self.engine_parts:
            return
        tokens = cache_tokens(self.shape, self.gpu.memory, self.serving)
        longest = self.serving.max_model_len
        if tokens < longest:
            yield (
                f"an engine's cache has room for {tokens:,} tokens, less than one sequence of "
                f"ajet.rollout.max_model_len={longest:,}; lower that, or raise "
                f"gpu_memory_utilization ({self.serving.share:g}) or tensor_model_parallel_size"
            )

    def _shared_problems(self) -> Iterable[str]:
        """What a rank keeps stays where it is while the engine on its GPU is awake."""
        if not self.placement.shares_gpus:
            return
        kept = _sum(kept_memory(self.shape, self.training))
        share = self.serving.share * self.gpu.memory
        if kept + share > self.gpu.memory:
            yield (
                f"an engine has {share:.0f} GiB of {self.gpu.memory:g} (gpu_memory_utilization="
                f"{self.serving.share:g}), and the trainer rank on its GPU keeps {kept:.0f} while "
                "that works; lower gpu_memory_utilization, or set fsdp_config.param_offload"
            )

    def time_rows(self) -> list[tuple[str, str, str]]:
        """(what, about how long, how) of one training step."""
        times = step_times(self)
        return [
            ("tokens of a step", f"{times.tokens:,.0f}", f"{EXPECTED_SHARE:.0%} of the most"),
            ("rollout", _duration(times.rollout_s), times.how_rollout),
            ("update", _duration(times.update_s), times.how_update),
            ("step", _duration(times.step_s), times.how_step),
        ]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one training step, without tools, judges and weight transfer."""

    tokens: float
    rollout_s: float
    update_s: float
    takes_turns: bool
    how_rollout: str
    how_update: str

    @property
    def step_s(self) -> float:
        both = (self.rollout_s, self.update_s)
        return sum(both) if self.takes_turns else max(both)

    @property
    def how_step(self) -> str:
        return "one after the other" if self.takes_turns else "at the same time: the longer one"


def step_times(plan: ClusterPlan) -> StepTimes:
    """Rollout and update of a step.

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
    passes = 4 if plan.training.checkpointing else 3
    per_token = 2 * passes * shape.parameters
    per_token += 2 * passes * shape.layers * shape.attention_width * length
    speed = TRAINING_MFU * gpu.flops * max(1, len(plan.placement.trainer))
    return StepTimes(
        tokens=tokens,
        rollout_s=rollout_s + prefill_s,
        update_s=ajet.trainer_common.ppo_epochs * tokens * per_token / speed,
        takes_turns=Needs.of(plan.config).colocated,
        how_rollout=f"{running:.0f} sequences at once on each engine, {DECODE_SHARE:.0%} of the "
        f"bandwidth of {gpu.name}",
        how_update=f"{TRAINING_MFU:.0%} of the FLOP/s of {gpu.name}, not networks, offload",
    )


def _rollout_seconds(
    plan: ClusterPlan, episodes: float, length: float, new: float
) -> tuple[float, float]:
    """Seconds of decoding, and sequences that an engine runs at a time."""
    serving, shape, engines = plan.serving, plan.shape, plan.placement.engines
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


def training_of(config: AjetConfig, ranks: int) -> Training:
    """The trainer's part of a config."""
    trainer, dtype = config.ajet.trainer_common, config.ajet.model.dtype
    computed_in = trainer.fsdp_config.param_dtype
    if computed_in == "auto" and dtype == "float64":
        computed_in = dtype
    return Training(
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


def serving_of(config: AjetConfig) -> Serving:
    """The engines' part of a config."""
    rollout = config.ajet.rollout
    return Serving(
        tensor_parallel=rollout.tensor_model_parallel_size,
        share=config.gpu_memory_utilization,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        value_bytes=BYTES.get(config.ajet.model.dtype, 2),
    )


def _gpus(processes: Iterable) -> int:
    return sum(len(each.gpus) for each in processes)


def _sum(parts: Sequence[Part]) -> float:
    return sum(part.gib for part in parts)


def _remedy(part: str) -> str:
    if part in ("activations", "logits"):
        return (
            "fsdp_config.activation_checkpointing, a smaller max_token_len_per_gpu, or "
            "ulysses_sequence_parallel_size"
        )
    return "fsdp_config.param_offload, or lora.rank"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
