"""Low-rank adapters through peft: only the adapters are trained, not the base weights.

The adapters are put into the model's own modules, so an engine with the same model samples with
them. With the adapters switched off the model is its own reference.

Not covered: merging adapters into the weights; several adapters at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ajet.core.error_codes import Code
from ajet.core.error_text import extra_advice
from ajet.core.errors import ConfigError
from ajet.core.seeding import derive
from ajet.core.update.settings import LoraSettings


def with_lora(model: nn.Module, lora: LoraSettings) -> nn.Module:
    """Returns the model wrapped by peft, with its base frozen.

    One factor of each adapter is zero and the other drawn from `lora.seed`, so the first update
    starts from the base's numbers.
    """
    try:
        import peft
    except ImportError:
        raise ConfigError(
            f"lora: peft is not installed; run {extra_advice('peft')}", code=Code.PACKAGE_MISSING
        ) from None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft only divides it by r, so a float is fine
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    untyped: Any = model
    # peft draws from torch's global generator: it is seeded here and restored afterwards.
    with torch.random.fork_rng():
        torch.manual_seed(derive(lora.seed, "lora"))
        try:
            wrapped = peft.get_peft_model(untyped, config)
        except ValueError as error:
            raise ConfigError(
                f"lora.targets={lora.targets!r}: {str(error).splitlines()[0]}",
                code=Code.MODEL_UNSUPPORTED,
            ) from error
    base: Any = wrapped.get_base_model()
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    is_adapted = any(hasattr(layer, "lora_A") for layer in (embedding, head))
    if is_adapted and head.weight is embedding.weight:
        raise ConfigError(
            f"lora.targets={lora.targets!r}: the output layer's weights are the embedding's, so no "
            "engine could have an adapter of one of them alone; leave both out",
            code=Code.MODEL_UNSUPPORTED,
        )
    return wrapped


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Switches the adapters off inside the context, so that the model gives the base's numbers.

    peft's own `disable_adapter` would also freeze and thaw the adapters' weights, which must not
    happen to a sharded model in the middle of a pass.
    """
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "_disable_adapters")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
