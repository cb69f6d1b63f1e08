"""A stand-in for CUDA's flash attention over sequences of several lengths."""

from itertools import pairwise

import torch

from ajet.core.update.layouts.piece_plan import product_backward, product_forward


class ProductKernel:
    """Computes what FlashKernel does, sequence by sequence with plain products."""

    def forward(self, q, k, v, call):
        outs, lses = [], []
        for queries, keys in _sequences(call):
            group = q.shape[1] // k.shape[1]
            parts = (q[queries], *(t[keys].repeat_interleave(group, 1) for t in (k, v)))
            out, lse = product_forward(*(t.transpose(0, 1)[None] for t in parts), call.causal)
            outs.append(out[0].transpose(0, 1))
            lses.append(lse[0])
        return torch.cat(outs), torch.cat(lses, 1)

    def backward(self, grad, q, k, v, out, lse, call):
        group = q.shape[1] // k.shape[1]
        found = []
        for queries, keys in _sequences(call):
            wide = [t[keys].repeat_interleave(group, 1) for t in (k, v)]
            parts = (grad[queries], q[queries], *wide, out[queries])
            dq, dk, dv = product_backward(
                *(t.transpose(0, 1)[None] for t in parts), lse[None, :, queries], call.causal
            )
            dq, dk, dv = (t[0].transpose(0, 1) for t in (dq, dk, dv))
            found.append((dq, *(t.unflatten(1, (-1, group)).sum(2) for t in (dk, dv))))
        return tuple(map(torch.cat, zip(*found, strict=True)))


def _sequences(call):
    ends = [t.tolist() for t in (call.cu_queries, call.cu_keys)]
    queries, keys = ([slice(a, b) for a, b in pairwise(each)] for each in ends)
    assert call.max_queries == max(s.stop - s.start for s in queries)
    assert call.max_keys == max(s.stop - s.start for s in keys)
    return list(zip(queries, keys, strict=True))
