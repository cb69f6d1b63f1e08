"""A run on Ray as one attempt after another, while processes are lost on the way.

    Ray, its nodes, a node and devices for each process
      attempt ─> done
         └─ ProcessLost ─> another, from the last checkpoint; a third loss at one step ends the run

Not covered: the driver itself (the same command goes on).
"""

from collections.abc import Callable
from typing import Any, Protocol

from loguru import logger
from rich.console import Console

from ajet.cluster.actor_errors import ProcessLost
from ajet.cluster.placement import Needs, Placement, Process, place
from ajet.cluster.placement_groups import reserved
from ajet.cluster.session import RaySession, SessionSettings, ray_session
from ajet.core.config import AjetConfig
from ajet.core.errors import RunFailed
from ajet.core.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.update.checkpoint import newest_checkpoint, step_of

MAX_LOSSES = 3
"""So often may processes be lost without a new checkpoint in between."""


ProcessOptions = Callable[[Process], dict[str, Any]]
"""How Ray is to place a process."""


class RunAttempt(Protocol):
    """From a checkpoint, or the beginning, to the last step."""

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
) -> RunSummary | None:
    """The whole run, on a Ray that is had for it."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with (
        ray_session(settings, config, say) as session,
        catch_interrupts() as interrupt,  # after Ray, which has a handler of its own
    ):
        placement = placed(config, session)
        with reserved(placement, session.environment) as reservation:
            cluster = (interrupt, console, placement, reservation.options)
            return run_with_restarts(config, folder, lambda now: make(now, folder, *cluster).fit())


def placed(config: AjetConfig, session: RaySession) -> Placement:
    """The run's processes on this Ray. One of our own has all of the machine, and a device list's
    numbers are the machine's; on one that is joined, which GPUs they are is for Ray to say."""
    placement = place(Needs.of(config), session.nodes)
    return placement if session.is_ours else placement.packed()


def run_with_restarts(
    config: AjetConfig, folder: RunFolder, attempt: Callable[[AjetConfig], RunSummary | None]
) -> RunSummary | None:
    """Makes attempts until one ends; returns its summary, or None where it writes none."""
    last, losses = -1, 0
    while True:
        try:
            return attempt(config)
        except ProcessLost as lost:
            newest = newest_checkpoint(folder.checkpoints)
            step = 0 if newest is None else step_of(newest)
            losses = losses + 1 if step == last else 1
            last = step
            if losses == MAX_LOSSES:
                raise RunFailed(
                    f"{lost}, {losses} times after step {step}; {folder.logs} and Ray's logs "
                    "say more; the same command goes on from there"
                ) from lost
            logger.warning(f"{lost}: the run goes on from its last checkpoint (step {step})")
            config = resumed(config)


def resumed(config: AjetConfig) -> AjetConfig:
    """Going on from what this very run has saved, however it began."""
    trainer = config.ajet.trainer_common.model_copy(update={"resume": "auto"})
    ajet = config.ajet.model_copy(update={"trainer_common": trainer})
    return config.model_copy(update={"ajet": ajet})
