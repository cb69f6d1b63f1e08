"""Where the loop runs. In: a config. Out: a run folder. One folder each, none imports another."""

from importlib import import_module
from typing import TYPE_CHECKING

from ajet.core.errors import ConfigError

if TYPE_CHECKING:
    from ajet.backbones.debug.backbone import DebugBackbone
    from ajet.core.config import AjetConfig

BACKBONES = {"debug": "ajet.backbones.debug.backbone->DebugBackbone"}
"""By the name in `ajet.backbone`; the others are refused until they are built."""


def make_backbone(config: "AjetConfig") -> "DebugBackbone":
    """The backbone that the config names."""
    name = config.ajet.backbone
    if name not in BACKBONES:
        raise ConfigError(
            f"backbone {name} is not built yet; --backbone debug trains on one machine"
        )
    module, _, kind = BACKBONES[name].partition("->")
    return getattr(import_module(module), kind)(config)
