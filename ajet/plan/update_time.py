"""Estimates the time of one step's update on GPUs from NVIDIA's data sheets: its FLOPs or bytes at
a fraction of the sheet's speed, which was measured on one H100 with half a billion weights, or is
assumed.
"""

from dataclasses import dataclass
from functools import cached_property

from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import CorrectionSettings, tokens_per_pass
from ajet.plan.memory import has_reference, number_bytes
from ajet.plan.model_shape import ModelShape

PRODUCT_SHARE = 0.7
"""Fraction of the data sheet's FLOP/s in large products; measured."""
ATTENTION_SHARES = {64: 0.18, 128: 0.35}
"""The same in flash attention over segments of several hundred tokens, by the largest width of a
head: 64 is measured, 128 assumed."""
BANDWIDTH_SHARE, LINK_SHARE, PCIE_SHARE = 0.78, 0.7, 0.8
"""Fractions of the bandwidths of a GPU's memory, of links between GPUs, and of PCIe."""
PCIE_4, NETWORK = 32e9, 50e9
"""Bytes/s in one direction over sixteen PCIe 4.0 lanes, as between a GPU and its host, and between
GPUs of different nodes."""
MOVED = 2.56
"""Bytes that a pass reads and writes, in multiples of the kept activations; fitted to three
updates."""
HEAD_FORWARD, HEAD_BACKWARD = 2, 5
"""How often a logit is read or written: in the forward pass by its product and the softmax; in the
backward pass it is recomputed, replaced by its gradient, and read by two products."""
ADAM_BYTES = 40
"""Bytes read and written per float32 parameter: norm 4, clip 8, AdamW 28."""
ADAM_CPU_S = 1.31e-9
"""CPU seconds of a fused AdamW step per parameter; measured on one processor."""
HOST_BANDWIDTH = 200e9
"""Bytes/s of a node's memory."""
EXPECTED_SHARE = 0.5
"""The expected length of an episode, as a fraction of the maximum."""


@dataclass(frozen=True)
class Gpu:
    """Memory in GiB, dense bfloat16 FLOP/s with float32 sums, bytes/s of the memory and, in one
    direction, of the link to other GPUs of the node."""

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float = PCIE_4


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a10", 24, 125e12, 0.6e12),
        Gpu("l4", 24, 121e12, 0.3e12),
        Gpu("4090", 24, 165e12, 1.008e12),
        Gpu("l40s", 48, 362e12, 0.864e12),
        Gpu("a100-40", 40, 312e12, 1.555e12, 300e9),
        Gpu("a100", 80, 312e12, 2.039e12, 300e9),
        Gpu("h100", 80, 989e12, 3.35e12, 450e9),
        Gpu("h200", 141, 989e12, 4.8e12, 450e9),
        Gpu("b200", 180, 2250e12, 8.0e12, 900e9),
    )
}
"""Figures of NVIDIA's data sheets of A10, A100 (SXM), L4, L40S, H100 (SXM), H200 (SXM) and DGX
B200, and of its Ada architecture white paper for the RTX 4090. Numbers "with sparsity" are halved.
"""


@dataclass(frozen=True)
class EpisodeSize:
    """The expected tokens of an episode, which counts as one prompt and one reply."""

    prompt: int
    reply: int

    @classmethod
    def of(
        cls, config: AjetConfig, prompt: int | None = None, reply: int | None = None
    ) -> "EpisodeSize":
        """Returns these lengths; None means half the maximum."""
        data = config.ajet.data
        return cls(
            prompt or round(EXPECTED_SHARE * data.max_prompt_length),
            reply or round(EXPECTED_SHARE * data.max_response_length),
        )

    @property
    def length(self) -> int:
        return self.prompt + self.reply


