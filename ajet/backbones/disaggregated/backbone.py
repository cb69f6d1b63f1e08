"""Backbone trinity: an explorer and a trainer that work at the same time, joined by a buffer."""

from rich.console import Console

from ajet.backbones.disaggregated.one_process import OneProcessTraining
from ajet.cluster.session import SessionSettings
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.interrupt import catch_interrupts
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.run_log import run_log
from ajet.core.record.summary import RunSummary

MODES = ("both", "colocate")


class DisaggregatedBackbone:
    """`ajet train`; what `ajet eval` and `ajet debug` do needs no cluster. Without a session both
    halves are in this process."""

    def __init__(
        self,
        config: AjetConfig,
        console: Console | None = None,
        session: SessionSettings | None = None,
    ) -> None:
        self.config = config
        self.console = console or Console()
        self.session = session
        mode = config.trinity.mode
        if mode not in MODES:
            raise ConfigError(f"trinity.mode: {mode} is not built yet; choose {' or '.join(MODES)}")

    def fit(self) -> RunSummary:
        """Train to the last step, on from the newest checkpoint if there is one."""
        with RunFolder.open(self.config.run_folder) as folder, run_log(folder.logs / "run.log"):
            if self.session is not None:
                return self._on_ray(folder, self.session)
            with catch_interrupts() as interrupt:
                return OneProcessTraining(self.config, folder, interrupt, self.console).run()

    def _on_ray(self, folder: RunFolder, settings: SessionSettings) -> RunSummary:
        from ajet.backbones.disaggregated.training import Training
        from ajet.cluster.sittings import run_on_ray

        return run_on_ray(Training, settings, self.config, folder, self.console)
