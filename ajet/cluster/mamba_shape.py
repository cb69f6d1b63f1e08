"""The layers of Mamba 2, and of Falcon-H1, which have attention beside a Mamba mixer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ajet.cluster.layer_formulas import LayerFormulas
from ajet.cluster.layer_shape import Layer, ModelShape
from ajet.cluster.model_families import LINEAR, Family


def mamba_mixer(
    hidden: int,
    width: int,
    *,
    heads: int,
    groups: int,
    state: int,
    kernel: int,
    has_norm: bool,
    biases: tuple[bool, bool, bool],
) -> Layer:
    """Returns a Mamba 2 mixer; `biases` are those of the convolution, the first and the last linear
    layer."""
    convolved = width + 2 * groups * state
    first = width + convolved + heads
    of_conv, of_first, of_last = biases
    others = convolved * (kernel + of_conv) + of_first * first + of_last * hidden
    return Layer(
        linears=((hidden, first), (width, hidden)),
        others=others + 3 * heads + has_norm * width,
        mixed=2 * convolved + 2 * width,
        state=convolved * kernel,
        wide_state=width * state,
    )


class FalconH1Formulas(LayerFormulas):
    """Makes layers of attention and a mixer that read the same hidden states."""

    def attention(self, index: int, kind: str) -> Layer:
        attention = super().attention(index, kind)
        width = self.number_or(self.number_or(2, "mamba_expand") * self.hidden, "mamba_d_ssm")
        names = ("mamba_conv_bias", "mamba_proj_bias", "projectors_bias")
        conv, first, last = (self.fields.get(name) for name in names)
        mixer = mamba_mixer(
            self.hidden,
            width,
            heads=self.number("mamba_n_heads"),
            groups=self.number_or(1, "mamba_n_groups"),
            state=self.number_or(256, "mamba_d_state"),
            kernel=self.number_or(4, "mamba_d_conv"),
            has_norm=bool(self.fields.get("mamba_rms_norm")),
            biases=(conv is None or bool(conv), bool(first), bool(last)),
        )
        return replace(
            attention,
            linears=attention.linears + mixer.linears,
            others=attention.others + mixer.others,
            mixed=attention.mixed + mixer.mixed,
            state=mixer.state,
            wide_state=mixer.wide_state,
        )


class Mamba2Formulas(LayerFormulas):
    """Makes layers of a mixer alone."""

    def __init__(self, family: Family, content: Mapping[str, Any]) -> None:
        heads = {"num_attention_heads": content["num_heads"], "num_key_value_heads": None}
        super().__init__(family, dict(content) | heads)

    def layer_types(self) -> list[str]:
        return [LINEAR] * self.number("num_hidden_layers")

    def layer(self, index: int, kind: str) -> Layer:
        has_biases, of_conv = self.fields.get("use_bias"), self.fields.get("use_conv_bias", True)
        mixer = mamba_mixer(
            self.hidden,
            self.number_or(2, "expand") * self.hidden,
            heads=self.heads,
            groups=self.number_or(8, "n_groups"),
            state=self.number_or(128, "state_size"),
            kernel=self.number_or(4, "conv_kernel"),
            has_norm=True,
            biases=(bool(of_conv), bool(has_biases), bool(has_biases)),
        )
        others = mixer.others + self.hidden
        return replace(mixer, others=others, adapted=sum(map(sum, mixer.linears)))

    def shape(self) -> ModelShape:
        return replace(super().shape(), kv_heads=self.heads)