@dataclass(frozen=True)
class StepTokens:
    """The tokens of a step's update in a layout; a tree has a group's prompt once."""

    groups: int
    members: int
    size: EpisodeSize
    layout: str

    @classmethod
    def of(cls, config: AjetConfig, shape: ModelShape, size: EpisodeSize) -> "StepTokens":
        layout = config.ajet.trainer_common.batch_layout
        layout = "tree" if layout == "auto" else layout
        groups, members = config.ajet.data.train_batch_size, config.ajet.rollout.num_repeat
        return cls(groups, members, size, layout if shape.has_tree else "padded")

    @property
    def num(self) -> int:
        if self.layout == "tree":
            return self.groups * (self.size.prompt + self.members * self.size.reply)
        return self.groups * self.members * self.size.length

    @property
    def trained(self) -> int:
        return self.groups * self.members * self.size.reply

    def pairs(self, window: int | None = None) -> float:
        """Returns the pairs of a query and a key, at most a window of keys for a query."""
        size, episodes = self.size, self.groups * self.members
        if self.layout == "padded":  # masked pairs are computed, too
            return float(episodes) * size.length**2
        episode_pairs = _causal_pairs(size.length, window)
        if self.layout == "packed":
            return episodes * episode_pairs
        prompt_pairs = _causal_pairs(size.prompt, window)
        return self.groups * (prompt_pairs + self.members * (episode_pairs - prompt_pairs))

    def forward_flops(self, shape: ModelShape) -> float:
        head = 2 * shape.hidden * shape.vocab * self.trained
        return shape.forward_flops(self.num, self.pairs) + head


@dataclass(frozen=True)
class TimePart:
    """One part of the update on each rank."""

    name: str
    seconds: float
    note: str


