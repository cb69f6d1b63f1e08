"""Prefill on a CUDA GPU: all new tokens of all rows go through the model as one flat list. Without
a kernel for it (CPUs, bfloat16 before compute capability 8.0), flat_forward.py computes in chunks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ajet.core.model.attention.trie import trie_of_rows
from ajet.core.model.attention.varlen_attention import NewTokens, VarlenKernel, VarlenPlan
from ajet.engines.kv_cache import KVPool
from ajet.engines.prefix_cache import Ids, PrefixNode

PASS_BYTES = 1 << 30
"""The approximate memory of a pass in the widest layer, large enough to hide the launches."""
MAX_PASS_TOKENS = 1 << 16
"""The largest number of tokens of a pass, however narrow the layers are."""


@dataclass(frozen=True)
class PrefillRow:
    """A row up to where a pass computes it. Its first `num_known` tokens are computed in an earlier
    pass or for another row of this one."""

    tokens: Ids
    slots: Ids
    num_known: int


def pass_tokens(hidden_size: int, intermediate_size: int, itemsize: int) -> int:
    """Returns the largest number of tokens of a pass: the power of two whose gated MLP takes about
    `PASS_BYTES`."""
    # Input, norm and output, [hidden] each, and gate, up and their product, [intermediate] each.
    token_bytes = 3 * (hidden_size + intermediate_size) * itemsize
    return min(MAX_PASS_TOKENS, 1 << round(math.log2(PASS_BYTES / token_bytes)))


def prefill_passes(
    paths: Sequence[Sequence[PrefixNode]], max_tokens: int
) -> Iterator[list[PrefillRow]]:
    """Yields the rows of each pass, which computes at most `max_tokens` tokens. Every missing token
    is new in exactly one row of one pass. Only a row with more than `max_tokens` of them is cut."""
    seen: set[PrefixNode] = set()
    rows: list[PrefillRow] = []
    budget = max_tokens  # the tokens that the present pass can still compute
    for path in paths:
        tokens = np.concatenate([node.tokens for node in path] or [np.empty(0, np.int64)])
        slots = np.concatenate([node.slots for node in path] or [np.empty(0, np.int64)])
        num_known = sum(len(node.tokens) for node in path if node.computed or node in seen)
        seen.update(path)
        # A row that fits into a pass as a whole starts a new one rather than being cut.
        if rows and budget < len(tokens) - num_known <= max_tokens:
            yield rows
            rows, budget = [], max_tokens
        while num_known < len(tokens):
            end = min(len(tokens), num_known + budget)
            rows.append(PrefillRow(tokens[:end], slots[:end], num_known))
            budget -= end - num_known
            num_known = end
            if not budget:
                yield rows
                rows, budget = [], max_tokens
    if rows:
        yield rows


class PackedPrefill:
    """The new tokens of one pass and their attention; the Decoder calls `attend` for each layer.

        rows    s q a b       cached: s      pass    q a b c d      positions 1 2 3 2 3
                s q c d                      own     q | a b | c d  each causally, in one call
                                             level 0 to the key of s: q a b c d
                                             level 1 to the key of q: a b c d

    A layer launches its products, one attention kernel, and one more for each level of ancestors,
    whose results are merged by log-sum-exp: the trainer's code (core/model/attention), with keys of
    ancestors in the pool. Launches do not grow with the number of rows. A token may be computed in
    the same pass as the tokens that it attends to."""

    def __init__(self, pool: KVPool, rows: Sequence[PrefillRow], kernel: VarlenKernel) -> None:
        is_new = np.zeros(pool.k.shape[2], bool)  # by slot
        for row in rows:
            is_new[row.slots[row.num_known :]] = True
        # The known beginning of a row is added as another row: the trie then splits there, and each
        # segment is either entirely new or entirely known.
        num_old = [int(is_new[row.slots].argmax()) for row in rows]
        before = [row.tokens[:num] for row, num in zip(rows, num_old, strict=True) if num]
        forest = trie_of_rows([*(row.tokens for row in rows), *before])
        # The slot of each token of the trie (N); rows that share a token agree on its slot.
        slots_N = np.empty(len(forest), np.int64)
        for row, nodes in zip(rows, forest.row_nodes, strict=False):
            slots_N[nodes] = row.slots
        is_new_N = is_new[slots_N]
        new = NewTokens(is_new_N, slots_N)
        self._pool = pool
        self._plan = VarlenPlan.of(forest, pool.k.device, kernel, new)
        self.slots_N: Ids = slots_N[is_new_N]
        self._slots_N = pool.tensor(self.slots_N)
        self.tokens_N = pool.tensor(forest.token_ids_N[is_new_N])
        self.positions_N = pool.tensor(forest.positions_N[is_new_N])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes the keys and values of the new tokens to the pool, and returns the attention of
        one layer for ``q [N, heads, d]``."""
        self._pool.write(layer, self._slots_N, k, v)
        pool_k, pool_v = (t[layer].transpose(0, 1) for t in (self._pool.k, self._pool.v))
        return self._plan.forward(q, k, v, (pool_k, pool_v))[0]
