"""Trains, evaluates and debugs in this process, on a CPU or one GPU (`--backbone debug`)."""

from typing import Any

from ajet import assembly
from ajet.backbones.debug.debugging import debug_episodes
from ajet.backbones.debug.training import DebugTraining
from ajet.backbones.evaluating import Subject, evaluate_subject
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt, catch_interrupts
from ajet.core.record.summary import RunSummary
from ajet.core.run.start import open_run
from ajet.core.terminal import Console
from ajet.core.trajectory.trajectory import Trajectory
from ajet.exchange.gateway import ExchangeGateway
from ajet.reports.evaluation_report import EvaluationReport


class DebugBackbone:
    """Backbone debug: each method loads what it needs."""

    def __init__(
        self,
        config: AjetConfig,
        console: Console | None = None,
        interrupt: Interrupt | None = None,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        """`gateway` lets clients run the episodes of `fit`."""
        self.config = config
        self.gateway = gateway
        self.console = console or Console()
        self.interrupt = interrupt

    def fit(self) -> RunSummary:
        """Trains to the last step, from the newest checkpoint if there is one."""
        with (
            open_run(self.config, assembly.read_tasks(self.config)) as folder,
            catch_interrupts(self.interrupt) as interrupt,
        ):
            training = DebugTraining(self.config, folder, interrupt, self.console, self.gateway)
            return training.fit()

    def evaluate(self, subject: Subject, **options: Any) -> EvaluationReport:
        """Measures the success of `subject` on a split; see `evaluate_subject`."""
        return evaluate_subject(self.config, subject, **options)

    def debug(self, **options: Any) -> list[Trajectory]:
        """Runs a few episodes and prints each in full; see `debug_episodes`."""
        return debug_episodes(self.config, self.console, **options)
