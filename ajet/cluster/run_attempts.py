"""Runs a run on Ray, with another attempt from the last checkpoint when a process is lost.

Ray
  its nodes, placement, check of the nodes ─> attempt ─> done
     └─ ProcessLost ─> another attempt, on the nodes that are there then; a third loss at one
        step ends the run
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from loguru import logger

from ajet.cluster.actor_errors import ProcessLost
from ajet.cluster.connection import SessionSettings
from ajet.cluster.node_check import check_nodes
from ajet.cluster.nodes import await_nodes
from ajet.cluster.placement import Node, Placement, Process, place
from ajet.cluster.placement_groups import reserve
from ajet.cluster.session import ray_session
from ajet.core.checkpoint.manifest import newest_checkpoint, step_of
from ajet.core.config import AjetConfig
from ajet.core.config.nested import with_values
from ajet.core.errors import RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.text.terminal import Console

MAX_LOSSES = 3
"""The run fails after this number of losses without a new checkpoint."""


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
            config = resumed(config)


def resumed(config: AjetConfig) -> AjetConfig:
    """Returns the config with `resume` set to auto, so that the run resumes from its last
    checkpoint, whatever it started from."""
    return with_values(config, {"ajet.trainer_common.resume": "auto"})
