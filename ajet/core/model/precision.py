"""The precision of softmax, sums and log-probabilities: float32, or the model's if that is wider.

    bfloat16, float16, float32  ->  float32        float64  ->  float64

MPS has no float64. What is computed in it beside the model, sums and draws, is computed on the CPU
there (`float64_device`).

Not covered: models whose norms are not in `NORMS`; they compute these in float32 at any precision.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""transformers' norms that cast to float32 inside."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns `dtype`, or float32 where `dtype` is narrower."""
    return torch.promote_types(dtype, torch.float32)


def to_wide_dtype(tensor: Tensor) -> Tensor:
    """Converts the tensor to its `wide_dtype`; returns the tensor itself if it has that already."""
    return tensor.to(wide_dtype(tensor.dtype))


def float64_device(device: torch.device) -> torch.device:
    """Returns the device where tensors of `device` can be float64: itself, or the CPU for MPS."""
    return torch.device("cpu") if device.type == "mps" else device


def to_float64(model: nn.Module) -> nn.Module:
    """Converts the model in place to float64.

    The `NORMS` get a forward that computes in float64, because their own computes in float32.
    Experts are multiplied one after another: torch has no grouped product of float64. Eager
    attention gets masks of float32's range, because its softmax is of float32 (Gemma 2).
    """
    untyped: Any = model
    if hasattr(model, "set_experts_implementation"):
        untyped.set_experts_implementation("eager")
    for module in model.modules():
        if type(module).__name__ in NORMS:
            module.forward = MethodType(rms_norm, module)
        attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if attention == "eager" and type(module).__name__.endswith("Attention"):
            module.register_forward_pre_hook(_with_finite_mask, with_kwargs=True)
    return model.double()


def _with_finite_mask(
    module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Raises what masks a token from float64's minimum to float32's, which does not become -inf
    when it is cast: a softmax over a row of padding, where all are -inf, is NaN."""
    mask = options.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dtype == torch.float64:
        options["attention_mask"] = mask.clamp(min=torch.finfo(torch.float32).min)
    return args, options


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    """Returns ``norm(x)`` of a transformers RMSNorm, computed in the dtype of `x` or wider."""
    return nn.functional.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
