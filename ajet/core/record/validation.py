"""Success on the held-out tasks while a run trains, under the same seeds at every step.

    books.validation_due() ─> val_pass_n episodes of each held-out task ─> books.validated(…)

Not covered: `ajet eval`, which measures any model (core/evaluating.py).
"""

from ajet.core.record.books import Books
from ajet.core.rollout.batch import GroupRunner


class Validation:
    """`runner` is one of mode eval."""

    def __init__(self, runner: GroupRunner, books: Books) -> None:
        self.runner = runner
        self._books = books

    async def if_due(self) -> None:
        """Runs and records it; the books know when."""
        books = self._books
        moment = books.validation_due()
        if moment is None:
            return
        tasks = books.tasks.held_out
        num_repeat = books.config.ajet.trainer_common.val_pass_n
        books.progress.phase("held-out", len(tasks) * num_repeat)
        groups = await self.runner.rollout(
            tasks,
            step=books.state.step,
            mode="eval",
            num_repeat=num_repeat,
            on_episode=lambda _: books.progress.advance(),
        )
        books.validated(moment, groups)
