"""What passes and decode steps ask of a GPU, counted with tensors that hold no numbers.

    python scripts/attention_accounting.py

Models have the shapes of Qwen2.5-7B and, for prefill, of 0.5B too. `launches` are the operators
that reach the device (views and allocations do not), `GB` what they read and write once each.
`pairs` are those of query and key that the plan computes, to which the FLOPs of attention are in
proportion: over those that are needed, and over those of flash attention if each row were a
sequence of its own. The two plans are ajet's: by flash attention over sequences of several lengths,
and by plain products.

Prefill of the in-process engine is all that comes before the first decode step: new tokens go
through the model, chunk by chunk or all of them as one flat list, and the batch is formed. A decode
step, with its head, is counted where every operator is launched, and where the step is a replay of
a captured one.

Not covered: times; the head and the loss of the passes; sampling; what a kernel reads more than
once.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.attention.trie import Forest, IntArray, trie_of_rows
from ajet.core.model.attention.varlen_attention import FlashKernel, VarlenPlan
from ajet.core.model.decoder import Decoder
from ajet.core.text.terminal import Console
from ajet.core.update.layouts.piece_plan import PiecePlan
from ajet.core.update.layouts.tree_attention import AttentionPlan, tree_attention
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow
from ajet.engines.step_graph import Compute

META = torch.device("meta")
NO_LAUNCH = ("empty", "detach", "alias", "_unsafe_view", "lift_fresh")
"""Operators that only allocate, or return what they were given."""


@dataclass(frozen=True)
class Batch:
    """Describes rows: `groups` groups of `members` rows, which share `shared` tokens and have `own`
    tokens each."""

    name: str
    groups: int
    members: int
    shared: int
    own: int

    def rows(self) -> list[IntArray]:
        """Returns the token ids of each row; a row's own tokens are another row's never."""
        return [
            np.concatenate(
                (np.full(self.shared, g), np.full(self.own, 1000 + g * self.members + m))
            )
            for g in range(self.groups)
            for m in range(self.members)
        ]


@dataclass(frozen=True)
class Decode:
    """Describes rows that are decoded: groups of 8 rows, each group with a prompt of its own."""

    name: str
    prompts: tuple[int, ...]

    def rows(self) -> list[BatchRow]:
        """Returns the rows, sorted by their tokens."""
        return [
            BatchRow(f"{g}.{m}/0", (g,) * length, SamplingParams(), frozenset(), length + 512)
            for g, length in enumerate(self.prompts)
            for m in range(8)
        ]


DECODES = (
    Decode("8 x 8, prompts of 512", (512,) * 8),
    Decode("8 x 8, one prompt of 4,096 beside 512", (4096, *(512,) * 7)),
)
PROMPTS = (512,) * 64
BATCHES = (
    Batch("1 x 32,768", 1, 1, 0, 32_768),
    Batch("8 x (512 shared + 4,096)", 1, 8, 512, 4096),
    Batch("64 x (1,024 shared by 8 + 384)", 8, 8, 1024, 384),
)


class LaunchCounter(TorchDispatchMode):
    """Counts the operators that reach the device, and the bytes of their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").partition(".")[0]
        if not (func.is_view or name.startswith(NO_LAUNCH)):
            self.add(*_tensors((args, kwargs, out)))
        return out

    def add(self, *tensors: Tensor) -> None:
        """Counts a launch that reads or writes these tensors."""
        self.launches += 1
        self.bytes += sum(t.numel() * t.element_size() for t in tensors)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    },
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
"""Those of Qwen2.5."""


