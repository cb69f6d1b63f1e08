"""The flat forward pass of a model, where there is one.

    Decoder          Qwen2, Qwen3, Llama: written for flat lists; the fastest     decoder.py
    ModuleDecoder    transformers' own modules, only attention replaced           module_decoder.py

Models without one are sampled and trained by transformers' forward (hf_forward.py, padded.py).
"""

from typing import Protocol

from torch import Tensor, nn

from ajet.core.model.attention.trie import Forest
from ajet.core.model.decoder import Attend, Decoder
from ajet.core.model.module_decoder import ModuleDecoder


class FlatDecoder(Protocol):
    """Computes a causal language model over a flat list of tokens."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def launches_the_same(self) -> bool:
        """Whether passes over the same number of tokens always launch the same operators."""
        ...

    @property
    def longest_plain(self) -> float:
        """The longest sequence over which every layer is plain causal attention, by keys of one
        width; a call over longer ones needs the forest."""
        ...

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: Forest | None = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised."""
        ...

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns the next-token logits ``[N, vocab]`` in the model's dtype."""
        ...

    def head_weight(self) -> Tensor | None:
        """Returns the weight ``[vocab, hidden]`` if `logits` is the product with it."""
        ...


def has_flat_decoder(model: nn.Module) -> bool:
    return Decoder.supports(model) or ModuleDecoder.supports(model)


def flat_decoder(model: nn.Module, recompute: bool = False) -> FlatDecoder:
    """Makes the flat forward of a model that has one; `recompute` is as in `Decoder`."""
    decoder_class = Decoder if Decoder.supports(model) else ModuleDecoder
    return decoder_class(model, recompute)
