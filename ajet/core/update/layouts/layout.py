"""The interface of batch layouts: rows in, features of their trained tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.errors import UnsupportedModel
from ajet.core.model.precision import float64_device
from ajet.core.model.routers import RouterLoad, Routers
from ajet.core.model.routes import Routes, unknown
from ajet.core.ranks.ranks import Ranks
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.settings import Recomputation

Number = TypeVar("Number", bound=np.generic)
_TORCH_DTYPES = {np.float32: torch.float32, np.float64: torch.float64}


@dataclass(frozen=True, slots=True)
class Row:
    """One sample as the forward pass needs it. The last sampled token is predicted but not an
    input, and what follows it is not computed at all:

        token_ids   [s q] [a0 a1] [o] [b0]        input_ids  s  q  a0 a1 o
        loss_mask    0 0    1  1   0   1          positions     1  2     4
                                                  targets       a0 a1    b0

    `positions` and `targets` have one entry for each trained token: the position whose output
    predicts it, and its id. `sample_index` is the sample's index in the caller's list."""

    sample: TrainingSample
    sample_index: int
    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    routes: Routes | None = None
    """The experts of the inputs, where the engine recorded them."""

    @classmethod
    def of(cls, sample: TrainingSample, sample_index: int = 0) -> Row:
        """Makes the row of a sample with at least one trained token."""
        trained = np.flatnonzero(sample.loss_mask)
        return cls(
            sample=sample,
            sample_index=sample_index,
            input_ids=sample.token_ids[: trained[-1]],
            positions=trained - 1,
            targets=sample.token_ids[trained],
            routes=None if sample.routes is None else sample.routes[: trained[-1]],
        )

    @property
    def episode_id(self) -> str:
        return self.sample.episode_id

    def trained(self, array_T: NDArray[Number]) -> NDArray[Number]:
        """Returns the entries of an array over the sample's tokens [T] that belong to the row's
        trained tokens."""
        return array_T[self.positions + 1]

    def __len__(self) -> int:
        return len(self.input_ids)


def rows_of(samples: Sequence[TrainingSample]) -> list[Row]:
    """Returns the rows of all samples that have a trained token."""
    return [Row.of(sample, index) for index, sample in enumerate(samples) if sample.num_trained]


def token_routes(
    routers: Routers, rows: Sequence[Row], nodes: Sequence[NDArray[np.int64]], num_tokens: int
) -> Routes | None:
    """Returns the experts ``[num_tokens, layers, k]`` of a pass in which row i's inputs are the
    tokens `nodes[i]`; None if those of no row are known."""
    if all(row.routes is None for row in rows):
        return None
    shape = (routers.num_layers, routers.top_k)
    routes_NLk = np.full((num_tokens, *shape), unknown(routers.dtype), routers.dtype)
    for row, tokens in zip(rows, nodes, strict=True):
        if row.routes is not None:
            routes = routers.select_layers(row.routes)
            if routes.shape[1:] != shape:
                raise UnsupportedModel(
                    f"routing_replay: the engine recorded experts of {routes.shape[1:]} (layers, "
                    f"experts per token), and the model has {shape}: they are not the same model"
                )
            routes_NLk[tokens] = routes
    return routes_NLk


def begin_routes(
    routers: Routers, routes_NLk: Routes | None, device: torch.device, load: RouterLoad | None
) -> None:
    """Begins a pass with these experts."""
    given = None if routes_NLk is None else torch.from_numpy(routes_NLk.astype(np.int64)).to(device)
    routers.begin(given, load)


def scatter_to_samples(
    samples: Sequence[TrainingSample],
    results: Iterable[tuple[Sequence[Row], Tensor]],
    ranks: Ranks,
    dtype: type[np.floating] = np.float32,
) -> list[NDArray[Any]]:
    """Arranges numbers of trained tokens ``[M]``, by micro-batch, as one array ``[T]`` for each
    sample, 0 elsewhere. `results` are of this rank's micro-batches; every rank gets all arrays."""
    starts = np.cumsum([len(sample) for sample in samples])[:-1]
    all_N = np.zeros(sum(len(sample) for sample in samples), dtype)
    arrays = np.split(all_N, starts)  # views: writing into them fills all_N
    for rows, values_M in results:
        cuts = np.cumsum([len(row.positions) for row in rows])[:-1]
        by_row = np.split(values_M.to(_TORCH_DTYPES[dtype]).cpu().numpy(), cuts)
        for row, part in zip(rows, by_row, strict=True):
            arrays[row.sample_index][row.positions + 1] = part
    # Each token has a number on one rank and 0 on the others, so the sum is exact.
    return np.split(ranks.all_reduce_sum(all_N), starts) if samples else []


def concat_to_device(arrays: Iterable[NDArray[Any]], device: torch.device) -> Tensor:
    """Concatenates one array for each row, over its trained tokens, into a tensor ``[M]``. float64
    becomes float32 on a device without float64 (MPS)."""
    values_M = torch.from_numpy(np.concatenate(list(arrays)))
    if values_M.dtype == torch.float64 and float64_device(device) != device:
        values_M = values_M.float()
    return values_M.to(device)


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Features ``[U, …]``, which `head` turns into logits ``[U, vocab]``.

    The k-th trained token, rows in order, reads row ``index_M[k]``; several may read the same one.
    `head_weight` is set where `head` is a product with it and nothing else."""

    features_UD: Tensor
    head: Callable[[Tensor], Tensor]
    vocab_size: int
    index_M: Tensor
    head_weight: Tensor | None = None


class Layout(Protocol):
    """Arranges rows for the forward passes of one model; it holds no state of a batch.

    With `routers`, passes compute with the experts of the rows, where these are known; `load`
    counts them."""

    name: str
    routers: Routers | None
    load: RouterLoad | None

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        sequence: SequenceGroup | None,
        recompute: Recomputation = False,
    ) -> None: ...

    def split(self, rows: Sequence[Row], budget: int) -> list[list[Row]]:
        """Returns micro-batches of at most `budget` computed tokens; a longer row is alone."""
        ...

    def num_computed(self, rows: Sequence[Row]) -> int:
        """Returns the number of tokens that a forward pass computes, including padding."""
        ...

    def local_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows, each with only the trained tokens whose logits this rank computes."""
        ...

    def forward(self, rows: Sequence[Row]) -> ForwardOutput:
        """Computes the forward pass over one micro-batch of this rank."""
        ...

    def forward_hidden(self, rows: Sequence[Row]) -> Tensor:
        """Returns final hidden states ``[M, D]`` of the trained tokens; the model must not be
        wrapped by peft."""
        ...


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
