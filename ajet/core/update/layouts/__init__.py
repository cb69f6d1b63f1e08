"""Batch layouts: arrange the rows of a micro-batch for the forward pass. All give the same
gradient, at different speeds. In: `Row`s. Out: features of the trained tokens.
"""

from typing import Any

import torch
from loguru import logger

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.model.allocator import is_large
from ajet.core.model.flat_decoder import has_flat_decoder
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.update.layouts.layout import Layout, device_of
from ajet.core.update.layouts.padded import PaddedLayout
from ajet.core.update.layouts.tree import PackedLayout, TreeLayout
from ajet.core.update.settings import Recomputation

LAYOUTS: dict[str, type[Layout]] = {
    "padded": PaddedLayout,
    "packed": PackedLayout,
    "tree": TreeLayout,
}


def make_layout(
    model: Any,
    name: str,
    device: torch.device | None = None,
    sequence: SequenceGroup | None = None,
    recompute: Recomputation = False,
) -> Layout:
    """Makes the layout `name` for a transformers model, which peft may have wrapped.

    ``auto`` is the tree where the model has a flat forward, else padded. `device` is where passes
    are computed (weights may be offloaded); `sequence` are the ranks that share their rows.
    `recompute` keeps only the input of each decoder layer for the backward pass, which computes the
    rest again; "auto" does so for a large model, on a GPU by the free memory."""
    flat = has_flat_decoder(model)
    if name == "auto":
        name = "tree" if flat else "padded"
        if not flat:
            logger.info(
                f"batch_layout: model type {model.config.model_type!r} has no flat forward, so "
                "updates compute padded rows and share no prefixes"
            )
    if name != "padded" and not flat:
        raise ConfigError(
            f"batch_layout={name}: model type {model.config.model_type!r} has no flat forward; "
            "use batch_layout=padded",
            code=Code.MODEL_UNSUPPORTED,
        )
    device = device or device_of(model)
    if recompute == "auto" and device.type != "cuda":
        recompute = is_large(model)
    return LAYOUTS[name](model, device, sequence, recompute)
