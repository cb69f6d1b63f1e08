"""Runs a run on Ray, with another attempt from the last checkpoint when a process or a node is
lost: on the nodes that are there then. A third loss at one step ends the run.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from loguru import logger

from ajet.cluster.actors import ProcessLost
from ajet.cluster.connection import SessionSettings
from ajet.cluster.node_check import check_nodes
from ajet.cluster.nodes import alive_nodes, await_nodes, silent_nodes
from ajet.cluster.placement import Node, Placement, Process, place
from ajet.cluster.placement_groups import reserve
from ajet.cluster.session import ray_session
from ajet.core.checkpoint.manifest import newest_checkpoint, step_of
from ajet.core.config import AjetConfig
from ajet.core.config.nested import with_values
from ajet.core.config.precision import describe_precision
from ajet.core.errors import RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.bounded_loop import first_of, run_bounded
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.run.run_state import ResumePoint
from ajet.core.run.run_tasks import RunTasks
from ajet.core.run.training_run import Save, TrainingRun
from ajet.core.text.terminal import Console
from ajet.serve.exchange.gateway import ExchangeGateway

INTERVAL_S = 2.0
MAX_LOSSES = 3
"""The run fails after this number of losses without a new checkpoint."""


class NodeLost(ProcessLost):
    """A node of the run has left the cluster, or does not answer."""


async def while_nodes_last(placement: Placement, work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work. Raises NodeLost when a node of the placement is lost, instead of an error
    that this has caused."""
    if not any(node.is_remote for node in placement.nodes):
        return await work
    try:
        await first_of(work, _watch(placement))
    except NodeLost:
        raise
    except Exception as error:
        # Processes fail because of a lost node before Ray notices it, so the nodes are asked.
        lost = await asyncio.to_thread(silent_nodes, placement.nodes)
        if lost:
            raise NodeLost(_line(placement, list(lost))) from error
        raise


async def _watch(placement: Placement) -> None:
    """Raises NodeLost when Ray has given up on a node of the placement."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        alive = {node.ray_id for node in await asyncio.to_thread(alive_nodes)}
        lost = [node for node in placement.nodes if node.ray_id not in alive]
        if lost:
            raise NodeLost(_line(placement, lost))


def _line(placement: Placement, lost: list[Node]) -> str:
    return "; ".join(f"node {node.name} is lost, with {placement.names_on(node)}" for node in lost)


ProcessOptions = Callable[[Process], dict[str, Any]]
"""Returns the Ray options of a process's actor."""


class RunAttempt(Protocol):
    """One attempt of a run, from a checkpoint or the beginning to the last step."""

    def fit(self) -> RunSummary | None: ...


MakeRunAttempt = Callable[
    [AjetConfig, RunFolder, Interrupt, Console, Placement, ProcessOptions], RunAttempt
]


def run_on_ray(
    make: MakeRunAttempt,
    settings: SessionSettings,
    config: AjetConfig,
    folder: RunFolder,
    console: Console,
    interrupt: Interrupt | None = None,
) -> RunSummary | None:
    """Starts or joins Ray and runs the run on it; returns its summary, if it writes one."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with (
        ray_session(settings, config, say) as session,
        catch_interrupts(interrupt) as interrupt,  # after Ray, which installs its own handler
    ):

        def attempt(config: AjetConfig) -> RunSummary | None:
            nnodes = config.ajet.trainer_common.nnodes
            nodes = await_nodes(nnodes, say, lambda: interrupt.requested)
            if interrupt.requested and len(nodes) < nnodes:
                interrupt.stopped_early = True
                return None
            placement = make_placement(config, nodes, is_own=session.is_own)
            with reserve(placement, session.environment) as reservation:
                options = reservation.options
                placement = check_nodes(placement, config, folder.path, options)
                return make(config, folder, interrupt, console, placement, options).fit()

        return run_with_restarts(config, folder, attempt)


def make_placement(config: AjetConfig, nodes: Sequence[Node], *, is_own: bool) -> Placement:
    """Places the run's processes on these nodes. A device list numbers the machine's GPUs if the
    run has a Ray of its machine alone (`is_own`); in a joined cluster Ray chooses the GPUs."""
    placement = place(config, nodes)
    return placement if is_own else placement.with_renumbered_gpus()


def run_with_restarts(
    config: AjetConfig, folder: RunFolder, attempt: Callable[[AjetConfig], RunSummary | None]
) -> RunSummary | None:
    """Makes attempts until one ends without a lost process; returns its summary, if it writes
    one."""
    last, losses = -1, 0
    while True:
        try:
            return attempt(config)
        except ProcessLost as lost:
            newest = newest_checkpoint(folder.checkpoints)
            step = 0 if newest is None else step_of(newest)
            # A checkpoint since the last loss is progress, so counting starts over.
            losses = losses + 1 if step == last else 1
            last = step
            if losses == MAX_LOSSES:
                raise RunFailed(
                    f"{lost}, {losses} times after step {step}; {folder.logs} and Ray's logs "
                    "say more; run the same command again to continue from there",
                    code=Code.PROCESS_LOST,
                ) from lost
            logger.warning(f"{lost}: the run continues from its last checkpoint (step {step})")
            # From its last checkpoint, whatever it started from.
            config = with_values(config, {"ajet.trainer_common.resume": "auto"})


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
        async def start_and_train() -> None:
            await self.start()
            with self.run:
                await self.train()

        try:
            await while_nodes_last(self._placement, start_and_train())
        finally:
            self.close()
        return self.run.finish()
