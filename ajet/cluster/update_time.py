"""Accounts for the time of one step's update, part by part, from the model's shape.

    products        2 FLOPs a parameter that a token is multiplied with forward, 4 backward
    attention       4 FLOPs x width for each pair of tokens forward, 10 backward
    elementwise     norms, residuals, rotary embedding, gate: what they read and write
    head            the products with the vocabulary, and the bytes of the softmax
    rest            what is in no part
    optimizer       the bytes of AdamW's numbers; if they are offloaded, a CPU's work
    communication   shards gathered and gradients summed; offloaded ones over PCIe

A part takes its FLOPs or bytes over the data sheet's speed times a share, named below: measured on
one H100 with a model of half a billion weights, or an assumption. Forward passes are repeated where
layers are recomputed, for a reference model, and for old log-probabilities.

MFU is the FLOPs of one forward and one backward pass, without any repetition, over what the GPUs
could do in that time. Tokens are those that the layout computes: the tree computes a group's prompt
once.

Not covered: launches that the host is late with (small micro-batches), ranks that wait for one
another, products in float32 or float64, which are slower than the data sheet's, products with the
states of linear attention, experts that get more tokens than others, and the critic.
"""

from dataclasses import dataclass
from functools import cached_property

from ajet.cluster.data_sheet import Gpu
from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.layer_shape import ModelShape
from ajet.cluster.memory_estimate import has_reference, number_bytes
from ajet.core.config import AjetConfig
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.update.settings import CorrectionSettings, tokens_per_pass

PRODUCT_SHARE = 0.7
"""Large products reach this share of the data sheet's FLOP/s; measured."""
ATTENTION_SHARES = {64: 0.18, 128: 0.35}
"""Flash attention over segments of several hundred tokens reaches these shares, by the greatest
width of a head: 64 is measured, wider ones are an assumption."""
BANDWIDTH_SHARE, LINK_SHARE, PCIE_SHARE = 0.78, 0.7, 0.8
"""Shares of the bandwidths of a GPU's memory, of the links between GPUs, and of PCIe. A copy and
Triton's kernels reach 0.9 of the memory's; small kernels and the gaps between them are the rest."""
PCIE, NETWORK = 32e9, 50e9
"""Bytes a second in one direction: a GPU to its host, and a GPU to those of other nodes."""
REST_VALUES = 43
"""Gathers and merges of segments, and gaps between kernels, take the time of reading or writing so
many hidden states for each token, layer and pass; fitted to updates of three shapes."""
HEAD_FORWARD, HEAD_BACKWARD = 2, 5
"""A logit is read or written so often in the forward pass, by its product and the softmax, and in
the backward pass, where it is made again, replaced by its gradient, and read by two products."""
ADAM_BYTES = 40
"""Bytes read and written for each float32 parameter: norm 4, clip 8, AdamW 28."""
ADAM_CPU_S = 1.31e-9
"""CPU seconds of a fused AdamW step for each parameter; measured on one processor."""
HOST_BANDWIDTH = 200e9
"""Bytes a second of a node's memory."""


@dataclass(frozen=True)
class UpdateInputs:
    """The numbers that the time of a step's update depends on."""

    groups: int
    members: int
    size: EpisodeSize
    layout: str = "tree"
    ranks: int = 1
    ranks_of_node: int = 1
    tokens_of_pass: int = 4096
    epochs: int = 1
    optimizer_steps: int = 1
    compute_bytes: int = 2
    state_bytes: int = 4
    recomputes: bool = True
    has_reference: bool = False
    scores_before: bool = False
    reshards: bool = True
    keeps_gathered: bool = False
    offload: bool = False
    is_sharded: bool = True
    lora_rank: int = 0
    cpus_of_rank: float = 8.0


@dataclass(frozen=True)
class TimePart:
    """One part of the update on each rank: seconds, and what they follow from."""

    name: str
    seconds: float
    note: str


