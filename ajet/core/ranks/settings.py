"""Settings of the processes that train together, read from the config tree."""

from dataclasses import dataclass
from typing import Self

from ajet.core.config import AjetConfig
from ajet.core.config.precision import Dtype, dtype_on
from ajet.core.config.section import same_named


@dataclass(frozen=True, slots=True)
class ShardingSettings:
    """How several ranks hold and compute one model (sharding.py, sequence.py)."""

    param_dtype: Dtype = "float32"  # type of the computation; the shards are float32 or wider
    reshard_after_forward: bool = True  # a layer's weights are gathered again for the backward
    keep_gathered: bool = False  # weights and gradients, between micro-batches
    cpu_offload: bool = False  # shards and the optimizer's state in CPU memory
    ulysses_sequence_parallel_size: int = 1  # neighbouring ranks that share their sequences

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        trainer = config.ajet.trainer_common
        fsdp = trainer.fsdp_config
        return cls(
            **same_named(cls, fsdp, trainer)
            | {
                "param_dtype": dtype_on(config, gpu=trains_on_gpu(config.ajet.model.device)),
                "cpu_offload": fsdp.param_offload,
            }
        )


def trains_on_gpu(device: str) -> bool:
    import torch

    return device != "cpu" and torch.cuda.is_available()
