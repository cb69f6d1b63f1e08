"""The rows that run together, and when new ones join: one `step` is one token for each of them.

queue ──admit──> rows ──step──> finished
                  └── fewer than 80 % still running: compact, or admit from the queue
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter

import numpy as np
import torch

from ajet.core.inference.grammar import Mask
from ajet.core.model.transfer import DownloadBuffer, uploaded
from ajet.engines.forward import BatchRow, Forward
from ajet.engines.prefix_cache import Ids
from ajet.engines.sampling import Sampler, checked_draws

KEEP_FRACTION = 0.8
"""The batch is compacted when a smaller share of its rows is still running: forming a batch moves
keys and values. What is sampled for a finished row until then is dropped."""
JOIN_FRACTION = 2.0
"""With `eager`, queued rows join when there are this many times as many as running rows. Forming
the batch then costs little compared with computing the new rows."""
JOIN_INTERVAL = 32
"""With `eager`, queued rows join after as many steps as there are running rows, or this many steps
at most."""
_IS_ABORTED = attrgetter("aborted")


class BatchRows:
    """The rows of a batch, with what a step needs of all of them precomputed.

    A GPU's step takes as long as a few hundred lines of Python. So nothing here loops over the rows
    in a step that finishes none, except for appending to their lists. Steps may be launched before
    what the previous one sampled is appended.
    """

    def __init__(self, rows: Sequence[BatchRow]) -> None:
        self.all = list(rows)
        self.first_tokens_R: Ids = np.array([row.ids[-1] for row in rows], np.int64)
        """What the first step feeds."""
        self.positions_R: Ids = np.array([len(row.ids) - 1 for row in rows], np.int64)
        """The positions of the tokens that the next step feeds."""
        self._stop_ids = frozenset[int]().union(*(row.stop_ids for row in rows))
        self.steps_left = max((row.max_len - len(row.ids) for row in rows), default=0)
        """The steps to launch until the row with the most room is full."""
        self.has_grammars = any(row.matcher is not None for row in rows)
        """A grammar's next mask depends on the token before it, which must be read first."""
        self._has_checks = self.has_grammars or any(row.stop_check is not None for row in rows)
        self.note_finished()

    def __len__(self) -> int:
        return len(self.all)

    @property
    def running(self) -> list[BatchRow]:
        return [row for row in self.all if row.finish_reason is None]

    @property
    def masks(self) -> dict[int, Mask]:
        """The tokens that grammars allow next, by the number of the row."""
        if not self.has_grammars:
            return {}
        running = [(n, row) for n, row in enumerate(self.all) if row.finish_reason is None]
        return {n: row.mask for n, row in running if row.mask is not None}

    def note_finished(self) -> None:
        """Updates what depends on which rows are running, after finish reasons have been set."""
        self._is_running_R = np.array([row.finish_reason is None for row in self.all], bool)
        self.num_running = len(running := self.running)
        # The tokens until the fullest running row has its maximum length.
        self._tokens_left = min((row.max_len - len(row.ids) for row in running), default=0)
        # Bound once, not at each step; what is sampled for a finished row is dropped.
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
        """Appends a sampled token to each running row. Returns the rows that it ends, with their
        numbers in the batch."""
        for append, token in zip(self._append_ids, tokens, strict=True):
            append(token)
        for append, logprob in zip(self._append_logprobs, logprobs, strict=True):
            append(logprob)
        self._tokens_left -= 1
        if self._tokens_left > 0 and not self._has_checks and self._stop_ids.isdisjoint(tokens):
            return []  # no row can have ended
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
    pass