@dataclass(frozen=True)
class UpdateTime:
    """Holds the accounting of one step's update."""

    shape: ModelShape
    gpu: Gpu
    inputs: UpdateInputs

    @property
    def layout(self) -> str:
        """Returns the layout of a batch; models without a tree are padded in any."""
        return self.inputs.layout if self.shape.has_tree else "padded"

    @property
    def tokens(self) -> int:
        """Returns the tokens that one pass over the step computes."""
        inputs, size = self.inputs, self.inputs.size
        if self.layout == "tree":
            return inputs.groups * (size.prompt + inputs.members * size.reply)
        return inputs.groups * inputs.members * size.length

    @property
    def trained_tokens(self) -> int:
        return self.inputs.groups * self.inputs.members * self.inputs.size.reply

    def pairs(self, window: int | None = None) -> float:
        """Returns the pairs of a token and one that it attends to, at most a window of them. Padded
        rows compute the pairs that the mask leaves out, too."""
        inputs, size = self.inputs, self.inputs.size
        episodes = inputs.groups * inputs.members
        if self.layout == "padded":
            return float(episodes) * size.length**2
        of_episode = _causal_pairs(size.length, window)
        if self.layout == "packed":
            return episodes * of_episode
        of_prompt = _causal_pairs(size.prompt, window)
        return inputs.groups * (of_prompt + inputs.members * (of_episode - of_prompt))

    @property
    def micro_batches(self) -> int:
        """Returns the micro-batches of each rank and optimizer step."""
        inputs = self.inputs
        tokens = self.tokens / inputs.ranks / inputs.optimizer_steps
        return max(1, -int(-tokens // inputs.tokens_of_pass))

    @property
    def model_flops(self) -> float:
        """Returns the FLOPs of one forward and one backward pass for each epoch, of all ranks."""
        once = self._products(3) + self._attention(3) + self._head(3)
        return self.inputs.epochs * once

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def mfu(self) -> float:
        return self.model_flops / (self.seconds * self.inputs.ranks * self.gpu.flops)

    @cached_property
    def parts(self) -> list[TimePart]:
        """Returns the parts of the update's time."""
        computed = [
            self._products_part(),
            self._attention_part(),
            self._of_layers("elementwise", self._layer_values, "norms, residuals, rotary, gate"),
            self._of_layers(
                "rest", REST_VALUES * self.shape.hidden * self.shape.layers, "gathers, merges, gaps"
            ),
            self._head_part(),
        ]
        hidden = sum(part.seconds for part in computed)
        return [*computed, self._optimizer_part(), self._communication_part(hidden)]

    def _forwards(self, *, of_head: bool = False) -> int:
        """Returns the forward passes of all epochs. The head computes its logits again in any
        case."""
        inputs = self.inputs
        each = 1 + (inputs.recomputes or of_head) + inputs.has_reference
        return inputs.epochs * each + inputs.scores_before

    def _products(self, passes: float) -> float:
        return 2 * passes * self.shape.active_layer_parameters * self.tokens

    def _attention(self, passes: float) -> float:
        each = (layer.pair * self.pairs(layer.window) for layer in self.shape.each_layer)
        return 2 * passes * sum(each)

    def _head(self, passes: float) -> float:
        return 2 * passes * self.shape.hidden * self.shape.vocab * self.trained_tokens

    @property
    def _backwards(self) -> int:
        """Returns the products of the backward passes, in forward passes. Adapters need no gradient
        of the weights below them."""
        return self.inputs.epochs * (1 if self.inputs.lora_rank else 2)

    def _products_part(self) -> TimePart:
        """Returns the products of the layers. Experts may take the time of reading their weights in
        each micro-batch."""
        inputs, passes = self.inputs, self._forwards() + self._backwards
        computed = self._computed("products", self._products(passes), PRODUCT_SHARE, passes)
        weights = sum(layer.parameters for layer in self.shape.each_layer)
        times = passes * inputs.optimizer_steps * self.micro_batches
        read = times * inputs.compute_bytes * weights
        moved = self._moved("products", read, f"all weights {times:g} times")
        return max(computed, moved, key=lambda part: part.seconds)

    def _attention_part(self) -> TimePart:
        passes = self._forwards() + 2.5 * self.inputs.epochs
        share = ATTENTION_SHARES[64 if self.shape.head_dim <= 64 else 128]
        return self._computed("attention", self._attention(passes), share, passes)

    def _computed(self, name: str, flops: float, share: float, passes: float) -> TimePart:
        seconds = flops / self.inputs.ranks / (share * self.gpu.flops)
        note = f"{flops / 1e12:,.0f} TFLOP in {passes:g} passes, {share:.0%} of the peak"
        return TimePart(name, seconds, note)

    @property
    def _layer_values(self) -> float:
        """Returns the values that the layers read and write for a token beside their products.
        Hidden states are copied to the experts of a token, and added up from them."""
        hidden = self.shape.hidden
        return sum(
            (10 + 4 * layer.chosen) * hidden + layer.mixed + 1.5 * layer.mlp_width
            for layer in self.shape.each_layer
        )

    def _of_layers(self, name: str, values: float, what: str) -> TimePart:
        """Returns the part that moves so many values for each token in each pass."""
        passes = self._forwards() + 2 * self.inputs.epochs
        moved = passes * self.tokens * values * self.inputs.compute_bytes
        return self._moved(name, moved / self.inputs.ranks, what)

    def _moved(self, name: str, num_bytes: float, what: str, seconds: float = 0.0) -> TimePart:
        """Returns the part that moves so many bytes on each GPU, behind `seconds` of products."""
        seconds += num_bytes / (BANDWIDTH_SHARE * self.gpu.bandwidth)
        share = f"{BANDWIDTH_SHARE:.0%} of the bandwidth"
        return TimePart(name, seconds, f"{what}: {num_bytes / 1e9:,.0f} GB a GPU, {share}")

    def _head_part(self) -> TimePart:
        shape, inputs = self.shape, self.inputs
        passes = self._forwards(of_head=True) + self._backwards
        flops = self._head(passes) / inputs.ranks
        forwards = self._forwards(of_head=True) - inputs.epochs
        each = (HEAD_FORWARD * forwards + HEAD_BACKWARD * inputs.epochs) * inputs.compute_bytes
        moved = each * shape.vocab * self.trained_tokens / inputs.ranks
        what = f"{flops * inputs.ranks / 1e12:,.0f} TFLOP; softmax"
        return self._moved("head", moved, what, flops / (PRODUCT_SHARE * self.gpu.flops))

    @property
    def _trained(self) -> int:
        return self.shape.trained_parameters(self.inputs.lora_rank)

    def _optimizer_part(self) -> TimePart:
        inputs = self.inputs
        steps = inputs.epochs * inputs.optimizer_steps
        own = self._trained / inputs.ranks
        if not inputs.offload:
            each = ADAM_BYTES * inputs.state_bytes / 4
            if not inputs.is_sharded:  # masters beside the weights: copied, and gradients added
                each += 6 + 10 * self.micro_batches
            return self._moved("optimizer", steps * each * own, f"{steps} AdamW steps")
        at_memory = ADAM_BYTES * own * inputs.ranks_of_node / HOST_BANDWIDTH
        seconds = steps * max(ADAM_CPU_S * own / inputs.cpus_of_rank, at_memory)
        note = f"{steps} AdamW steps on {inputs.cpus_of_rank:g} CPUs a rank (param_offload)"
        return TimePart("optimizer", seconds, note)

    def _communication_part(self, hidden: float) -> TimePart:
        """Returns what is left of the communication behind `hidden` seconds of computation, with
        which it overlaps."""
        shape, inputs = self.shape, self.inputs
        others = (inputs.ranks - 1) / inputs.ranks
        passes = inputs.epochs * inputs.optimizer_steps * self.micro_batches
        gathers = passes * (1 + inputs.reshards)
        sums = passes
        if inputs.keeps_gathered:
            gathers = sums = inputs.epochs * inputs.optimizer_steps
        gathers += passes * inputs.has_reference
        gathers += inputs.scores_before * inputs.optimizer_steps * self.micro_batches
        gathered = gathers * inputs.compute_bytes * shape.parameters * others
        reduced = sums * inputs.state_bytes * self._trained * others
        is_one_node = inputs.ranks <= inputs.ranks_of_node
        link = self.gpu.link if is_one_node else min(self.gpu.link, NETWORK)
        seconds = (gathered + reduced) / (LINK_SHARE * link)
        moved = gathered + reduced
        if inputs.offload:
            over_pcie = inputs.state_bytes / inputs.ranks
            over_pcie *= gathers * shape.parameters + sums * self._trained
            seconds += over_pcie / (PCIE_SHARE * PCIE)
            moved += over_pcie
        note = f"{moved / 1e9:,.0f} GB a GPU in {seconds:.1f} s, what computation does not hide"
        return TimePart("communication", max(0.0, seconds - hidden), note)


def _causal_pairs(length: int, window: int | None) -> float:
    """Returns the pairs of a sequence's tokens and those before, themselves included, of which each
    sees at most a window."""
    hidden = max(0, length - window) if window else 0
    return (length * (length + 1) - hidden * (hidden + 1)) / 2


def update_inputs(
    config: AjetConfig,
    size: EpisodeSize,
    *,
    ranks: int,
    ranks_of_node: int = 1,
    cpus_of_rank: float = 8.0,
    is_sharded: bool = True,
) -> UpdateInputs:
    """Returns what the update's time depends on, from the config, for training on GPUs."""
    ajet, trainer = config.ajet, config.ajet.trainer_common
    algorithm, fsdp = trainer.algorithm, trainer.fsdp_config
    compute_bytes, state_bytes = number_bytes(config, gpu=True)
    corrects = CorrectionSettings.from_config(config).is_on
    return UpdateInputs(
        groups=ajet.data.train_batch_size,
        members=ajet.rollout.num_repeat,
        size=size,
        layout="tree" if trainer.batch_layout == "auto" else trainer.batch_layout,
        ranks=max(1, ranks),
        ranks_of_node=max(1, ranks_of_node),
        tokens_of_pass=tokens_per_pass(config) // trainer.ulysses_sequence_parallel_size,
        epochs=trainer.ppo_epochs,
        optimizer_steps=BatchPlan(config, 1, 0).optimizer_steps_per_step,
        compute_bytes=compute_bytes,
        state_bytes=state_bytes,
        recomputes=bool(fsdp.activation_checkpointing),  # auto: on GPUs
        has_reference=has_reference(config),
        scores_before=algorithm.old_logprobs == "trainer" or corrects,
        reshards=fsdp.reshard_after_forward,
        keeps_gathered=fsdp.keep_gathered,
        offload=is_sharded and fsdp.param_offload,
        is_sharded=is_sharded,
        lora_rank=trainer.lora.rank,
        cpus_of_rank=max(1.0, cpus_of_rank),
    )
