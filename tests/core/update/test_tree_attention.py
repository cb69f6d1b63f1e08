import numpy as np
import pytest
import torch

from ajet.core.model.attention.trie import forest_of_rows, trie_of_rows
from ajet.core.model.attention.varlen_attention import FlashKernel, VarlenPlan
from ajet.core.model.attention.window_attention import WindowPlan
from ajet.core.model.kernels.functions import attention_kernels_for, kernels
from ajet.core.update.layouts.piece_plan import (
    PiecePlan,
    piece_backward,
    piece_forward,
    product_backward,
    product_forward,
)
from ajet.core.update.layouts.tree_attention import KernelPlan, tree_attention
from tests.core.model.product_kernel import ProductKernel


def random_forest(seed):
    rng = np.random.default_rng(seed)
    return trie_of_rows([rng.integers(0, 3, rng.integers(2, 12)) for _ in range(14)])


def masked_attention(q, k, v, forest, window=1000, sinks=None):
    """The definition: softmax over ancestors, and over the sinks, from a square mask."""
    mask = torch.full((len(forest), len(forest)), float("-inf"), dtype=q.dtype)
    for nodes in forest.row_nodes:
        for depth, node in enumerate(nodes):
            mask[node, nodes[max(0, depth + 1 - window) : depth + 1]] = 0
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[-1] ** -0.5 + mask
    if sinks is not None:
        column = sinks[:, None, None].expand(-1, len(forest), 1)
        scores = torch.cat((scores, column), dim=-1)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1)[..., : len(forest)], v)


