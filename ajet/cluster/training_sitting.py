"""What every sitting that trains does around its loop: processes, books, the loop, the end.

    place ─> start (opens the books) ─> with the books: work ─> close ─> summary

A backbone says what each of them is. Not covered: what is done when a process is lost
(sittings.py).
"""

from abc import ABC, abstractmethod

from rich.console import Console

from ajet.cluster.placement import Placement
from ajet.cluster.sittings import ProcessOptions
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.interrupt import Interrupt
from ajet.core.record.books import Books, Save, Start
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.task.run_tasks import RunTasks


class TrainingSitting(ABC):
    """Its processes are gone when `run` returns."""

    books: Books

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        interrupt: Interrupt,
        console: Console,
        placement: Placement,
        options: ProcessOptions,
    ) -> None:
        self.config, self.folder, self.interrupt = config, folder, interrupt
        self.console = console
        self.tasks = RunTasks.read(config)
        self.place(placement, options)

    @abstractmethod
    def place(self, placement: Placement, options: ProcessOptions) -> None:
        """Make the processes."""

    @abstractmethod
    async def start(self) -> None:
        """Make them ready, and open the books."""

    @abstractmethod
    async def work(self) -> None:
        """All steps that are left."""

    @abstractmethod
    def close(self) -> None:
        """End the processes."""

    def run(self) -> RunSummary:
        """All steps that are left; the summary is written last."""
        return run_bounded(self._run())

    def open_books(self, save: Save, start: Start | None) -> None:
        """`start` is what the run goes on from."""
        self.books = Books(
            self.config,
            self.folder,
            self.tasks,
            save=save,
            interrupt=self.interrupt,
            console=self.console,
            start=start,
        )

    async def _run(self) -> RunSummary:
        try:
            await self.start()
            with self.books:
                await self.work()
        finally:
            self.close()
        return self.books.finish()
