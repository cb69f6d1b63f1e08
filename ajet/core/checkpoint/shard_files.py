"""The tensor files of a checkpoint that several ranks write through torch.distributed.checkpoint.

    shards/shard-00001-….safetensors      rank 0's parts; the header says where each one belongs
    shards/shard-00002-….safetensors      rank 1's

Any number of ranks can read them, also one process without torch.distributed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ajet.core.checkpoint.manifest import WeightMismatch
from ajet.core.ranks.ranks import Ranks
from ajet.core.ranks.shards import is_sharded

SHARDS = "shards"


def shards_to_write(tensors: Mapping[str, Tensor], *, copies: bool) -> dict[str, Tensor]:
    """Returns this rank's parts of the tensors, in the form that `write_shards` takes; `copies`
    copies them to CPU memory."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    rows: dict[str, Any] = {name: _as_row(tensor.detach()) for name, tensor in tensors.items()}
    if not copies:
        return rows
    plainly = StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=False,
    )
    copied: Any = DefaultStager(plainly).stage(rows)
    return copied


def write_shards(folder: Path, rows: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Writes the tensors of `shards_to_write` with all ranks; an `OSError` on one rank is raised on
    all."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
    try:
        save(dict(rows), storage_writer=writer, process_group=ranks.group)
    except CheckpointException as error:
        failures = {str(failure[0]) for failure in error.failures.values()}
        raise OSError("; ".join(sorted(failures))) from error


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Returns the files that `write_shards` has written on this rank."""
    return sorted((folder / SHARDS).glob(f"shard-{rank + 1:05d}-*"))


def has_shards(folder: Path) -> bool:
    return (folder / SHARDS).is_dir()


def read_shards(
    folder: Path,
    like: Mapping[str, Tensor] | None = None,
    *,
    selects: Callable[[str], bool] = lambda name: True,
) -> dict[str, Tensor]:
    """Reads whole tensors or, with `like`, on all ranks together, tensors sharded as those of the
    same names in `like`. Tensors of a model of which `like` has none are skipped."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder / SHARDS))
    try:
        metadata: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a shard does not say where its parts belong ({error})") from error
    _check_whole(metadata)
    names = [n for n in metadata if selects(n)]
    if like is not None:
        names = names_in(names, like)
    if like is None:
        tensors = {
            n: torch.empty(metadata[n].size, dtype=metadata[n].properties.dtype) for n in names
        }
    else:
        tensors = {n: torch.empty_like(like[n]) for n in names}
    rows = {name: _as_row(tensor) for name, tensor in tensors.items()}
    require_shapes({n: row.shape for n, row in rows.items()}, {n: metadata[n].size for n in rows})
    alone = like is None or not dist.is_initialized()
    with warnings.catch_warnings():  # torch warns that `alone` reads without other ranks: it should
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(rows, storage_reader=reader, no_dist=alone)
    # AdamW's step counts are scalars, which `_as_row` wrote with one dimension.
    return {n: t.reshape(()) if n.endswith(".step") else t for n, t in tensors.items()}


def _check_whole(metadata: Mapping[str, Any]) -> None:
    """Raises ValueError where parts of a tensor are missing: `load` would leave them arbitrary."""
    for name, tensor in metadata.items():
        saved = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
        if saved != math.prod(tensor.size):
            raise ValueError(f"the shards hold {saved} values of {name} {tuple(tensor.size)}")


def _as_row(tensor: Tensor) -> Tensor:
    """Returns a scalar with one dimension, which the format needs; other tensors unchanged."""
    return tensor if tensor.ndim or is_sharded(tensor) else tensor.view(1)


def names_in(names: Iterable[str], like: Mapping[str, Tensor]) -> list[str]:
    """Returns the names that `like` has too. Raises WeightMismatch for any other, unless it belongs
    to a model (policy or critic) of which `like` has no tensor: the critic's tensors are skipped
    where the run has no critic."""

    def is_critics(name: str) -> bool:
        return name.startswith("critic.")  # such as critic.optimizer.head.weight.step

    models = {is_critics(name) for name in like}
    for name in names:
        if name not in like and is_critics(name) in models:
            raise WeightMismatch(f"{name} is not one of its tensors")
    return [name for name in names if name in like]


def require_shapes(
    shapes: Mapping[str, torch.Size], saved_shapes: Mapping[str, torch.Size]
) -> None:
    """Raises WeightMismatch where a saved shape differs."""
    for name, shape in shapes.items():
        if shape != saved_shapes[name]:
            raise WeightMismatch(f"{name} {tuple(shape)} is of shape {tuple(saved_shapes[name])}")
