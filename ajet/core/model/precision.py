"""The precision of softmax, sums and log-probabilities: float32, or the model's if that is wider.

bfloat16, float16, float32  ->  float32        float64  ->  float64
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Glm4vRMSNorm")
NORMS += ("Qwen2_5_VLRMSNorm", "Qwen3VLTextRMSNorm")
"""transformers' norms that cast to float32 inside and are replaced for float64; others are not."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns `dtype`, or float32 where `dtype` is narrower."""
    return torch.promote_types(dtype, torch.float32)


def to_wide_dtype(tensor: Tensor) -> Tensor:
    """Converts the tensor to its `wide_dtype`; returns the same tensor if it has that already."""
    return tensor.to(wide_dtype(tensor.dtype))


def float64_device(device: torch.device) -> torch.device:
    """Returns `device`, or the CPU for MPS, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def to_float64(model: nn.Module) -> nn.Module:
    """Converts the model in place to float64."""
    untyped: Any = model
    if hasattr(model, "set_experts_implementation"):
        # Experts one after another: torch has no grouped product of float64.
        untyped.set_experts_implementation("eager")
    for module in model.modules():
        if type(module).__name__ in NORMS:
            module.forward = MethodType(rms_norm, module)
        # The softmax of eager attention is of float32 (Gemma 2).
        attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if attention == "eager" and type(module).__name__.endswith("Attention"):
            module.register_forward_pre_hook(_with_finite_mask, with_kwargs=True)
    return model.double()


def _with_finite_mask(
    module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Raises the masked scores from float64's minimum, which a cast to float32 makes -inf, to
    float32's: the softmax of a row of padding, where all are -inf, would be NaN."""
    mask = options.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dtype == torch.float64:
        options["attention_mask"] = mask.clamp(min=torch.finfo(torch.float32).min)
    return args, options


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    """Returns ``norm(x)`` of a transformers RMSNorm, computed in the dtype of `x` or wider."""
    return nn.functional.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