class Batch:
    """Runs rows to their end: at most `max_num_seqs` at a time, and as many as `forward` can hold.
    What a row samples depends on the row alone."""

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        *,
        max_num_seqs: int,
        eager: bool,
        looks_ahead: bool = False,
        keeps_aborted: bool = False,
    ) -> None:
        """`eager`: rows may join at any time, not only when the batch is compacted. `looks_ahead`:
        a step is launched before the tokens of the previous one are read, so that a GPU computes
        while Python processes those; a row that they end is computed once more, in vain.
        `keeps_aborted`: keys and values of aborted rows are cached too: such a row is continued."""
        self.forward = forward
        self._device = device
        self._max_num_seqs = max_num_seqs
        self._eager = eager
        self._num_ahead = int(looks_ahead)
        self._keeps_aborted = keeps_aborted
        self._queue: deque[BatchRow] = deque()
        self._set_rows([])
        self._must_rebuild = False
        self._steps_since_join = 0
        self._policy_version = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.sampled_tokens = 0
        self.decode_steps = 0

    @property
    def busy(self) -> bool:
        """True while any row waits or runs."""
        return bool(self._queue or self._rows.all)

    @property
    def running(self) -> bool:
        """True while any row runs."""
        return bool(self._rows.all)

    def add(self, rows: Iterable[BatchRow]) -> None:
        """Queues rows, which start in this order."""
        self._queue.extend(rows)

    def publish(self, version: int, oldest: int | None = None) -> None:
        """Notes that the weights have changed, and drops cached keys and values: all, or those that
        weights before version `oldest` computed."""
        self._policy_version = version
        self.forward.renew(version, oldest)
        self._must_rebuild = True

    def clear(self) -> None:
        """Drops all rows, after a failure."""
        self._queue.clear()
        self._set_rows([])
        self.forward.reset()

    def step(self) -> list[BatchRow]:
        """Samples one token for every running row, and returns the rows that finished (with
        `looks_ahead`, those that finished in the previous step)."""
        finished = self._take_aborted()
        finished += self._reshape()
        if self._rows.steps_left:
            logits = self.forward.decode(self._tokens_R, self._rows.positions_R)
            # [3, R]: tokens, log-probabilities, sums
            drawn = self._sampler.draw(logits, self._rows.masks)
            # The next step feeds these tokens, which need not reach the CPU before that.
            self._tokens_R = drawn[0]
            # There are as many buffers as steps can be unread, so none is overwritten too early.
            self._unread.append(buffer := self._buffers[self.decode_steps % len(self._buffers)])
            buffer.start(drawn)
            self._rows.advance()
            self.decode_steps += 1
            self._steps_since_join += 1
            finished += self._read(0 if self._rows.has_grammars else self._num_ahead)
        elif self._rows.all:  # every row is full as soon as the launched steps are read
            finished += self._read(0)
        return finished

    def _read(self, num_left: int) -> list[BatchRow]:
        """Reads the tokens of launched steps until `num_left` are unread; returns the rows that
        they end."""
        finished: list[BatchRow] = []
        while len(self._unread) > num_left:
            tokens, logprobs = checked_draws(self._unread.popleft().read())
            self.sampled_tokens += self._rows.num_running
            ended = self._rows.append(tokens, logprobs)
            if ended:
                self.forward.store(ended)
                finished += [row for _, row in ended]
                if not self._rows.num_running:
                    # Wait for steps that were launched in vain: the weights may be written next.
                    for unread in self._unread:
                        unread.read()
                    self.forward.keep(np.empty(0, np.int64))
                    self._set_rows([])
        return finished

    def _take_aborted(self) -> list[BatchRow]:
        # This runs at every step: test all rows in C first.
        if not any(map(_IS_ABORTED, chain(self._rows.all, self._queue))):
            return []
        rows = [*self._rows.all, *self._queue]
        aborted = [row for row in rows if row.aborted and row.finish_reason is None]
        for row in aborted:
            row.finish_reason = "abort"
        if self._keeps_aborted:
            ended = set(aborted)
            self.forward.store([(n, row) for n, row in enumerate(self._rows.all) if row in ended])
        if aborted:
            self._rows.note_finished()
            self._queue = deque(row for row in self._queue if row.finish_reason is None)
        return aborted

    def _reshape(self) -> list[BatchRow]:
        """Admits rows, compacts the batch, or does nothing. Returns the rows that were found to
        have finished when the launched steps had to be read."""
        num_running = self._rows.num_running
        sparse = num_running < KEEP_FRACTION * len(self._rows)
        if not (self._queue or self._must_rebuild or sparse):
            return []
        may_join = self._may_join(num_running, sparse)
        admitted = self._admit(self._rows.running) if may_join else []
        if not (self._must_rebuild or admitted or sparse):
            return []
        finished = self._read(0)  # rows must have all their tokens before they are moved
        running = self._rows.running
        if self._must_rebuild or admitted or not running:
            self._rebuild(running, admitted)
        else:
            index = [n for n, row in enumerate(self._rows.all) if row.finish_reason is None]
            self.forward.keep(np.array(index, np.int64))
            self._set_rows(running)
        return finished

    def _may_join(self, num_running: int, sparse: bool) -> bool:
        """Returns whether queued rows may enter the batch before the next step.

        The rows of a wave are all queued when it begins; those that did not fit follow when the
        batch is compacted. With `eager`, requests arrive one by one, and admitting each immediately
        would form the batch again at nearly every step. The cost of that grows with the running
        rows, and so does the number of steps to wait.
        """
        if num_running == 0 or not self._queue:
            return True
        if not self._eager:
            return sparse
        return len(self._queue) >= JOIN_FRACTION * num_running or self._steps_since_join >= min(
            JOIN_INTERVAL, num_running
        )

    def _admit(self, running: Sequence[BatchRow]) -> list[BatchRow]:
        """Takes as many rows from the head of the queue as fit in addition to the running ones."""
        most = min(len(self._queue), self._max_num_seqs - len(running))
        waiting = list(islice(self._queue, max(0, most)))

        def exceeds(count: int) -> bool:
            return count > 0 and not self.forward.fits([*running, *waiting[:count]])

        # Binary search: `fits` lays out the whole batch, so calls are expensive.
        fitting = len(waiting)
        if exceeds(fitting):
            fitting = bisect_left(range(fitting), True, key=exceeds) - 1
        admitted = waiting[:fitting]
        for _ in admitted:
            self._queue.popleft()
        return admitted

    def _rebuild(self, running: list[BatchRow], admitted: list[BatchRow]) -> None:
        numbered = [(n, row) for n, row in enumerate(self._rows.all) if row.finish_reason is None]
        self.forward.store(numbered)
        for row in admitted:
            row.policy_version = self._policy_version
        # Sorted by tokens, so that rows with a common prefix are neighbours.
        rows = sorted(running + admitted, key=lambda row: row.ids)
        if rows:
            num_prompt = sum(len(row.prompt_ids) for row in admitted)
            # `rebuild` leaves out the last token of each prompt, which the first step feeds.
            num_computed = self.forward.rebuild(rows) + len(admitted)
            self.prompt_tokens += num_prompt
            self.cached_prompt_tokens += max(0, num_prompt - num_computed)
        self._set_rows(rows)
        self._must_rebuild = False
        self._steps_since_join = 0

    def _set_rows(self, rows: list[BatchRow]) -> None:
        self._rows = BatchRows(rows)
        self._tokens_R = uploaded(self._rows.first_tokens_R, self._device)
        self._unread: deque[DownloadBuffer] = deque()
        self._buffers = [DownloadBuffer() for _ in range(self._num_ahead + 1)]
        num_sampled = np.array([len(row.logprobs) for row in rows], np.int64)
        self._sampler = Sampler([row.sampling for row in rows], self._device, num_sampled)
