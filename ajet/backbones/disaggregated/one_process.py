"""Both halves in this process: for a laptop, and to see the whole of it at once.

With a bound of 0 they take turns, and the run is that of backbone debug, bit for bit: the same
episodes, losses and weights. Not covered: a cluster (training.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.console import Console

from ajet.backbones.disaggregated.halves import Halves
from ajet.backbones.disaggregated.parts import make_seat
from ajet.core import assembly
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.record.books import Books, find_start
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.task.run_tasks import RunTasks


class OneProcessTraining:
    """One sitting of one run: everything that is alive between its first step and its last."""

    def __init__(
        self, config: AjetConfig, folder: RunFolder, interrupt: Interrupt, console: Console
    ) -> None:
        self.config, self.folder = config, folder
        tasks = RunTasks.read(config)
        assembly.set_threads(config)
        loaded = assembly.load_policy_model(config)
        template = assembly.make_template(loaded)
        bound = assembly.staleness_bound(config)
        self.seat = make_seat(config, loaded, template, bound.max_staleness)
        judge = assembly.make_judge(config)
        self.gateway = assembly.make_gateway(config)
        shared = {"judge": judge, "gateway": self.gateway}
        endpoint = self.seat.endpoint
        runner = assembly.make_runner(config, endpoint, template, mode="train", **shared)
        validator = assembly.make_runner(config, endpoint, template, mode="eval", **shared)
        keep = config.ajet.trainer_common.max_checkpoints_to_keep
        self.checkpoints = LearnerCheckpoints(self.seat.learner, loaded, keep=keep)
        start = find_start(folder, config.ajet.trainer_common.resume)
        if start is not None:
            self.checkpoints.load(start.path)
        self.books = Books(
            config,
            folder,
            tasks,
            save=self._save,
            interrupt=interrupt,
            console=console,
            start=start,
        )
        self.seat.on_progress = self.books.progress.fraction
        template.today = datetime.fromisoformat(self.books.state.begun)
        self.books.keep_inputs(loaded.tokenizer, template)
        self.halves = Halves(self.books, self.seat, runner=runner, validator=validator, start=start)

    def run(self) -> RunSummary:
        """All steps that are left; the summary is written last."""
        with self.books:
            run_bounded(self._run())
        return self.books.finish()

    async def _run(self) -> None:
        try:
            await self.halves.run()
        finally:
            self.gateway.close()
            await self.seat.close()

    async def _save(self, step: int, run: dict[str, Any]) -> None:
        self.checkpoints.save(self.folder.checkpoints, step, self.halves.with_own_state(run))
        self.halves.saved()
