"""Sequence parallelism (Ulysses): a flat list of tokens divided over several ranks. In linear
layers a rank has a part of the tokens, in attention all tokens and a part of the heads. Suffixes: N
all tokens, n this rank's; H, K all query and key heads, h, k this rank's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.model.decoder import Attend

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class SequenceGroup:
    """The ranks that share their sequences; this one is number `rank` of `size`."""

    rank: int
    size: int
    group: Any

    @classmethod
    def of(cls, device_type: str, num_ranks: int, size: int) -> SequenceGroup | None:
        """Makes groups of neighbouring ranks, all ranks together; None if `size` is 1."""
        if size == 1:
            return None
        mesh = init_device_mesh(
            device_type, (num_ranks // size, size), mesh_dim_names=("dp", "sequence")
        )
        part = mesh["sequence"]
        return cls(part.get_local_rank(), size, part.get_group())

    def check_heads(self, num_heads: int, num_kv_heads: int) -> None:
        fits = num_heads % self.size == 0
        if not fits or (num_kv_heads % self.size and self.size % num_kv_heads):
            raise ConfigError(
                f"ulysses_sequence_parallel_size={self.size}: does not fit a model of {num_heads} "
                f"heads and {num_kv_heads} key-value heads; it must divide both, or divide the "
                "first and be a multiple of the second",
                code=Code.PARALLEL_SIZE,
            )

    def local_slice(self, num_tokens: int) -> slice:
        """Returns the range of this rank's tokens in the padded list."""
        length = -(-num_tokens // self.size)
        return slice(self.rank * length, (self.rank + 1) * length)

    def local_part(self, values_N: NDArray[Number]) -> NDArray[Number]:
        """Returns this rank's part of the values ``[N, …]``, padded with 0."""
        part = self.local_slice(len(values_N))
        values_n = values_N[part]
        num_padded = part.stop - part.start - len(values_n)
        return np.pad(values_n, [(0, num_padded), *[(0, 0)] * (values_N.ndim - 1)])

    def attend(self, attend: Attend, num_tokens: int) -> Attend:
        """Wraps an `attend` over all `num_tokens` for a decoder that has only this rank's part."""

        def attend_local(layer: int, q_nHd: Tensor, k_nKd: Tensor, v_nKd: Tensor) -> Tensor:
            # With fewer key heads than ranks, each is repeated for the ranks that share it.
            copies = max(1, self.size // k_nKd.shape[1])
            if copies > 1:
                k_nKd, v_nKd = (t.repeat_interleave(copies, dim=1) for t in (k_nKd, v_nKd))
            # The list was padded to a multiple of the ranks; attention must not see the padding.
            whole = (self._to_heads(t)[:num_tokens] for t in (q_nHd, k_nKd, v_nKd))
            out_Nhd = attend(layer, *whole)
            missing = self.size * len(q_nHd) - num_tokens
            return self._to_tokens(F.pad(out_Nhd, (0, 0, 0, 0, 0, missing)))

        return attend_local

    def _to_heads(self, t_nHd: Tensor) -> Tensor:
        """Exchanges this rank's tokens with all heads for all tokens with this rank's heads."""
        by_rank = t_nHd.unflatten(1, (self.size, -1)).transpose(0, 1)
        return self._exchange(by_rank).flatten(0, 1)

    def _to_tokens(self, t_Nhd: Tensor) -> Tensor:
        """Reverses `_to_heads`."""
        by_rank = self._exchange(t_Nhd.unflatten(0, (self.size, -1)))
        return by_rank.transpose(0, 1).flatten(1, 2)

    def _exchange(self, by_rank: Tensor) -> Tensor:
        return _AllToAll.apply(by_rank, self.group)  # type: ignore[no-any-return]


class _AllToAll(torch.autograd.Function):
    """Sends piece i to rank i and receives rank i's piece at index i. The exchange is its own
    inverse, so the backward pass is the same."""

    @staticmethod
    def forward(ctx: Any, by_rank: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_to_all(by_rank, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grads[0], ctx.group), None


def _all_to_all(by_rank: Tensor, group: Any) -> Tensor:
    sent = by_rank.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received