def test_padded_cells_never_leak_however_large_the_scores():
    # Segments of 1, 5 and 4 tokens: the last two share a call, with one padded cell. It copies the
    # query of token 6, which scores -400 with all it sees (0 and 6) and +400 with 7 to 9.
    forest = trie_of_rows([np.array([0, 1, 1, 1, 1, 1]), np.array([0, 2, 2, 2, 2])])
    q = torch.full((len(forest), 2, 4), 20.0)
    k = torch.full((len(forest), 2, 4), 10.0)
    k[[0, 6]] = -10.0
    q, k, v = (t.requires_grad_() for t in (q, k, torch.randn(len(forest), 2, 4)))
    plan = PiecePlan.of(forest, torch.device("cpu"))
    assert [tuple(call.tokens_BL.shape) for call in plan.segment_calls] == [(1, 1), (2, 5)]
    for found, expected in zip(
        torch.autograd.grad(tree_attention(q, k, v, plan).sum(), (q, k, v)),
        torch.autograd.grad(masked_attention(q, k, v, forest).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def merged_pieces(forest, q, k):
    return PiecePlan.of(forest, q.device)


def one_call_of_the_kernels(forest, q, k):
    if kernels() is None:
        pytest.skip("no C compiler is installed")
    compiled = attention_kernels_for(q)
    assert compiled is not None
    return KernelPlan.of(compiled, forest, q.shape[1] // k.shape[1])


def calls_of_several_lengths(forest, q, k):
    plan = VarlenPlan.of(forest, q.device, ProductKernel())
    assert len(plan.levels) > 2
    return plan


@pytest.mark.parametrize("with_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("plan_of", "dim", "dtype", "rtol", "atol"),
    [
        (merged_pieces, 8, torch.float32, 1e-5, 2e-6),
        (one_call_of_the_kernels, 64, torch.float32, 1e-5, 1e-5),
        (calls_of_several_lengths, 8, torch.float64, 1e-12, 1e-13),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_plan_equals_attention_under_a_square_tree_mask(
    plan_of, dim, dtype, rtol, atol, seed, with_sinks
):
    forest = random_forest(seed)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(len(forest), heads, dim, generator=generator, dtype=dtype).requires_grad_()
        for heads in (4, 2, 2)
    )
    plan = plan_of(forest, q, k)
    sinks = torch.randn(4, generator=generator, dtype=dtype).requires_grad_()
    given = (q, k, v, sinks) if with_sinks else (q, k, v)
    probe = torch.randn(len(forest), 4, dim, generator=generator, dtype=dtype)
    results = []
    for out in (
        tree_attention(q, k, v, plan, *given[3:]),
        masked_attention(q, k, v, forest, 1000, *given[3:]),
    ):
        results.append((out, *torch.autograd.grad((out * probe).sum(), given)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("with_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("block", [2, 256])
@pytest.mark.parametrize("window", [1, 3, 8, 99])
def test_a_window_hides_all_but_the_last_tokens_of_a_path(window, block, with_sinks, monkeypatch):
    monkeypatch.setattr("ajet.core.model.attention.window_attention.MAX_BLOCK", block)
    forest = random_forest(window)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(len(forest), heads, 8, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2)
    )
    sinks = torch.randn(4, generator=generator, dtype=torch.float64)
    given = [t.requires_grad_() for t in ((q, k, v, sinks) if with_sinks else (q, k, v))]
    probe = torch.randn(len(forest), 4, 8, generator=generator, dtype=torch.float64)
    plan = WindowPlan.of(forest, window, torch.device("cpu"))
    results = []
    for out in (
        plan.attend(q, k, v, sinks if with_sinks else None),
        masked_attention(q, k, v, forest, window, *given[3:]),
    ):
        results.append((out, *torch.autograd.grad((out * probe).sum(), given)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_a_block_has_the_keys_that_its_window_reaches_across_segments():
    # 0 1 2 3 | 4 5      a window of 3: token 4 sees 2, 3 and itself, and 6 does as well
    #         | 6
    rows = [np.array([0, 1, 2, 3, 4, 5]), np.array([0, 1, 2, 3, 6])]
    plan = WindowPlan.of(trie_of_rows(rows), 3, torch.device("cpu"))
    assert plan.queries_BQ.tolist() == [[0, 1, 2], [3, 0, 0], [4, 5, 0], [6, 0, 0]]
    assert plan.keys_BK.tolist() == [[0, 1, 2, 0], [1, 2, 3, 0], [2, 3, 4, 5], [2, 3, 6, 0]]
    assert plan.sees_BQK[2, :2].int().tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert plan.sees_BQK[3, 0].int().tolist() == [1, 1, 1, 0]
    assert plan.place_M.tolist() == [0, 1, 2, 3, 6, 7, 9]
    assert plan.tokens_M.tolist() == list(range(7))


def test_the_tokens_of_an_image_see_all_of_it():
    # 0 1 2 3 | 4 5      1 and 2 are an image, and so are 6 and 7
    #         | 6 7
    rows = [np.array([0, 1, 2, 3, 4, 5]), np.array([0, 1, 2, 3, 6, 7])]
    forest, cpu = trie_of_rows(rows), torch.device("cpu")
    plan = WindowPlan.for_images(forest, [(1, 3), (6, 8)], None, cpu)
    assert plan.tokens_M.tolist() == [1, 2, 6, 7]
    assert plan.keys_BK.tolist() == [[0, 1, 2, 0, 0, 0], [0, 1, 2, 3, 6, 7]]
    assert plan.sees_BQK.int().tolist() == [[[1, 1, 1, 0, 0, 0]] * 2, [[1, 1, 1, 1, 1, 1]] * 2]
    # A window of 3: token 6 sees 2, 3, itself and the later 7; token 7 sees 3, 6 and itself.
    plan = WindowPlan.for_images(forest, [(6, 8)], 3, cpu)
    assert plan.keys_BK.tolist() == [[2, 3, 6, 7]]
    assert plan.sees_BQK.int().tolist() == [[[1, 1, 1, 1], [0, 1, 1, 1]]]


def test_two_groups_with_a_system_prompt_take_one_call_for_each_level():
    # 0 0 | 1 1 | 2 3      The system prompt 0 0 has two groups below it: 1 1 with the replies 2 3
    #     |     | 4        and 4, and 5 with the replies 6 and 7 8 9.
    #     | 5   | 6
    #           | 7 8 9
    rows = [[0, 0, 1, 1, 2, 3], [0, 0, 1, 1, 4], [0, 0, 5, 6], [0, 0, 5, 7, 8, 9]]
    plan = VarlenPlan.of(trie_of_rows([np.array(row) for row in rows]), torch.device("cpu"))
    call = plan.segment_call
    assert call.cu_queries.tolist() == call.cu_keys.tolist() == [0, 2, 4, 6, 7, 8, 9, 12]
    assert (call.max_queries, call.causal) == (3, True)
    system, groups = plan.levels
    assert system.queries_Q.tolist() == list(range(2, 12)) and system.keys_P.tolist() == [0, 1]
    assert groups.queries_Q.tolist() == [4, 5, 6, 8, 9, 10, 11]
    assert groups.keys_P.tolist() == [2, 3, 7]
    assert groups.call.cu_queries.tolist() == [0, 3, 7] and groups.call.max_queries == 4
    assert groups.call.cu_keys.tolist() == [0, 2, 3] and groups.call.max_keys == 2
    assert not groups.call.causal


def test_rows_that_share_nothing_take_one_call():
    rows = [np.array([1, 2, 3]), np.array([1, 2])]
    plan = VarlenPlan.of(forest_of_rows(rows), torch.device("cpu"))
    assert plan.levels == () and plan.segment_call.cu_queries.tolist() == [0, 3, 5]


def test_cudas_kernel_takes_a_call_and_gives_the_shapes_that_are_merged():
    forest = trie_of_rows([np.array([0, 1, 1]), np.array([0, 2])])
    plan = VarlenPlan.of(forest, torch.device("meta"), FlashKernel())
    make = lambda heads: torch.empty(  # noqa: E731
        len(forest), heads, 8, dtype=torch.bfloat16, device="meta"
    )
    q, k, v = make(4), make(2), make(2)
    out, lse = plan.forward(q, k, v)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert (tuple(lse.shape), lse.dtype) == ((4, len(forest)), torch.float32)
    found = plan.backward(torch.empty_like(out), q, k, v, out, lse)
    assert [t.shape for t in found] == [q.shape, k.shape, v.shape]


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
