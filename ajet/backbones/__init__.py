"""The backbones run the training loop. In: a config. Out: a run folder. None imports another."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ajet.core.errors import WrongKind
from ajet.core.rollout.gc_thresholds import infrequent_gc

if TYPE_CHECKING:
    from ajet.cluster.connection import SessionSettings
    from ajet.core.config import AjetConfig
    from ajet.core.process.interrupt import Interrupt
    from ajet.core.record.summary import RunSummary
    from ajet.serve.exchange.gateway import ExchangeGateway

BACKBONES = {
    "debug": "ajet.backbones.debug.training->fit_debug",
    "verl": "ajet.backbones.colocated.training->fit_colocated",
    "trinity": "ajet.backbones.disaggregated.backbone->fit_disaggregated",
}
"""Values of `ajet.backbone` and their functions, imported when chosen."""


def fit(
    config: "AjetConfig",
    session: "SessionSettings | None" = None,
    interrupt: "Interrupt | None" = None,
    gateway: "ExchangeGateway | None" = None,
) -> "RunSummary | None":
    """Trains to the last step on the config's backbone, from the newest checkpoint if there is one.
    Returns None if nothing was trained (some modes of backbone trinity).

    `session` says how to start or join Ray; `interrupt` records whether a signal stopped the run.
    With `gateway`, clients run the episodes. Raises ConfigError where the config wants clients'
    episodes and has no gateway, unless another command runs them."""
    if config.clients_run_episodes and gateway is None and not config.has_explorer_elsewhere:
        from ajet.serve.exchange.workflow import NEEDS_SERVER

        raise WrongKind(NEEDS_SERVER)
    name = config.ajet.backbone
    options: dict[str, Any] = {"interrupt": interrupt, "gateway": gateway}
    if name != "debug":
        from ajet.cluster.connection import SessionSettings

        options["session"] = session or SessionSettings()
    return load(name)(config, **options)


def load(name: str) -> Callable[..., "RunSummary | None"]:
    """Imports the function that trains with the backbone of that name."""
    module, _, function = BACKBONES[name].partition("->")
    with infrequent_gc():  # most objects that torch and transformers make stay
        return getattr(import_module(module), function)