def model_of(shape: str, num_layers: int | None = None) -> Any:
    """Returns a model of this shape, or with another number of layers, on the device that holds no
    numbers."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = dict(SHAPES[shape])
    if num_layers is not None:
        sizes["num_hidden_layers"] = num_layers
    config = Qwen2Config(**sizes, max_position_embeddings=32_768)
    with META:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


class _Norm(torch.autograd.Function):
    """Counts a norm as CUDA computes it, in one launch forwards and one backwards; on a device
    without numbers torch takes it apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counter: LaunchCounter) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counter = counter
        counter.add(x, x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        ctx.counter.add(x, x, x)
        return torch.empty_like(x), torch.empty_like(weight), None


@contextmanager
def counting() -> Iterator[LaunchCounter]:
    """Counts what is computed within."""
    counter = LaunchCounter()

    def norm(module: Any, x: Tensor) -> Tensor:
        return _Norm.apply(x, module.weight, counter)  # type: ignore[no-any-return]

    with counter, patch("ajet.core.model.decoder.rms_norm", norm):
        yield counter


def forward(decoder: Decoder, forest: Forest, plan: AttentionPlan) -> Tensor:
    """Returns the hidden states of a forward pass."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tree_attention(q, k, v, plan)

    ids, positions = (torch.empty(len(forest), dtype=torch.int64, device=META) for _ in range(2))
    return decoder(ids, positions, attend)


def count(decoder: Decoder, forest: Forest, plan: AttentionPlan) -> LaunchCounter:
    """Counts a forward and a backward pass."""
    with counting() as counter:
        forward(decoder, forest, plan).sum().backward()
    return counter


class CountedGraph:
    """A graph whose replay is one launch."""

    def __init__(self) -> None:
        self.num_replays = 0

    def warm_up(self, compute: Compute) -> Tensor:
        """Computes the step."""
        return compute()

    def capture(self, compute: Compute) -> Tensor:
        """Computes the step, which holds no numbers anyway."""
        return compute()

    def replay(self) -> None:
        """Notes a replay."""
        self.num_replays += 1

    def free(self) -> None:
        """Has nothing to free."""


@torch.no_grad()
def prefill_launches(model: Any, prompts: Sequence[int], *, packed: bool) -> int:
    """Returns the launches before the first decode step of rows whose prompts have so many tokens
    and share nothing."""
    forward = FlatForward(
        model,
        max_kv_tokens=1 << 20,
        graph=CountedGraph(),
        varlen_for=lambda _: FlashKernel() if packed else None,
    )
    rows = [
        BatchRow(f"{n}/0", (n,) * length, SamplingParams(), frozenset(), length + 512)
        for n, length in enumerate(prompts)
    ]
    with counting() as counter:
        forward.rebuild(rows)
    return counter.launches


@torch.no_grad()
def decode_launches(model: Any, decode: Decode, graph: CountedGraph | None) -> int:
    """Returns the launches of the fourth decode step of these rows: columns may be added before the
    second."""
    forward, rows = FlatForward(model, max_kv_tokens=1 << 20, graph=graph), decode.rows()
    forward.rebuild(rows)
    tokens_R = torch.zeros(len(rows), dtype=torch.long, device=next(model.parameters()).device)
    positions_R = np.array([len(row.ids) - 1 for row in rows])
    launches = 0
    for step in range(4):
        replays = graph.num_replays if graph else 0
        with counting() as counter:
            forward.decode(tokens_R, positions_R + step)
        launches = counter.launches + (graph.num_replays - replays if graph else 0)
    return launches


def planned_pairs(forest: Forest) -> float:
    """Returns the pairs of query and key that the calls of a `VarlenPlan` compute."""
    plan = VarlenPlan.of(forest, torch.device("cpu"))
    pairs = 0.0
    for call in (plan.segment_call, *(level.call for level in plan.levels)):
        queries, keys = (t.diff().double() for t in (call.cu_queries, call.cu_keys))
        pairs += float((queries * ((keys + 1) / 2 if call.causal else keys)).sum())
    return pairs


def needed_pairs(forest: Forest) -> float:
    """Returns the pairs of a token and an ancestor, itself included, that there are."""
    return float((forest.positions_N + 1).sum())


def account(batch: Batch, decoder: Decoder) -> Iterator[tuple[str, LaunchCounter, float, float]]:
    """Yields a plan's name, its counts, its pairs over those that are needed, and over those of
    rows that are sequences of their own."""
    rows = batch.rows()
    forest = trie_of_rows(rows)
    apart = sum(len(row) * (len(row) + 1) / 2 for row in rows)
    pairs = planned_pairs(forest)
    counts = count(decoder, forest, VarlenPlan.of(forest, META))
    yield "flash, level by level", counts, pairs / needed_pairs(forest), pairs / apart
    counts = count(decoder, forest, PiecePlan.of(forest, META))
    yield "products, piece by piece", counts, pairs / needed_pairs(forest), pairs / apart


def main() -> None:
    """Prints a table of the three batches, one of prefill, and one of decode steps."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    model = model_of("7B")
    decoder = Decoder(model)
    table = Table("rows", "attention", "launches", "GB", "pairs / needed", "pairs / rows apart")
    for batch in BATCHES:
        for name, counts, needed, apart in account(batch, decoder):
            gigabytes = f"{counts.bytes / 1e9:,.0f}"
            figures = (f"{counts.launches:,}", gigabytes, f"{needed:.2f}", f"{apart:.2f}")
            table.add_row(batch.name, name, *figures)
    Console().print(table)
    table = Table("prompts", "model", "launches of prefill in chunks", "as one flat list")
    for shape in SHAPES:
        of_shape = model_of(shape)
        launches = (prefill_launches(of_shape, PROMPTS, packed=packed) for packed in (False, True))
        table.add_row("64 x 512", shape, *(f"{number:,}" for number in launches))
    Console().print(table)
    table = Table("rows", "launches of a decode step", "replayed")
    for decode in DECODES:
        launches = (decode_launches(model, decode, graph) for graph in (None, CountedGraph()))
        table.add_row(decode.name, *(f"{number:,}" for number in launches))
    Console().print(table)


if __name__ == "__main__":
    main()
