"""The sizes of a model's layers, from the content of its config.json.

    {"model_type": "qwen3_moe", "num_experts": 128, …}   ->   ModelShape

A test compares the number of parameters with transformers' own models. Families that are not in
model_families.py are refused, since they would be counted wrongly. Not covered: layers that predict
several tokens, which transformers does not load; images and sound.
"""

from collections.abc import Mapping
from typing import Any

from ajet.cluster.gemma4_shape import Gemma4Formulas
from ajet.cluster.layer_formulas import LayerFormulas
from ajet.cluster.layer_shape import ModelShape
from ajet.cluster.mamba_shape import FalconH1Formulas, Mamba2Formulas
from ajet.cluster.model_families import FAMILIES
from ajet.core.error_codes import Code
from ajet.core.errors import ModelError

FORMULAS: dict[str, type[LayerFormulas]] = {
    "falcon_h1": FalconH1Formulas,
    "gemma4_text": Gemma4Formulas,
    "mamba2": Mamba2Formulas,
}
"""The families whose layers are made otherwise than most."""


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Returns the shape from a config.json's content, of a multimodal one that of its text model;
    `where` is named in errors."""
    content = _text_content(config)
    name = content.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelError(
            f"{where}: model_type {name!r}: the sizes of its layers are not known here, so nothing "
            "is estimated; docs/models.md names the families that are",
            code=Code.MODEL_UNSUPPORTED,
        )
    try:
        return FORMULAS.get(name, LayerFormulas)(FAMILIES[name], content).shape()
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError) as error:
        raise ModelError(
            f"{where}: not the config.json of a {name} model: {error}", code=Code.MODEL_NOT_LOADED
        ) from error


def _text_content(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config of the text model. Whether a multimodal model's head is tied, its own
    field says, or else that of the text model."""
    content = config.get("text_config")
    if not isinstance(content, Mapping):
        return config
    tied = config.get("tie_word_embeddings", config.get("tie_embedding"))
    return dict(content) | ({} if tied is None else {"tie_word_embeddings": tied})
