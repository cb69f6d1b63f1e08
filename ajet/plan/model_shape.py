"""A model's sizes, counted in a model that transformers builds on torch's meta device: parameters,
FLOPs per token and per pair of tokens, what a cache keeps, and what a layer keeps for its backward
pass.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import first_line
from ajet.core.update.settings import LoraSettings

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

CACHED = (1, 2)
COUNTED = (256, 512)
"""Lengths of the passes whose cache and whose FLOPs are counted. The latter must be multiples of
the chunks of linear attention (64 or 256 tokens), or padding would be counted."""
MLP_NAMES = ("mlp", "feed_forward", "moe")


@dataclass(frozen=True)
class Experts:
    """The experts of a layer; a router chooses `chosen` of `num` for each token."""

    num: int
    chosen: int
    parameters: int
    """Of one expert."""

    @property
    def idle(self) -> int:
        """The parameters that a token does not use."""
        return (self.num - self.chosen) * self.parameters

    def unread(self, rows: float) -> float:
        """Returns the expected parameters of experts that none of `rows` tokens chooses, if the
        router is balanced."""
        return self.num * self.parameters * (1 - self.chosen / self.num) ** rows


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    parameters: int
    kept: int
    """Values per token that are kept for the backward pass."""
    mlp: int
    """Width of gate and up together, including those of a token's experts."""
    token_flops: float
    """Forward FLOPs per token, including states of linear attention."""
    pair_flops: float
    """Forward FLOPs per pair of a query and a key."""
    kv: int = 0
    """Values per token in a cache: keys and values, or a latent instead."""
    expanded_kv: int = 0
    """The same in the in-process engine, which expands a latent to keys and values."""
    window: int | None = None
    """The most tokens that a query sees; None: all before it."""
    state: int = 0
    wide_state: int = 0
    """Values per row, whatever its length: in the compute type, and always in float32."""
    experts: Experts | None = None

    def kept_bytes(
        self, value_bytes: int, tokens: float, rows: float, *, has_latents: bool
    ) -> float:
        """Returns the bytes in a cache of `rows` rows with `tokens` tokens altogether."""
        seen = tokens if self.window is None else min(tokens, rows * self.window)
        width = self.kv if has_latents else self.expanded_kv
        return value_bytes * (width * seen + rows * self.state) + 4 * rows * self.wide_state


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder."""

    hidden: int
    vocab: int
    head_dim: int
    kv_heads: int
    """Into how many shards a row's cache can be split between GPUs: heads; a latent is one."""
    layers: tuple[Layer, ...]
    parameters: int
    embedding_parameters: int
    """Of all embedding tables, and of the head if it is not tied."""
    tables: int
    """Of further embedding tables, of which a token reads one row."""
    largest_weight: int
    linear_parameters: int
    """Of all linear layers and the head."""
    largest_linear: int
    """Of the largest linear layer within the decoder layers."""
    adapted: int
    """Of adapters of rank 1."""
    has_tree: bool
    """The tree layout supports the model; else rows are padded."""
    has_decoder: bool
    """core/model/decoder.py computes the model and keeps fewer activations."""
    longest_plain: float
    """The longest rows for which every decode step of the in-process engine has equal kernels."""

    @property
    def active_parameters(self) -> int:
        """The parameters that a token uses, including the embedding's."""
        return self.parameters - self.tables - sum(experts.idle for experts in self.experts)

    @property
    def experts(self) -> list[Experts]:
        return [layer.experts for layer in self.layers if layer.experts]

    def read_parameters(self, rows: float) -> float:
        """Returns the parameters that a decode step of `rows` rows reads."""
        unread = sum(experts.unread(rows) for experts in self.experts)
        return self.parameters - self.tables - unread

    def trained_parameters(self, lora_rank: int) -> int:
        """Returns the parameters that a run trains: all, or adapters of this rank."""
        return lora_rank * self.adapted if lora_rank else self.parameters

    def kept_bytes(
        self, value_bytes: int, tokens: float, rows: float = 1, *, has_latents: bool = False
    ) -> float:
        """Returns the bytes in a cache of `rows` rows with `tokens` tokens altogether."""
        return sum(
            layer.kept_bytes(value_bytes, tokens, rows, has_latents=has_latents)
            for layer in self.layers
        )

    def forward_flops(self, tokens: float, pairs: Callable[[int | None], float]) -> float:
        """Returns the FLOPs of a forward pass through the layers; `pairs` maps a window to the
        number of pairs of tokens within it."""
        return sum(
            layer.token_flops * tokens + layer.pair_flops * pairs(layer.window)
            for layer in self.layers
        )


