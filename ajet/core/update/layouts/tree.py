"""The flat layouts: packed, rows one after another, and the tree, where each distinct prefix of a
micro-batch goes through the linear layers once: positions are depths, a token sees its ancestors,
and autograd adds up the gradients of all descendants in a shared token.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.images.image_ids import image_spans
from ajet.core.model.attention.trie import (
    Forest,
    common_length_of_ids,
    forest_of_rows,
    lexicographic,
    trie_of_rows,
)
from ajet.core.model.attention.window_attention import Spans, WindowPlan
from ajet.core.model.decoder import Attend, Decoder, is_sharded, unwrapped
from ajet.core.model.flat_decoder import flat_decoder
from ajet.core.model.routers import RouterLoad, Routers
from ajet.core.model.routes import Routes
from ajet.core.model.vision import vision_of
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.update.layouts.layout import ForwardOutput, Row, begin_routes, token_routes
from ajet.core.update.layouts.tree_attention import AttentionPlan, attention_plan, tree_attention
from ajet.core.update.settings import Recomputation, is_kept, kept_values


class FlatLayout:
    """Arranges rows as a flat list of tokens; subclasses say which tokens these are."""

    name: str

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        sequence: SequenceGroup | None,
        recompute: Recomputation = False,
    ) -> None:
        self.decoder = flat_decoder(model, recompute is not False)
        self._recompute: Recomputation = recompute
        if sequence is not None:
            if self.decoder.longest_plain < math.inf:
                raise ConfigError(
                    f"ulysses_sequence_parallel_size={sequence.size}: layers of the model have "
                    "sliding windows, attention sinks, or a state along a sequence, which is not "
                    "divided; use 1",
                    code=Code.PARALLEL_SIZE,
                )
            sequence.check_heads(self.decoder.num_heads, self.decoder.num_kv_heads)
        self.model = model
        self.device = device
        self.sequence = sequence
        self._vision = vision_of(model)
        self.routers: Routers | None = None
        self.load: RouterLoad | None = None

    def forest(self, rows: Sequence[Row]) -> Forest:
        raise NotImplementedError

    def _with_shared(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
        """Yields rows in the order of the forest, each with the number of tokens that it shares
        with rows before it; subclasses implement it."""
        raise NotImplementedError

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        batches: list[list[Row]] = []
        used = 0
        for row, shared in self._with_shared(rows):
            if not batches or used + len(row) - shared > budget:
                batches.append([])
                used, shared = 0, 0  # the first row of a micro-batch shares nothing
            batches[-1].append(row)
            used += len(row) - shared
        return batches

    def num_computed(self, rows: Sequence[Row]) -> int:
        return sum(len(row) - shared for row, shared in self._with_shared(rows))

    def local_rows(self, rows: Sequence[Row]) -> list[Row]:
        if self.sequence is None:
            return list(rows)
        # Each of the ranks that share a sequence has a part of the flat list, and computes the loss
        # of the trained tokens whose logits are there.
        forest = self.forest(rows)
        part = self.sequence.local_slice(len(forest))
        pairs = zip(rows, forest.row_nodes, strict=True)
        return [_row_within(row, nodes[row.positions], part) for row, nodes in pairs]

    def forward(self, rows: Sequence[Row]) -> ForwardOutput:
        forest = self.forest(rows)
        routes = None
        if self.routers is not None:
            routes = token_routes(self.routers, rows, forest.row_nodes, len(forest))
        hidden_ND, first = self._hidden(forest, routes)
        # From positions in a row to flat tokens (nodes) of the forest. The logits of a node are
        # computed once, though several rows may read it: U distinct nodes, M trained tokens.
        read_nodes = [
            nodes[row.positions] for nodes, row in zip(forest.row_nodes, rows, strict=True)
        ]
        nodes_U, index_M = np.unique(np.concatenate(read_nodes), return_inverse=True)
        model: Any = self.model
        features_UD = hidden_ND.index_select(0, torch.from_numpy(nodes_U - first).to(self.device))
        return ForwardOutput(
            features_UD=features_UD,
            head=self.decoder.logits,
            vocab_size=model.config.vocab_size,
            index_M=torch.from_numpy(index_M).to(self.device),
            head_weight=self.decoder.head_weight(),
        )

    def forward_hidden(self, rows: Sequence[Row]) -> Tensor:
        output = self.forward(rows)  # its features are the hidden states
        return output.features_UD[output.index_M]

    def _hidden(self, forest: Forest, routes_NLk: Routes | None) -> tuple[Tensor, int]:
        """Returns the hidden states of this rank's tokens, and the flat index of the first one."""
        both_ways = self._vision is not None and self._vision.sees_both_ways
        images = image_spans(forest.token_ids_N) if both_ways else ()
        attend: Attend = ForestAttention(forest, images)
        ids_N, positions_N, first = forest.token_ids_N, self._positions(forest), 0
        if self.sequence is not None:
            attend = self.sequence.attend(attend, len(forest))
            ids_N, positions_N = (
                self.sequence.local_part(ids_N),
                self.sequence.local_part(positions_N),
            )
            first = self.sequence.local_slice(len(forest)).start
            if routes_NLk is not None:
                routes_NLk = self.sequence.local_part(routes_NLk)
        ids, positions = (torch.from_numpy(t).to(self.device) for t in (ids_N, positions_N.T))
        if isinstance(self.decoder, Decoder):
            self.decoder.recompute = torch.is_grad_enabled() and self._recomputes(len(ids))
        if self.routers is None:
            return self.decoder(ids, positions, attend, forest), first
        begin_routes(self.routers, routes_NLk, self.device, self.load)
        hidden_ND = self.decoder(ids, positions, attend, forest)
        self.routers.end()
        return hidden_ND, first

    def _positions(self, forest: Forest) -> NDArray[np.int64]:
        """Returns the position of each flat token, ``[N]`` or ``[N, 3]``."""
        if self._vision is None or not self._vision.has_axes:
            return forest.positions_N
        # Rows that share a token share all before it, so they agree on its position.
        positions_N3 = np.empty((len(forest), 3), np.int64)
        for nodes in forest.row_nodes:
            positions_N3[nodes] = self._vision.positions(forest.token_ids_N[nodes]).T
        return positions_N3

    def _recomputes(self, num_tokens: int) -> bool:
        """Tells whether a pass over `num_tokens` keeps only the inputs of layers."""
        model: Any = self.model
        if self._recompute != "auto":
            return self._recompute
        # Adapters, shards and ranks that share a sequence keep more than `kept_values` counts.
        if unwrapped(model) is not model or is_sharded(model) or self.sequence is not None:
            return True
        decoder, config = self.decoder, model.config
        widths = (decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim)
        values = kept_values(config.hidden_size, *widths, config.intermediate_size)
        num_bytes = num_tokens * decoder.num_layers * values * next(model.parameters()).itemsize
        return not is_kept(num_bytes, free_bytes(self.device))


