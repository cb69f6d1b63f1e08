"""Decides what number format a run computes in, for the trainer, the engines and the plan.

    ajet.model.dtype   fsdp_config.param_dtype   on a CPU   on a GPU
    auto               auto                      float32    bfloat16
    auto               bfloat16                  bfloat16   bfloat16
    float32            auto or float32           float32    float32
    float32            bfloat16                  refused: trainer and engines would differ

`fastest` became bfloat16 or auto when the config was read (model.py). The optimizer's weights and
moments, and gradients summed over micro-batches, are float32 where the format is narrower.
"""

from typing import Literal

from ajet.core.config.tree import AjetConfig
from ajet.core.process.processor import has_bfloat16_instructions

Dtype = Literal["float64", "float32", "bfloat16"]
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2}
PARAM_DTYPE = "ajet.trainer_common.fsdp_config.param_dtype"
SLOW = (
    "; this processor has no instructions for bfloat16, in which products can take a hundred times "
    "as long as in float32: set ajet.model.dtype=fastest"
)


def requested_dtype(config: AjetConfig) -> Dtype | Literal["auto"]:
    """Returns the format that the config names, by either key; auto leaves it to the device."""
    model_dtype, computed = config.ajet.model.dtype, _param_dtype(config)
    assert model_dtype != "fastest", "it was decided when the config was read"
    return computed if model_dtype == "auto" else model_dtype


def dtype_on(config: AjetConfig, *, gpu: bool) -> Dtype:
    """Returns the format of trainer and engines on a GPU or a CPU."""
    dtype = requested_dtype(config)
    if dtype != "auto":
        return dtype
    return "bfloat16" if gpu else "float32"


def state_dtype(dtype: Dtype) -> Dtype:
    """Returns the format of the optimizer's weights and moments."""
    return "float32" if dtype == "bfloat16" else dtype


def describe_precision(config: AjetConfig, *, gpu: bool) -> str:
    """Returns the decision and its reason in one line, with advice where it is very slow."""
    dtype, requested = dtype_on(config, gpu=gpu), requested_dtype(config)
    if requested == "auto":
        device = "a GPU" if gpu else "MPS" if config.ajet.model.device == "mps" else "a CPU"
        reason = f"ajet.model.dtype is auto, on {device}"
    else:
        is_own = config.ajet.model.dtype != "auto"
        reason = f"{'ajet.model.dtype' if is_own else PARAM_DTYPE} is {requested}"
    return (
        f"precision: trainer and engines compute in {dtype}, the optimizer in "
        f"{state_dtype(dtype)} ({reason}){SLOW if is_slow_here(config, gpu=gpu) else ''}"
    )


def is_slow_here(config: AjetConfig, *, gpu: bool) -> bool:
    """Tells whether the run would compute in bfloat16 on a CPU without instructions for it."""
    is_on_cpu = not gpu and config.ajet.model.device != "mps"
    is_narrow = dtype_on(config, gpu=gpu) == "bfloat16"
    return is_on_cpu and is_narrow and not has_bfloat16_instructions()


def precision_refusals(config: AjetConfig) -> list[tuple[str, str]]:
    """Returns the key and the reason where the two keys name different formats."""
    model_dtype, computed = config.ajet.model.dtype, _param_dtype(config)
    if "auto" in (model_dtype, computed) or model_dtype == computed:
        return []
    reason = (
        f"the trainer would compute in {computed} and the engines in "
        f"ajet.model.dtype={model_dtype}: leave it at auto, or give both the same"
    )
    return [(PARAM_DTYPE, reason)]


def _param_dtype(config: AjetConfig) -> Dtype | Literal["auto"]:
    """Returns `param_dtype`, which backbone debug does not read."""
    if config.ajet.backbone == "debug":
        return "auto"
    return config.ajet.trainer_common.fsdp_config.param_dtype
