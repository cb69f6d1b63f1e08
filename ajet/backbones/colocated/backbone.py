"""Trains on a Ray cluster whose trainer and engines take turns on the same devices
(`--backbone verl`)."""

from functools import partial

from ajet import assembly
from ajet.backbones.colocated.training import ColocatedTraining
from ajet.cluster.run_attempts import run_on_ray
from ajet.cluster.session import SessionSettings
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.record.summary import RunSummary
from ajet.core.run.start import open_run
from ajet.core.terminal import Console
from ajet.exchange.gateway import ExchangeGateway


class ColocatedBackbone:
    """Backbone verl, for `ajet train`; `ajet eval` and `ajet debug` need no cluster."""

    def __init__(
        self,
        config: AjetConfig,
        console: Console | None = None,
        session: SessionSettings | None = None,
        interrupt: Interrupt | None = None,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        """`gateway` lets clients run the episodes."""
        self.config = config
        self.console = console or Console()
        self.session = session or SessionSettings()
        self.interrupt = interrupt
        self.gateway = gateway

    def fit(self) -> RunSummary | None:
        """Trains to the last step, from the newest checkpoint if there is one."""
        with open_run(self.config, assembly.read_tasks(self.config)) as folder:
            make = partial(ColocatedTraining, gateway=self.gateway)
            return run_on_ray(make, self.session, self.config, folder, self.console, self.interrupt)