def shape_of(
    config: "PreTrainedConfig", label: str, lora: LoraSettings | None = None
) -> ModelShape:
    """Returns the shape of the model that transformers builds from a config; errors begin with
    `label`. `lora` says which modules get adapters."""
    from ajet.core.model.load import LOAD_ERRORS

    try:
        return _shape(config, lora)
    except LOAD_ERRORS as error:
        raise ModelError(
            f"{label}: transformers cannot build the model without weights: "
            f"{first_line(str(error)) or type(error).__name__}",
            code=Code.MODEL_NOT_LOADED,
        ) from error


def decoder_layers(model: "nn.Module", num: int) -> "nn.ModuleList":
    from torch import nn

    return next(
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == num
    )


def alike(model: "PreTrainedModel") -> list[int]:
    """Returns for each layer the index of the first equal one: with the same names and shapes of
    weights, and the same settings of modules."""
    types = getattr(model.config, "layer_types", None)
    first: dict[Any, int] = {}
    indices = []
    for index, layer in enumerate(decoder_layers(model, model.config.num_hidden_layers)):
        settings = [
            (name, key, value)
            for name, module in layer.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and key != "layer_idx"
        ]
        weights = [(name, weight.shape) for name, weight in layer.named_parameters()]
        signature = (tuple(settings), tuple(weights), types[index] if types else None)
        indices.append(first.setdefault(signature, index))
    return indices


def meta_model(config: "PreTrainedConfig") -> "PreTrainedModel":
    """Builds the model in bfloat16 without memory for its weights."""
    import torch
    from transformers.initialization import no_init_weights

    from ajet.core.model.multimodal import causal_model

    config = copy.deepcopy(config)
    # As one batched product: other implementations need the router's numbers, which a meta tensor
    # does not have, or multiply a token with all experts.
    config._experts_implementation = "batched_mm"
    with torch.device("meta"), no_init_weights():
        model = causal_model(config, torch.bfloat16)
    model.tie_weights()
    return model


def _shape(config: "PreTrainedConfig", lora: LoraSettings | None) -> ModelShape:
    from torch import nn

    from ajet.core.model.decoder import Decoder
    from ajet.core.model.flat_decoder import flat_decoder, has_flat_decoder, head_dim
    from ajet.core.update.lora import with_lora

    model = meta_model(config)
    first = alike(model)
    modules = decoder_layers(model, config.num_hidden_layers)
    short, longer = (_pass(model, first, length) for length in CACHED)
    flops, more = (_pass(model, first, length).flops for length in COUNTED)  # at T and 2 T tokens
    flat = flat_decoder(model) if has_flat_decoder(model) else None
    layers = {}
    for index in set(first):
        # flops(T) = a T + b T^2: solved for b (per pair) and a (per token).
        pair_flops = (more[index] - 2 * flops[index]) / (2 * COUNTED[0] ** 2)
        # A row of 1 token keeps state + kv, one of 2 tokens state + 2 kv.
        kv = longer.values[index] - short.values[index]
        expands = flat is not None and getattr(config, "kv_lora_rank", None)
        kept, mlp, experts = _layer_values(modules[index], config)
        layers[index] = Layer(
            parameters=_count(modules[index].parameters()),
            kept=kept,
            mlp=mlp,
            token_flops=flops[index] / COUNTED[0] - pair_flops * COUNTED[0],
            pair_flops=pair_flops,
            kv=kv,
            expanded_kv=2 * flat.num_kv_heads * flat.head_dim if flat and expands else kv,
            window=short.windows[index],
            state=short.values[index] - kv,
            wide_state=short.wide_values[index],
            experts=experts,
        )
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    tied = head.weight is embedding.weight
    in_tables = _count(weight for module in embeddings for weight in module.parameters())
    linears = [module.weight for module in modules.modules() if isinstance(module, nn.Linear)]
    shape = ModelShape(
        hidden=config.hidden_size,
        vocab=embedding.weight.shape[0],
        head_dim=flat.head_dim if flat else head_dim(config),
        kv_heads=short.num_parts,
        layers=tuple(layers[index] for index in first),
        parameters=_count(model.parameters()),
        embedding_parameters=in_tables + (0 if tied else head.weight.numel()),
        tables=in_tables - embedding.weight.numel(),
        largest_weight=max(weight.numel() for weight in model.parameters()),
        linear_parameters=_count(linears) + head.weight.numel(),
        largest_linear=max(weight.numel() for weight in linears),
        adapted=0,
        has_tree=flat is not None,
        has_decoder=Decoder.supports(model),
        longest_plain=flat.longest_plain if flat and flat.launches_the_same else 0,
    )
    if lora is None:
        return shape
    with warnings.catch_warnings():  # the run shows them later
        warnings.simplefilter("ignore")
        wrapped = with_lora(model, LoraSettings(rank=1, targets=lora.targets))
    return replace(shape, adapted=_count(w for w in wrapped.parameters() if w.requires_grad))


