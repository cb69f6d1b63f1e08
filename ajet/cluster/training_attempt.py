"""The base class of an attempt of a run that trains.

    make_processes ─> start ─> with the run's records: train ─> close ─> summary

A backbone's subclass implements these steps.
"""

from abc import ABC, abstractmethod

from loguru import logger

from ajet.cluster.node_watch import while_nodes_last
from ajet.cluster.placement import Placement
from ajet.cluster.run_attempts import ProcessOptions
from ajet.core.config import AjetConfig
from ajet.core.config.precision import describe_precision
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.run.run_state import ResumePoint
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.training_run import Save, TrainingRun
from ajet.core.text.terminal import Console
from ajet.serve.exchange.gateway import ExchangeGateway


class TrainingAttempt(ABC):
    """One attempt of a run; its processes have ended when `fit` returns."""

    run: TrainingRun

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        placement: Placement,
        options: ProcessOptions,
        *,
        tasks: RunTasks,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        self.gateway = gateway
        self.config, self.tasks, self.folder = config, tasks, folder
        self.interrupt, self.console, self._placement = interrupt, console, placement
        logger.info(describe_precision(config, gpu=placement.on_gpus))
        self.make_processes(placement, options)

    @abstractmethod
    def make_processes(self, placement: Placement, options: ProcessOptions) -> None: ...

    @abstractmethod
    async def start(self) -> None:
        """Starts the processes and begins the run with `begin_run`."""

    @abstractmethod
    async def train(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def fit(self) -> RunSummary:
        return run_bounded(self._fit())

    def begin_run(self, save: Save, resume_point: ResumePoint | None) -> None:
        """Begins the run, from `resume_point` if there is one, which the trainer has loaded."""
        self.run = TrainingRun(
            self.config,
            self.folder,
            self.tasks,
            save=save,
            saves_in_background=self.config.saves_in_background(on_gpu=self._placement.on_gpus),
            interrupt=self.interrupt,
            console=self.console,
            resume_point=resume_point,
        )
        if self.gateway is not None:
            self.gateway.exchange.rewind(self.run.state.step)
            self.run.on_step = self.gateway.exchange.step_trained
            self.run.stopping_note = self.gateway.exchange.stopping_note

    async def _fit(self) -> RunSummary:
        try:
            await while_nodes_last(self._placement, self._start_and_train())
        finally:
            self.close()
        return self.run.finish()

    async def _start_and_train(self) -> None:
        await self.start()
        with self.run:
            await self.train()
