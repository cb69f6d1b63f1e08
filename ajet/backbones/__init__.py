"""Where the loop runs. In: a config. Out: a run folder. One folder each, none imports another."""

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ajet.backbones.debug.backbone import DebugBackbone
    from ajet.cluster.session import SessionSettings
    from ajet.core.config import AjetConfig
    from ajet.core.record.summary import RunSummary

BACKBONES = {
    "debug": "ajet.backbones.debug.backbone->DebugBackbone",
    "verl": "ajet.backbones.colocated.backbone->ColocatedBackbone",
    "trinity": "ajet.backbones.disaggregated.backbone->DisaggregatedBackbone",
}
"""By the name in `ajet.backbone`; loaded when it is chosen."""


class Backbone(Protocol):
    """What `ajet train` asks of each."""

    def fit(self) -> "RunSummary | None":
        """Train to the last step, on from the newest checkpoint if there is one; None where it was
        no training (modes of backbone trinity)."""
        ...


def runs_on_ray(config: "AjetConfig") -> bool:
    """Whether the run has processes on a cluster."""
    is_alone = config.ajet.backbone == "trinity" and config.trinity.mode in ("bench", "serve")
    return config.ajet.backbone != "debug" and not is_alone


def make_backbone(config: "AjetConfig", session: "SessionSettings | None" = None) -> Backbone:
    """The backbone that the config names; `session` says how those on Ray have one."""
    name = config.ajet.backbone
    if name == "debug":
        return make_debug_backbone(config)
    from ajet.cluster.session import SessionSettings

    module, _, kind = BACKBONES[name].partition("->")
    return getattr(import_module(module), kind)(config, session=session or SessionSettings())


def make_debug_backbone(config: "AjetConfig") -> "DebugBackbone":
    """The one that also debugs and evaluates, in this process."""
    from ajet.backbones.debug.backbone import DebugBackbone

    return DebugBackbone(config)