@dataclass
class _Pass:
    """The counts of one pass, by the index of a layer."""

    flops: dict[int, int]
    values: dict[int, int]
    wide_values: dict[int, int]
    windows: dict[int, int | None]
    num_parts: int


def _pass(model: "PreTrainedModel", first: list[int], length: int) -> _Pass:
    """Runs the model over one row of `length` tokens. Equal layers are computed once."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from ajet.engines.hf_forward import CACHE_NAMES

    layers: Any = decoder_layers(model, len(first))
    flops: dict[int, int] = {}
    outputs: dict[int, Any] = {}

    def counted(index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if first[index] == index:
                with FlopCounterMode(display=False) as counter:
                    outputs[index] = forward(*args, **kwargs)
                flops[index] = counter.get_total_flops()
            return outputs[first[index]]

        return run

    for index, layer in enumerate(layers):
        layer.forward = counted(index, layer.forward)
    try:
        with torch.no_grad():
            tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
            out = model(input_ids=tokens, use_cache=True)
    finally:
        for layer in layers:
            del layer.forward
    caches = (getattr(out, name, None) for name in CACHE_NAMES)
    whole = vars(next(cache for cache in caches if cache is not None))
    values, wide_values, windows, latents = {}, {}, {}, []
    for index in flops:
        # A cache has lists over layers, perhaps shorter than the model: in some models the last
        # layers use the keys and values of earlier ones.
        entries = [
            entry[index]
            for entry in whole.values()
            if isinstance(entry, list) and index < len(entry)
        ]
        cache = next((entry for entry in entries if hasattr(entry, "lazy_initialization")), None)
        tensors = list(_tensors([*entries, vars(cache) if cache is not None else {}]))
        values[index] = sum(t.numel() for t in tensors if t.dtype == torch.bfloat16)
        wide_values[index] = sum(t.numel() for t in tensors if t.dtype == torch.float32)
        windows[index] = getattr(cache, "sliding_window", None)
        keys = getattr(cache, "keys", None)
        latents += [keys.shape[1]] if isinstance(keys, torch.Tensor) and keys.numel() else []
    return _Pass(flops, values, wide_values, windows, min(latents, default=1))


def _tensors(value: Any) -> "Iterator[Tensor]":
    from torch import Tensor

    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _layer_values(
    layer: "nn.Module", config: "PreTrainedConfig"
) -> tuple[int, int, Experts | None]:
    """Returns the values per token that a layer keeps, the width of gate and up, and its experts.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), adapted to a gated MLP, grouped
    queries and attention that keeps no score matrix."""
    from torch import nn

    hidden = config.hidden_size
    kept, width = 4 * hidden, 0  # inputs and outputs of two norms
    for name, module in layer.named_modules():
        is_mlp = any(part in name for part in MLP_NAMES)
        linears = [child for child in module.children() if isinstance(child, nn.Linear)]
        last = [linear for linear in linears if linear.out_features == hidden][-1:]
        outputs = sum(linear.out_features for linear in linears if linear not in last)
        inputs = sum(linear.in_features for linear in last)
        # Kept are the outputs of the projections (queries, keys, values, gate, up) and the input of
        # the last linear layer: attention's output or, in a gated MLP, the product, and with it the
        # activation that is one of its factors.
        kept += outputs + inputs * (2 if is_mlp and outputs > inputs else 1)
        width += outputs if is_mlp else 0
        kept += sum(c.out_channels for c in module.children() if isinstance(c, nn.Conv1d))
    weights = {
        name: weight for name, weight in layer.named_parameters() if "experts" in name.split(".")
    }
    if not weights:
        return kept, width, None
    num = next(iter(weights.values())).shape[0]
    routers: Any = [module for module in layer.modules() if hasattr(module, "top_k")]
    chosen = int(routers[0].top_k if routers else config.num_experts_per_tok)
    num_gate_up = _count(w for name, w in weights.items() if w.dim() == 3 and "down" not in name)
    wide = chosen * num_gate_up // (num * hidden)
    experts = Experts(num, chosen, _count(weights.values()) // num)
    # Each chosen expert has an input and an output (2 h), the router scores and probabilities.
    return kept + 2 * wide + 2 * chosen * hidden + 2 * num, width + wide, experts


def _count(weights: "Iterable[Tensor]") -> int:
    return sum(weight.numel() for weight in weights)
