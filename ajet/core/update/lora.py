"""Low-rank adapters through peft, in the model's own modules: an engine with the same model samples
with them; switched off, the model is its own reference. Several adapters of a sharded model are in
the same modules (`add_adapters`, `activate`), else in separate module trees (many_adapters.py).
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ajet.core.errors import ConfigError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.core.text.error_text import extra_advice
from ajet.core.update.settings import LoraSettings

ALIKE = 0.01
"""The largest distance of equal weights, relative to their norm."""
FIRST = "default"
"""Peft's own name of a model's first adapter."""


def with_lora(model: nn.Module, lora: LoraSettings) -> nn.Module:
    """Returns the model wrapped by peft, with its base frozen.

    One factor of each adapter is zero and the other drawn from `lora.seed`, so the first update
    starts from the base's numbers."""
    try:
        import peft
    except ImportError:
        raise PackageMissing(f"lora: peft is not installed; run {extra_advice('peft')}") from None
    untyped: Any = model
    with _drawn_from(lora):
        try:
            wrapped = peft.get_peft_model(untyped, _peft_config(lora))
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


def tokens_not_learnable(model: nn.Module, tokenizer: Any) -> list[str]:
    """Returns the special tokens in the chat template whose output weights are those of other
    tokens, within `ALIKE`, as of tokens that pretraining never saw. They have the same probability
    whatever adapters of the other layers learn: such a model cannot write one and not the other."""
    untyped: Any = model
    weight_VD, template = untyped.get_output_embeddings().weight.detach(), tokenizer.chat_template
    if weight_VD.is_meta:  # another process has the weights, and looks
        return []
    ids = {
        token: token_id
        for token, token_id in sorted(tokenizer.get_added_vocab().items())
        if token in str(template) and token_id < len(weight_VD)
    }
    num_alike = dict.fromkeys(ids, 0)  # each token is like itself
    for chunk in weight_VD.split(1 << 13):  # less memory than a copy of all weights
        rows = chunk.float()
        for token, token_id in ids.items():
            row_D = weight_VD[token_id].float()
            num_alike[token] += int(((rows - row_D).norm(dim=1) <= ALIKE * row_D.norm()).sum())
    return [token for token, number in num_alike.items() if number > 1]


def add_adapters(wrapped: nn.Module, loras: Sequence[LoraSettings]) -> list[str]:
    """Adds adapters to a model that `with_lora` has wrapped, and returns peft's names for them. All
    are trained; the first one stays active."""
    untyped: Any = wrapped
    names = [f"adapter_{number}" for number in range(1, len(loras) + 1)]
    for name, lora in zip(names, loras, strict=True):
        with _drawn_from(lora):
            untyped.add_adapter(name, _peft_config(lora))
    # peft would train only the active adapter.
    for name, weight in wrapped.named_parameters():
        weight.requires_grad_(".lora_" in name)
    activate(wrapped, FIRST)
    return names


def activate(wrapped: nn.Module, adapter: str) -> None:
    """Makes the model compute with this adapter from now on."""
    # Not by peft's set_adapter: it also freezes the others, which have optimizers and shards.
    for layer in wrapped.modules():
        if hasattr(layer, "_active_adapter"):
            untyped: Any = layer
            untyped._active_adapter = [adapter]


def weights_of_adapter(wrapped: nn.Module, adapter: str) -> dict[str, nn.Parameter]:
    """Returns the weights of one adapter, under the names that they would have if it were the only
    one: a checkpoint does not depend on how adapters are held."""
    pattern = re.compile(rf"(\.lora_\w+)\.{adapter}(?=\.|$)")
    return {
        pattern.sub(rf"\1.{FIRST}", name): weight
        for name, weight in wrapped.named_parameters()
        if pattern.search(name)
    }


def _peft_config(lora: LoraSettings) -> Any:
    import peft

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft only divides it by r, so a float is fine
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


@contextmanager
def _drawn_from(lora: LoraSettings) -> Iterator[None]:
    """Seeds torch's global generator, which peft draws from, and restores it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(derive(lora.seed, "lora"))
        yield


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Switches the adapters off inside the context, so that the model gives the base's numbers."""
    # Not by peft's disable_adapter: it also changes requires_grad of the adapters' weights, which
    # must not happen to a sharded model in the middle of a pass.
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "_disable_adapters")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
