"""Layers with a state (linear attention, short convolutions) over a tree of tokens, computed
segment by segment, parents first, each from the final state of its parent; autograd adds up the
gradients of all children in it. A layer is called by its own forward, with an object in place of
transformers' cache that provides the state and receives the new one.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.model.attention.trie import Forest, parents_of

MAX_PADDING = 1.5
"""Segments without children are padded to at most this many times their tokens."""


@dataclass(frozen=True)
class SegmentBatch:
    """Segments that are computed together.

    `index_SL` are their flat tokens, padded on the right with a segment's last token;
    `is_token_SL` is false at padding. `parents_S` are the numbers of their parents among the
    segments with children, in the order in which these are computed; None for roots."""

    index_SL: NDArray[np.int64]
    is_token_SL: NDArray[np.bool_]
    parents_S: NDArray[np.int64] | None
    have_children: bool


class SegmentPlan:
    """Orders the segments of a forest for layers with a state, on one device."""

    def __init__(self, forest: Forest, device: torch.device) -> None:
        self._device = device
        self.batches = _batches(forest)

    @cached_property
    def tensors(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """The arrays of each batch on the device: flat tokens, indices of the flattened batch that
        are not padding, parents."""
        return [
            (
                self._to_device(batch.index_SL),
                self._to_device(np.flatnonzero(batch.is_token_SL)),
                None if batch.parents_S is None else self._to_device(batch.parents_S),
            )
            for batch in self.batches
        ]

    @cached_property
    def place_N(self) -> Tensor:
        """The index of each flat token among the outputs of all batches."""
        computed = np.concatenate([b.index_SL[b.is_token_SL] for b in self.batches])
        return self._to_device(np.argsort(computed))

    def compute(self, layer: Callable[..., Tensor], hidden_ND: Tensor) -> Tensor:
        """Returns the outputs ``[N, D]`` of a layer with a state over hidden states ``[N, D]``."""
        outputs: list[Tensor] = []
        conv: list[Tensor] = []
        recurrent: list[Tensor] = []
        for batch, (index_SL, tokens, parents_S) in zip(self.batches, self.tensors, strict=True):
            states = BranchStates()
            # States of all segments with children so far; `parents_S` are indices among them.
            if parents_S is not None:
                states.conv = torch.cat(conv).index_select(0, parents_S)
                if recurrent:
                    states.recurrent = torch.cat(recurrent).index_select(0, parents_S)
            out_SLD = layer(hidden_ND[index_SL], cache=states, attention_mask=None)
            outputs.append(out_SLD.flatten(0, 1).index_select(0, tokens))
            assert states.conv is not None, "the layer did not use its cache"
            if batch.have_children:
                conv.append(states.conv)
                if states.recurrent is not None:
                    recurrent.append(states.recurrent)
        return torch.cat(outputs).index_select(0, self.place_N)

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


class BranchStates:
    """Replaces transformers' cache: the states at the beginning of the segments, and after the
    layer's call those at their end."""

    def __init__(self) -> None:
        self.conv: Tensor | None = None
        """The inputs of the convolution before the segments, ``[S, channels, kernel - 1]``."""
        self.recurrent: Tensor | None = None

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recurrent

    def is_recording_past(self, layer_idx: int) -> bool:
        # True: a segment of one token is computed as longer ones are, not by the kernel of a decode
        # step, which overwrites the old state.
        return True

    def update_conv_state(self, inputs: Tensor, layer_idx: int, conv_kernel_size: int) -> Tensor:
        """Stores the last inputs of the convolution; returns the inputs before with the new."""
        width = conv_kernel_size - 1
        before = self.conv if self.conv is not None else inputs.new_zeros(*inputs.shape[:2], width)
        whole = torch.cat((before, inputs), dim=-1)
        self.conv = whole[:, :, -width:]
        return whole

    def update_recurrent_state(self, state: Tensor, layer_idx: int) -> None:
        self.recurrent = state


def takes_states(layer: nn.Module) -> bool:
    """Tells whether a layer can be called with `BranchStates`: older releases of transformers named
    the argument differently."""
    return "cache" in inspect.signature(type(layer).forward).parameters


def compute_by_segments(layer: nn.Module) -> None:
    """Makes a layer with a state compute a tree when it is called with a `SegmentPlan` as
    `segments`; other calls do not change."""
    if "forward" not in layer.__dict__:
        layer.forward = partial(_forward, layer.forward)


def _forward(
    own_forward: Callable[..., Tensor],
    hidden_states: Tensor,
    *args: Any,
    segments: SegmentPlan | None = None,
    **kwargs: Any,
) -> Tensor:
    if segments is None:
        return own_forward(hidden_states, *args, **kwargs)
    return segments.compute(own_forward, hidden_states[0]).unsqueeze(0)


def _batches(forest: Forest) -> list[SegmentBatch]:
    """Returns the segments in batches, one depth after another: parents before children."""
    parent_of, depths = parents_of(forest.segments), list[int]()
    levels: dict[int, list[int]] = defaultdict(list)
    for number, parent in enumerate(parent_of):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        levels[depths[number]].append(number)
    lengths = [segment.stop - segment.start for segment in forest.segments]
    is_inner = [segment.end > segment.stop for segment in forest.segments]
    place: dict[int, int] = {}
    batches: list[SegmentBatch] = []
    for depth in sorted(levels):
        # The final state of a segment with children must be exact, so it is computed only with
        # segments of its length. The final state of a leaf is not used: leaves may be padded.
        inner: dict[int, list[int]] = defaultdict(list)
        for number in levels[depth]:
            if is_inner[number]:
                inner[lengths[number]].append(number)
        leaves = [number for number in levels[depth] if not is_inner[number]]
        groups = [(numbers, True) for numbers in inner.values()]
        groups += [(numbers, False) for numbers in _by_similar_length(leaves, lengths)]
        for numbers, have_children in groups:
            longest = max(lengths[number] for number in numbers)
            starts = np.array([forest.segments[number].start for number in numbers])
            lengths_S = np.array([lengths[number] for number in numbers])
            columns = np.arange(longest)
            parents = None if depth == 0 else np.array([place[parent_of[n]] for n in numbers])
            batches.append(
                SegmentBatch(
                    starts[:, None] + np.minimum(columns, lengths_S[:, None] - 1),
                    columns < lengths_S[:, None],
                    parents,
                    have_children,
                )
            )
            if have_children:
                place |= {number: len(place) + n for n, number in enumerate(numbers)}
    return batches


def _by_similar_length(numbers: list[int], lengths: list[int]) -> list[list[int]]:
    """Groups segments, longest first, so that their padding stays within `MAX_PADDING`."""
    groups: list[list[int]] = []
    num_tokens = 0
    for number in sorted(numbers, key=lambda number: -lengths[number]):
        if groups:
            longest, count = lengths[groups[-1][0]], len(groups[-1]) + 1
            if longest * count <= MAX_PADDING * (num_tokens + lengths[number]):
                groups[-1].append(number)
                num_tokens += lengths[number]
                continue
        groups.append([number])
        num_tokens = lengths[number]
    return groups
