import numpy as np
import pytest
import torch

from ajet.core.update.layouts.attention_piece import (
    piece_backward,
    piece_forward,
    product_backward,
    product_forward,
)
from ajet.core.update.layouts.tree_attention import AttentionPlan, tree_attention
from ajet.core.update.layouts.trie import trie_of_rows


def random_forest(seed):
    rng = np.random.default_rng(seed)
    return trie_of_rows([rng.integers(0, 3, rng.integers(2, 12)) for _ in range(14)])


def masked_attention(q, k, v, forest):
    """The definition: softmax over ancestors, from a square mask."""
    mask = torch.full((len(forest), len(forest)), float("-inf"))
    for nodes in forest.row_nodes:
        for depth, node in enumerate(nodes):
            mask[node, nodes[: depth + 1]] = 0
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[-1] ** -0.5 + mask
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_merged_equal_attention_under_a_square_tree_mask(seed):
    forest = random_forest(seed)
    generator = torch.Generator().manual_seed(seed)
    make = lambda heads: torch.randn(  # noqa: E731
        len(forest), heads, 8, generator=generator
    ).requires_grad_()
    q, k, v = make(4), make(2), make(2)
    plan = AttentionPlan.of(forest, torch.device("cpu"))
    probe = torch.randn(len(forest), 4, 8, generator=generator)
    results = []
    for out in (tree_attention(q, k, v, plan), masked_attention(q, k, v, forest)):
        results.append((out, *torch.autograd.grad((out * probe).sum(), (q, k, v))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_padded_cells_never_leak_however_large_the_scores():
    # Segments of 1, 5 and 4 tokens: the last two share a call, with one padded cell. It copies the
    # query of token 6, which scores -400 with all it sees (0 and 6) and +400 with 7 to 9.
    forest = trie_of_rows([np.array([0, 1, 1, 1, 1, 1]), np.array([0, 2, 2, 2, 2])])
    q = torch.full((len(forest), 2, 4), 20.0)
    k = torch.full((len(forest), 2, 4), 10.0)
    k[[0, 6]] = -10.0
    q, k, v = (t.requires_grad_() for t in (q, k, torch.randn(len(forest), 2, 4)))
    plan = AttentionPlan.of(forest, torch.device("cpu"))
    assert [tuple(call.tokens_BL.shape) for call in plan.segment_calls] == [(1, 1), (2, 5)]
    for found, expected in zip(
        torch.autograd.grad(tree_attention(q, k, v, plan).sum(), (q, k, v)),
        torch.autograd.grad(masked_attention(q, k, v, forest).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_plain_products_equal_the_cpu_kernel(causal):
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(2, 3, 9, 8, generator=generator) for _ in range(4))
    out, lse = piece_forward(q, k, v, causal)
    found_out, found_lse = product_forward(q, k, v, causal, max_scores=120)  # slices of 2 queries
    torch.testing.assert_close(found_out, out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found_lse, lse, rtol=1e-5, atol=1e-6)
    expected = piece_backward(grad, q, k, v, out, lse, causal)
    found = product_backward(grad, q, k, v, out, lse, causal, max_scores=120)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)
