"""EfficientKernel's layouts: repeated heads, and log-sum-exps in a padded rectangle."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from product_kernel import ProductKernel

from ajet.core.model.attention import varlen_attention
from ajet.core.model.attention.varlen_attention import (
    EfficientKernel,
    VarlenCall,
    varlen_kernel_for,
)


class PaddedOps:
    """Computes torch's two operators, whose log-sum-exps are ``[sequences, heads, padded]``."""

    def forward(self, q, k, v, bias, cu_queries, cu_keys, max_queries, max_keys, *rest):
        dropout, mask, with_lse = rest
        assert (bias, dropout, with_lse) == (None, 0.0, True)
        assert q.shape[2] == k.shape[2] == v.shape[2]
        call = VarlenCall((), cu_queries, cu_keys, max_queries, max_keys, mask == 1)
        out, flat = ProductKernel().forward(q[0], k[0], v[0], call)
        width = -(-max_queries // 32) * 32
        padded = torch.full((len(cu_queries) - 1, q.shape[2], width), torch.nan)
        for number, (start, end) in enumerate(pairwise(cu_queries)):
            padded[number, :, : end - start] = flat[:, start:end]
        return out[None], padded, None, None, max_queries, max_keys

    def backward(
        self, grad, q, k, v, bias, out, cu_queries, cu_keys, max_queries, max_keys, lse, *rest
    ):
        _, _, _, mask, _ = rest
        call = VarlenCall((), cu_queries, cu_keys, max_queries, max_keys, mask == 1)
        assert lse.is_contiguous() and lse.shape[2] % 32 == 0
        flat = []
        for number, (start, end) in enumerate(pairwise(cu_queries)):
            flat.append(lse[number, :, : end - start])
            assert (lse[number, :, end - start :] == torch.inf).all()  # so that it counts nothing
        parts = (grad[0], q[0], k[0], v[0], out[0], torch.cat(flat, 1))
        return *(t[None] for t in ProductKernel().backward(*parts, call)), None


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(varlen_attention, "_efficient_forward", PaddedOps().forward)
    monkeypatch.setattr(varlen_attention, "_efficient_backward", PaddedOps().backward)
    return EfficientKernel()


def test_each_query_has_a_place_in_the_padded_rectangle():
    call = VarlenCall.of([2, 1, 33], [2, 1, 33], True, torch.device("cpu"))
    assert call.place_Q.tolist() == [0, 1, 64, *range(128, 161)]


@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [([3, 1, 40], [3, 1, 40], True), ([5, 2], [4, 7], False)]
)
def test_output_and_gradients_are_those_of_plain_products(kernel, queries, keys, causal):
    generator = torch.Generator().manual_seed(0)
    call = VarlenCall.of(queries, keys, causal, torch.device("cpu"))
    make = lambda num, heads: torch.randn(num, heads, 8, generator=generator)  # noqa: E731
    q, grad = make(sum(queries), 6), make(sum(queries), 6)
    k, v = make(sum(keys), 2), make(sum(keys), 2)
    out, lse = kernel.forward(q, k, v, call)
    expected_out, expected_lse = ProductKernel().forward(q, k, v, call)
    torch.testing.assert_close(out, expected_out)
    torch.testing.assert_close(lse, expected_lse)
    # As in a softmax over more keys, whose output and log-sum-exp are others.
    whole_out, whole_lse = 0.5 * out, lse + 0.3
    found = kernel.backward(grad, q, k, v, whole_out, whole_lse, call)
    expected = ProductKernel().backward(grad, q, k, v, whole_out, whole_lse, call)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_torch_has_the_operators_with_these_arguments():
    call = VarlenCall.of([3, 2], [4, 5], False, torch.device("meta"))
    make = lambda num, heads: torch.empty(num, heads, 8, device="meta")  # noqa: E731
    q, k, v = make(5, 4), make(9, 2), make(9, 2)
    out, lse = EfficientKernel().forward(q, k, v, call)
    assert (out.shape, tuple(lse.shape), lse.dtype) == (q.shape, (4, 5), torch.float32)
    found = EfficientKernel().backward(torch.empty_like(out), q, k, v, out, lse, call)
    assert [t.shape for t in found] == [q.shape, k.shape, v.shape]


def test_a_cpu_has_no_such_kernel():
    assert varlen_kernel_for(torch.from_numpy(np.zeros((2, 1, 8), np.float32))) is None
