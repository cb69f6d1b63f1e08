"""The tree layout: the micro-batch as a token trie, each distinct prefix computed once (promise 4).

    s s s q q a a a        the group's prompt, and the system prompt of all groups, go through the
            ├ b b          linear layers once; positions are depths; a token sees its ancestors only
            └ c c c

Autograd adds up the gradients of all descendants in a shared token. Logits are computed only for
tokens whose successor is trained, and only once where several rows read the same token.

Where several ranks share a sequence, each has a part of the flat list: it computes the linear
layers of these tokens, and the loss of the trained tokens whose logits are there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.common_prefix import common_length_of_ids
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.model.attention.trie import Forest, lexicographic, trie_of_rows
from ajet.core.model.attention.window_attention import WindowPlan
from ajet.core.model.decoder import Attend, Decoder, is_sharded, unwrapped
from ajet.core.model.flat_decoder import flat_decoder
from ajet.core.update.activations import is_kept, kept_values
from ajet.core.update.layouts.layout import ForwardOutput, Row
from ajet.core.update.layouts.tree_attention import AttentionPlan, attention_plan, tree_attention
from ajet.core.update.sequence import SequenceGroup
from ajet.core.update.settings import Recomputation


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

    def forest(self, rows: Sequence[Row]) -> Forest:
        """Returns the flat tokens of the rows; subclasses implement it."""
        raise NotImplementedError

    def local_rows(self, rows: Sequence[Row]) -> list[Row]:
        if self.sequence is None:
            return list(rows)
        forest = self.forest(rows)
        part = self.sequence.local_slice(len(forest))
        pairs = zip(rows, forest.row_nodes, strict=True)
        return [_row_within(row, nodes[row.positions], part) for row, nodes in pairs]

    def forward(self, rows: Sequence[Row]) -> ForwardOutput:
        """Computes the forward pass over a forest, and selects the hidden states that its rows
        read.
        """
        forest = self.forest(rows)
        hidden_ND, first = self._hidden(forest)
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

    def _hidden(self, forest: Forest) -> tuple[Tensor, int]:
        """Returns the hidden states of this rank's tokens, and the flat index of the first of
        them.
        """
        deepest = int(forest.positions_N.max())

        plans: dict[tuple[int, ...], AttentionPlan] = {}  # layers may differ in their heads
        windows: dict[int, WindowPlan] = {}

        def whole(
            layer: int,
            q_NHd: Tensor,
            k_NKd: Tensor,
            v_NKd: Tensor,
            window: int | None = None,
            sinks: Tensor | None = None,
        ) -> Tensor:
            if window is not None and window <= deepest:
                if window not in windows:
                    windows[window] = WindowPlan.of(forest, window, q_NHd.device)
                return windows[window].attend(q_NHd, k_NKd, v_NKd, sinks)
            shapes = (*q_NHd.shape[1:], k_NKd.shape[1])
            if shapes not in plans:
                plans[shapes] = attention_plan(forest, q_NHd, k_NKd)
            return tree_attention(q_NHd, k_NKd, v_NKd, plans[shapes], sinks)

        attend: Attend = whole
        ids_N, positions_N, first = forest.token_ids_N, forest.positions_N, 0
        if self.sequence is not None:
            attend = self.sequence.attend(whole, len(forest))
            ids_N, positions_N = (
                self.sequence.local_part(ids_N),
                self.sequence.local_part(positions_N),
            )
            first = self.sequence.local_slice(len(forest)).start
        ids, positions = (torch.from_numpy(t).to(self.device) for t in (ids_N, positions_N))
        if isinstance(self.decoder, Decoder):
            self.decoder.recompute = torch.is_grad_enabled() and self._recomputes(len(ids))
        return self.decoder(ids, positions, attend, forest), first

    def _recomputes(self, num_tokens: int) -> bool:
        """Tells whether a pass over so many tokens keeps the inputs of layers alone. Adapters,
        shards and ranks that share a sequence keep more than is counted, so theirs always does."""
        model: Any = self.model
        if self._recompute != "auto":
            return self._recompute
        if unwrapped(model) is not model or is_sharded(model) or self.sequence is not None:
            return True
        decoder, config = self.decoder, model.config
        widths = (decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim)
        values = kept_values(config.hidden_size, *widths, config.intermediate_size)
        num_bytes = num_tokens * decoder.num_layers * values * next(model.parameters()).itemsize
        return not is_kept(num_bytes, free_bytes(self.device))


class TreeLayout(FlatLayout):
    name = "tree"

    def forest(self, rows: Sequence[Row]) -> Forest:
        return trie_of_rows([row.input_ids for row in rows])

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        batches: list[list[Row]] = []
        used = 0
        for row, shared in _with_shared(rows):
            if not batches or used + len(row) - shared > budget:
                batches.append([])
                used, shared = 0, 0
            batches[-1].append(row)
            used += len(row) - shared
        return batches

    def num_computed(self, rows: Sequence[Row]) -> int:
        return sum(len(row) - shared for row, shared in _with_shared(rows))


def _with_shared(rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    """Yields rows in token order, each with the length of the prefix shared with the row before."""
    previous: Row | None = None
    for i in lexicographic([row.input_ids for row in rows]):
        row = rows[i]
        yield row, common_length_of_ids(previous.input_ids, row.input_ids) if previous else 0
        previous = row


def _row_within(row: Row, nodes_M: NDArray[np.int64], part: slice) -> Row:
    """Returns the row with only the trained tokens that are read at flat tokens of `part`."""
    is_own_M = (nodes_M >= part.start) & (nodes_M < part.stop)
    return replace(row, positions=row.positions[is_own_M], targets=row.targets[is_own_M])


def free_bytes(device: torch.device) -> int:
    """Returns what a GPU has left, and what torch has reserved there and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