class ForestAttention:
    """The attention of a micro-batch's flat tokens. The tokens of `images` also see those of their
    image that come later."""

    def __init__(self, forest: Forest, images: Spans = ()) -> None:
        self._forest, self._images = forest, images
        self._deepest = int(forest.positions_N.max())
        # Made at the first layer that needs them; layers may differ in heads and windows.
        self._plans: dict[tuple[int, ...], AttentionPlan] = {}
        self._windows: dict[int, WindowPlan] = {}
        self._image_plans: dict[int | None, WindowPlan] = {}

    def __call__(
        self,
        layer: int,
        q_NHd: Tensor,
        k_NKd: Tensor,
        v_NKd: Tensor,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = self._forwards(q_NHd, k_NKd, v_NKd, window, sinks)
        if not self._images:
            return out
        if window not in self._image_plans:
            self._image_plans[window] = WindowPlan.for_images(
                self._forest, self._images, window, q_NHd.device
            )
        # An image is a few tokens, so they are computed twice and kernels stay causal.
        plan = self._image_plans[window]
        return out.index_copy(0, plan.tokens_M, plan.attend(q_NHd, k_NKd, v_NKd, sinks))

    def _forwards(
        self,
        q_NHd: Tensor,
        k_NKd: Tensor,
        v_NKd: Tensor,
        window: int | None,
        sinks: Tensor | None,
    ) -> Tensor:
        # A window hides nothing from paths that are not longer than it.
        if window is not None and window <= self._deepest:
            if window not in self._windows:
                self._windows[window] = WindowPlan.of(self._forest, window, q_NHd.device)
            return self._windows[window].attend(q_NHd, k_NKd, v_NKd, sinks)
        shapes = (*q_NHd.shape[1:], k_NKd.shape[1])
        if shapes not in self._plans:
            self._plans[shapes] = attention_plan(self._forest, q_NHd, k_NKd)
        return tree_attention(q_NHd, k_NKd, v_NKd, self._plans[shapes], sinks)


class TreeLayout(FlatLayout):
    name = "tree"

    def forest(self, rows: Sequence[Row]) -> Forest:
        forest = trie_of_rows(self._keys(rows))
        if self._shares_experts(rows):
            return forest
        ids_N = np.empty_like(forest.token_ids_N)  # these are numbers of keys
        for row, nodes in zip(rows, forest.row_nodes, strict=True):
            ids_N[nodes] = row.input_ids
        return replace(forest, token_ids_N=ids_N)

    def _keys(self, rows: Sequence[Row]) -> list[NDArray[np.int64]]:
        """Returns what rows must have in common to share a token: its id and, where experts are
        replayed, those with which the engine computed it. Each such pair has a number."""
        ids = [row.input_ids for row in rows]
        if self._shares_experts(rows):
            return ids
        assert self.routers is not None
        nodes = np.split(np.arange(sum(map(len, ids))), np.cumsum([len(each) for each in ids])[:-1])
        routes = token_routes(self.routers, rows, nodes, sum(map(len, ids)))
        assert routes is not None
        pairs = np.column_stack((np.concatenate(ids), routes.reshape(len(routes), -1)))
        # Numbers, not hashes: two pairs must never be taken for the same token.
        numbers = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        return [numbers[at] for at in nodes]

    def _shares_experts(self, rows: Sequence[Row]) -> bool:
        """Returns whether equal prefixes have equal experts: the model chooses them."""
        return self.routers is None or all(row.routes is None for row in rows)

    def _with_shared(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
        # In token order, where the longest prefix shared with any earlier row is the one shared
        # with the row before.
        keys = self._keys(rows)
        previous: int | None = None
        for i in lexicographic(keys):
            yield rows[i], 0 if previous is None else common_length_of_ids(keys[previous], keys[i])
            previous = i


class PackedLayout(FlatLayout):
    name = "packed"

    def forest(self, rows: Sequence[Row]) -> Forest:
        return forest_of_rows([row.input_ids for row in rows])

    def _with_shared(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
        return ((row, 0) for row in rows)


def _row_within(row: Row, nodes_M: NDArray[np.int64], part: slice) -> Row:
    """Returns the row with only the trained tokens that are read at flat tokens of `part`."""
    is_within_M = (nodes_M >= part.start) & (nodes_M < part.stop)
    return replace(row, positions=row.positions[is_within_M], targets=row.targets[is_within_M])


def free_bytes(device: torch.device) -> int:
    """Returns a GPU's free memory, with what torch has reserved there and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
