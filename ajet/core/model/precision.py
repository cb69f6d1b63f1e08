"""Where softmax, sums and log-probabilities are computed: in float32, or wider where the model is.

    bfloat16, float16, float32  ->  float32        float64  ->  float64

Not covered: models whose norms are not in `NORMS` compute these in float32 whatever they are.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""transformers writes them with a cast to float32 inside."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where that is narrower."""
    return torch.promote_types(dtype, torch.float32)


def to_wide_dtype(tensor: Tensor) -> Tensor:
    """In its `wide_dtype`; the tensor itself where that is its own."""
    return tensor.to(wide_dtype(tensor.dtype))


def to_float64(model: nn.Module) -> nn.Module:
    """In place: weights, and norms that would compute in float32 all the same."""
    for module in model.modules():
        if type(module).__name__ in NORMS:
            module.forward = MethodType(_rms_norm, module)
    return model.double()


def _rms_norm(norm: Any, hidden: Tensor) -> Tensor:
    return nn.functional.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)
