"""The rows of a batch, with what a decode step needs of all of them at hand.

    first_tokens_R             what the first step feeds; later ones what the step before sampled
    positions_R                the positions of what the next step feeds
    advance()                  a step was launched
    append(tokens, logprobs)   what it sampled; returns the rows that this finished

Steps may be launched before what the last one sampled is appended: a row may have finished then. A
step is as long on a GPU as a few hundred lines of Python are: so nothing here looks at a row by
itself, but for appending to its lists, in a step that finishes none. Whether one may have ended is
asked of all at once: has any token been sampled that stops some row, is the shortest one full?

What is sampled for a finished row until it is dropped is thrown away.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ajet.core.inference.engines.forward import BatchRow
from ajet.core.inference.engines.prefix_cache import Ids


class BatchRows:
    """Holds rows from the forming of a batch until rows are dropped."""

    def __init__(self, rows: Sequence[BatchRow]) -> None:
        self.all = list(rows)
        self.first_tokens_R: Ids = np.array([row.ids[-1] for row in rows], np.int64)
        self.positions_R: Ids = np.array([len(row.ids) - 1 for row in rows], np.int64)
        self._stop_ids = frozenset[int]().union(*(row.stop_ids for row in rows))
        self.steps_left = max((row.max_len - len(row.ids) for row in rows), default=0)
        """The steps until the row with the most room is full, whatever is sampled."""
        self._has_checks = any(row.stop_check is not None for row in rows)
        self.note_finished()

    def __len__(self) -> int:
        return len(self.all)

    @property
    def running(self) -> list[BatchRow]:
        """Returns the rows that have not finished."""
        return [row for row in self.all if row.finish_reason is None]

    def note_finished(self) -> None:
        """Notes which rows run, after finish reasons have been set."""
        self._is_running_R = np.array([row.finish_reason is None for row in self.all], bool)
        self.num_running = len(running := self.running)
        self._tokens_left = min((row.max_len - len(row.ids) for row in running), default=0)
        self._append_ids: list[Callable[[int], None]] = [
            row.ids.append if row.finish_reason is None else _drop for row in self.all
        ]
        self._append_logprobs: list[Callable[[float], None]] = [
            row.logprobs.append if row.finish_reason is None else _drop for row in self.all
        ]

    def advance(self) -> None:
        """Notes that a step was launched for all rows."""
        self.positions_R += self._is_running_R
        self.steps_left -= 1

    def append(
        self, tokens: Sequence[int], logprobs: Sequence[float]
    ) -> list[tuple[int, BatchRow]]:
        """Appends a sampled token to each running row. Returns the rows that it was the last one
        of, each with its number."""
        for append, token in zip(self._append_ids, tokens, strict=True):
            append(token)
        for append, logprob in zip(self._append_logprobs, logprobs, strict=True):
            append(logprob)
        self._tokens_left -= 1
        if self._tokens_left > 0 and not self._has_checks and self._stop_ids.isdisjoint(tokens):
            return []
        return self._ended()

    def _ended(self) -> list[tuple[int, BatchRow]]:
        """Returns the running rows that end with their last token, whose reason is set."""
        ended: list[tuple[int, BatchRow]] = []
        for number, row in enumerate(self.all):
            if row.finish_reason is None:
                row.finish_reason = row.reason_to_end()
                if row.finish_reason is not None:
                    ended.append((number, row))
        if ended:
            self.note_finished()
        return ended


def _drop(_: float) -> None:
    """Drops what was sampled for a finished row."""