@dataclass(frozen=True)
class UpdateTime:
    """The estimate of one step's update.

    MFU is the FLOPs of one forward and one backward pass, without recomputation, over what the GPUs
    could do in that time."""

    config: AjetConfig
    shape: ModelShape
    gpu: Gpu
    size: EpisodeSize
    recomputes: bool
    ranks: int = 1
    ranks_of_node: int = 1
    cpus_of_rank: float = 8.0
    is_sharded: bool = True

    @property
    def tokens(self) -> StepTokens:
        return StepTokens.of(self.config, self.shape, self.size)

    @property
    def _optimizer_steps(self) -> int:
        return BatchPlan(self.config, 1, 0).optimizer_steps_per_step

    @property
    def micro_batches(self) -> int:
        """The micro-batches per rank and optimizer step."""
        trainer = self.config.ajet.trainer_common
        budget = tokens_per_pass(self.config) // trainer.ulysses_sequence_parallel_size
        # The minus signs round up.
        return max(1, -int(-self.tokens.num / self.ranks / self._optimizer_steps // budget))

    @property
    def model_flops(self) -> float:
        """The FLOPs of one forward and one backward pass per epoch, on all ranks."""
        epochs = self.config.ajet.trainer_common.ppo_epochs
        return epochs * 3 * self.tokens.forward_flops(self.shape)

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def mfu(self) -> float:
        return self.model_flops / (self.seconds * self.ranks * self.gpu.flops)

    @cached_property
    def parts(self) -> list[TimePart]:
        config, shape, gpu, ranks, tokens = (
            self.config, self.shape, self.gpu, self.ranks, self.tokens
        )  # fmt: skip
        trainer, layers = config.ajet.trainer_common, shape.layers
        fsdp, epochs, has_adapters = trainer.fsdp_config, trainer.ppo_epochs, trainer.lora.rank > 0
        trained = shape.trained_parameters(trainer.lora.rank)
        value_bytes, state_bytes = number_bytes(config, gpu=True)
        offloads = self.is_sharded and fsdp.param_offload
        scores_before = trainer.algorithm.old_logprobs == "trainer"
        scores_before = scores_before or CorrectionSettings.from_config(config).is_on
        # Forward passes of all epochs, with those of a reference and for old log-probabilities. The
        # head always recomputes its logits.
        references = has_reference(config)
        forwards = epochs * (1 + self.recomputes + references) + scores_before
        head_forwards = epochs * (2 + references) + scores_before
        # The products of the backward passes, in units of forward passes: with adapters only the
        # gradient of a layer's input is computed, not of its weights.
        backwards = epochs * (1 if has_adapters else 2)
        micro_batches = self._optimizer_steps * self.micro_batches  # of one epoch

        def computed(name: str, flops: float, share: float, passes: float) -> TimePart:
            note = f"{flops / 1e12:,.0f} TFLOP in {passes:g} passes, {share:.0%} of the peak"
            return TimePart(name, flops / ranks / (share * gpu.flops), note)

        def moved(name: str, num_bytes: float, note: str, seconds: float = 0.0) -> TimePart:
            """Returns the part that moves `num_bytes` on each GPU, after `seconds` of products."""
            seconds += num_bytes / (BANDWIDTH_SHARE * gpu.bandwidth)
            share = f"{BANDWIDTH_SHARE:.0%} of the bandwidth"
            return TimePart(name, seconds, f"{note}: {num_bytes / 1e9:,.0f} GB a GPU, {share}")

        # The longer of computing the layers' products and, for experts, of reading all weights in
        # each micro-batch.
        passes = forwards + backwards
        flops = passes * (tokens.num * sum(layer.token_flops for layer in layers))
        times = passes * micro_batches
        read = times * value_bytes * sum(layer.parameters for layer in layers)
        products = max(
            computed("products", flops, PRODUCT_SHARE, passes),
            moved("products", read, f"all weights {times:g} times"),
            key=lambda part: part.seconds,
        )

        passes = forwards + 2.5 * epochs
        flops = passes * sum(layer.pair_flops * tokens.pairs(layer.window) for layer in layers)
        share = ATTENTION_SHARES[64 if shape.head_dim <= 64 else 128]
        attention = computed("attention", flops, share, passes)

        values = MOVED * tokens.num * sum(layer.kept for layer in layers)
        num_bytes = (forwards + 2 * epochs) * value_bytes * values / ranks
        elementwise = moved("elementwise", num_bytes, "norms, residuals, rotary, gates, merges")

        flops = 2 * (head_forwards + backwards) * shape.hidden * shape.vocab * tokens.trained
        times = HEAD_FORWARD * (head_forwards - epochs) + HEAD_BACKWARD * epochs
        num_bytes = times * value_bytes * shape.vocab * tokens.trained / ranks
        head_s = flops / ranks / (PRODUCT_SHARE * gpu.flops)
        head = moved("head", num_bytes, f"{flops / 1e12:,.0f} TFLOP; softmax", head_s)

        steps, parameters = epochs * self._optimizer_steps, trained / ranks
        if offloads:
            at_memory = ADAM_BYTES * parameters * self.ranks_of_node / HOST_BANDWIDTH
            seconds = steps * max(ADAM_CPU_S * parameters / self.cpus_of_rank, at_memory)
            note = f"{steps} AdamW steps on {self.cpus_of_rank:g} CPUs a rank (param_offload)"
            optimizer = TimePart("optimizer", seconds, note)
        else:
            num_bytes = ADAM_BYTES * state_bytes / 4
            if not self.is_sharded:  # masters are copied to weights, and gradients added to theirs
                num_bytes += 6 + 10 * self.micro_batches
            optimizer = moved("optimizer", steps * num_bytes * parameters, f"{steps} AdamW steps")

        # How often all weights are gathered and all gradients are summed over ranks.
        sums = epochs * micro_batches
        gathers = sums * (1 + fsdp.reshard_after_forward)
        if fsdp.keep_gathered:
            gathers = sums = steps
        gathers += epochs * micro_batches * references + scores_before * micro_batches
        num_bytes = gathers * value_bytes * shape.parameters + sums * state_bytes * trained
        num_bytes *= (ranks - 1) / ranks
        link = gpu.link if ranks <= self.ranks_of_node else min(gpu.link, NETWORK)
        seconds = num_bytes / (LINK_SHARE * link)
        if offloads:
            over_pcie = (gathers * shape.parameters + sums * trained) * state_bytes / ranks
            seconds += over_pcie / (PCIE_SHARE * PCIE_4)
            num_bytes += over_pcie
        note = f"{num_bytes / 1e9:,.0f} GB a GPU in {seconds:.1f} s, what computation does not hide"
        hidden_s = sum(part.seconds for part in (products, attention, elementwise, head))
        communication = TimePart("communication", max(0.0, seconds - hidden_s), note)
        return [products, attention, elementwise, head, optimizer, communication]

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns rows of the parts, their sum, and the MFU."""
        rows = [(f"  {part.name}", format_seconds(part.seconds), part.note) for part in self.parts]
        note = (
            f"{self.tokens.num:,} tokens ({self.tokens.layout}); ranks: {self.ranks}, "
            f"micro-batches of each in an optimizer step: {self.micro_batches}"
        )
        flops = f"{self.model_flops / 1e12:,.0f} TFLOP without recomputation, on {self.gpu.name}"
        return [
            *rows,
            ("update", format_seconds(self.seconds), note),
            ("MFU of the update", f"{self.mfu:.0%}", flops),
        ]


def format_seconds(seconds: float) -> str:
    """Returns a time in a readable unit."""
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.0f} days"


def _causal_pairs(length: int, window: int | None) -> float:
    """Returns the pairs of causal attention in a sequence: a token sees itself and those before it,
    at most a window of tokens."""
    hidden = max(0, length - window) if window else 0
    return (length * (length + 1) - hidden * (hidden + 1)) / 2
