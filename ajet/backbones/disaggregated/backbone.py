"""Backbone trinity: an explorer and a trainer that work at the same time, joined by a buffer.

mode      runs                                               where
both      explorer and trainer                               on Ray, or in this process
colocate  the same, on the same devices                      the same
train     the trainer; episodes are another command's        the same
explore   the explorer of a run that another command trains  the same
bench     each checkpoint on the held-out tasks              in this process
serve     the newest checkpoint over HTTP                    in this process
"""

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ajet import assembly
from ajet.cluster.session import SessionSettings
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import EXPLORER_LOCK, RunFolder
from ajet.core.record.run_log import run_log
from ajet.core.record.summary import RunSummary
from ajet.core.run.start import open_run
from ajet.core.terminal import Console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ajet.cluster.run_attempts import MakeRunAttempt
    from ajet.exchange.gateway import ExchangeGateway


class DisaggregatedBackbone:
    """Backbone trinity, for `ajet train`; `ajet eval` and `ajet debug` need no cluster. Without a
    session everything runs in this process."""

    def __init__(
        self,
        config: AjetConfig,
        console: Console | None = None,
        session: SessionSettings | None = None,
        interrupt: Interrupt | None = None,
        gateway: "ExchangeGateway | None" = None,
    ) -> None:
        """`gateway` lets clients run the episodes: in modes both and colocate on Ray, and in mode
        explore. A trainer of its own has none."""
        self.config = config
        self.console = console or Console()
        self.session = session
        self.interrupt = interrupt
        self.gateway = gateway
        self.mode = config.trinity.mode

    def fit(self) -> RunSummary | None:
        """Does what the mode says. A training goes to the last step, from the newest checkpoint if
        there is one."""
        if self.mode == "bench":
            from ajet.backbones.disaggregated.bench import bench

            return bench(self.config, self.console)
        if self.mode == "serve":
            from ajet.backbones.disaggregated.serve import serve_model

            with catch_interrupts(self.interrupt) as interrupt:
                return serve_model(self.config, interrupt, self.console)
        with self._folder() as folder:
            if self.session is not None:
                from ajet.cluster.run_attempts import run_on_ray

                make = self._attempt_class()
                return run_on_ray(
                    make, self.session, self.config, folder, self.console, self.interrupt
                )
            with catch_interrupts(self.interrupt) as interrupt:
                return self._in_this_process(folder, interrupt)()

    @contextmanager
    def _folder(self) -> "Iterator[RunFolder]":
        """Opens and locks the run folder. Mode `explore` has a lock and a log of its own, and is no
        attempt: the run is the trainer's."""
        if self.mode != "explore":
            with open_run(self.config, assembly.read_tasks(self.config)) as folder:
                yield folder
            return
        with (
            RunFolder.open(self.config.run_folder, EXPLORER_LOCK) as folder,
            run_log(folder.logs / "explore.log"),
        ):
            yield folder

    def _in_this_process(
        self, folder: RunFolder, interrupt: Interrupt
    ) -> Callable[[], RunSummary | None]:
        from ajet.backbones.disaggregated.one_process import OneProcessTraining
        from ajet.backbones.disaggregated.separate_process import ExplorerProcess, TrainerProcess

        if self.mode == "explore":
            return ExplorerProcess(self.config, folder, interrupt, self.console, self.gateway).fit
        assert self.gateway is None, "clients run episodes on Ray, or another command's do"
        training = TrainerProcess if self.mode == "train" else OneProcessTraining
        return training(self.config, folder, interrupt, self.console).fit

    def _attempt_class(self) -> "MakeRunAttempt":
        from ajet.backbones.disaggregated.separate_process_on_ray import ExplorerOnRay, TrainerOnRay
        from ajet.backbones.disaggregated.training import DisaggregatedTraining

        if self.mode == "train":
            return TrainerOnRay
        made = ExplorerOnRay if self.mode == "explore" else DisaggregatedTraining
        return partial(made, gateway=self.gateway)
