"""The rows that run together, and when new ones join: one `step` is one token for each of them.

    queue ──admit──> rows ──step──> finished
                      └── fewer than 80 % still running: compact, or admit from the queue

Forming a batch moves keys and values about, so a finished row stays in it until a fifth of the rows
are finished; what is sampled for it meanwhile is thrown away.

A GPU computes a step while Python ends the one before. So on a GPU a step is launched before the
tokens of the last one are read, which go from draw to step on the GPU; a row that these end is
computed once more, for nothing. Before rows are moved, all tokens are read. What a row samples is
the same: it depends on the row alone.

Not covered: who puts rows into the queue, and when (in_process.py); threads.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter

import numpy as np
import torch

from ajet.core.inference.engines.batch_rows import BatchRows
from ajet.core.inference.engines.forward import BatchRow, Forward
from ajet.core.inference.engines.sampling import Sampler, checked_draws
from ajet.core.model.transfer import DownloadBuffer, uploaded

KEEP_FRACTION = 0.8
"""Compact when fewer of the rows than this are still running."""
JOIN_FRACTION = 2.0
"""With `eager`, queued rows join when there are this many times as many of them as running rows:
each forming of the batch then costs little beside the rows that it adds."""
JOIN_INTERVAL = 32
"""With `eager`, queued rows join after as many steps as there are running rows, and after so many
at most, however few they are."""
_IS_ABORTED = attrgetter("aborted")


class Batch:
    """Runs rows to their end, at most `max_num_seqs` at once and as many as `forward` has room
    for."""

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        *,
        max_num_seqs: int,
        eager: bool,
        looks_ahead: bool = False,
    ) -> None:
        """With `looks_ahead` a step is launched before the tokens of the last one are read."""
        self._forward = forward
        self._device = device
        self._max_num_seqs = max_num_seqs
        self._eager = eager
        self._num_ahead = int(looks_ahead)
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
    def replayed_steps(self) -> int:
        """The number of decode steps that were replays of a captured one."""
        return self._forward.num_replayed

    @property
    def busy(self) -> bool:
        """Is true while any row waits or runs."""
        return bool(self._queue or self._rows.all)

    @property
    def running(self) -> bool:
        """Is true while any row runs."""
        return bool(self._rows.all)

    def add(self, rows: Iterable[BatchRow]) -> None:
        """Queues rows; they start in this order."""
        self._queue.extend(rows)

    def release(self, episode_ids: Iterable[str]) -> None:
        """Forgets what is kept for these episodes, which make no more requests."""
        self._forward.release(episode_ids)

    def free_weights(self) -> None:
        """Frees copies of the weights until the next row."""
        self._forward.free_weights()

    def publish(self, version: int) -> None:
        """Notes that the weights have changed: cached keys and values are dropped."""
        self._policy_version = version
        self._forward.reset()
        self._must_rebuild = True

    def clear(self) -> None:
        """Drops every row, after a failure."""
        self._queue.clear()
        self._set_rows([])
        self._forward.reset()

    def step(self) -> list[BatchRow]:
        """Samples one token for every running row; returns the rows that finished. Those that look
        ahead finish a step later."""
        finished = self._take_aborted()
        finished += self._reshape()
        if self._rows.steps_left:
            self._launch()
            finished += self._read(self._num_ahead)
        elif self._rows.all:
            finished += self._read(0)
        return finished

    def _launch(self) -> None:
        """Launches a step for all rows, and the copy of what it samples to the CPU."""
        logits = self._forward.decode(self._tokens_R, self._rows.positions_R)
        drawn = self._sampler.draw(logits)
        self._tokens_R = drawn[0]
        self._unread.append(buffer := self._buffers[self.decode_steps % len(self._buffers)])
        buffer.start(drawn)
        self._rows.advance()
        self.decode_steps += 1
        self._steps_since_join += 1

    def _read(self, num_left: int) -> list[BatchRow]:
        """Reads the tokens of all launched steps but so many; returns the rows that these end."""
        finished: list[BatchRow] = []
        while len(self._unread) > num_left:
            tokens, logprobs = checked_draws(self._unread.popleft().read())
            self.sampled_tokens += self._rows.num_running
            ended = self._rows.append(tokens, logprobs)
            if ended:
                self._forward.store(ended)
                finished += [row for _, row in ended]
                if not self._rows.num_running:
                    self._end_rows()
        return finished

    def _end_rows(self) -> None:
        """Drops the rows, which have all finished, when what was launched for them is done: other
        streams may write to the weights next."""
        for unread in self._unread:
            unread.read()
        self._forward.keep(np.empty(0, np.int64))
        self._set_rows([])

    def _take_aborted(self) -> list[BatchRow]:
        if not any(map(_IS_ABORTED, chain(self._rows.all, self._queue))):
            return []
        aborted = [
            row
            for row in chain(self._rows.all, self._queue)
            if row.aborted and row.finish_reason is None
        ]
        for row in aborted:
            row.finish_reason = "abort"
        if aborted:
            self._rows.note_finished()
            self._queue = deque(row for row in self._queue if row.finish_reason is None)
        return aborted

    def _reshape(self) -> list[BatchRow]:
        """Admits rows, compacts the batch, or leaves it as it is. Returns the rows that finished
        with steps that had to be read before."""
        num_running = self._rows.num_running
        sparse = num_running < KEEP_FRACTION * len(self._rows)
        if not (self._queue or self._must_rebuild or sparse):
            return []
        may_join = self._may_join(num_running, sparse)
        admitted = self._admit(self._rows.running) if may_join else []
        if not (self._must_rebuild or admitted or sparse):
            return []
        finished = self._read(0)
        running = self._rows.running
        if self._must_rebuild or admitted or not running:
            self._rebuild(running, admitted)
        else:
            index = [n for n, row in enumerate(self._rows.all) if row.finish_reason is None]
            self._forward.keep(np.array(index, np.int64))
            self._set_rows(running)
        return finished

    def _may_join(self, num_running: int, sparse: bool) -> bool:
        """Returns whether queued rows may enter the batch before the next step.

        A wave's rows are all queued when it begins, and those that did not fit follow whenever the
        batch is compacted anyway. With `eager`, single requests arrive at any time: admitting each
        one as it comes would form the batch anew at nearly every step. Forming it costs as much as
        there are running rows to move, so one request beside another waits for a step, and not for
        the other's end.
        """
        if num_running == 0 or not self._queue:
            return True
        if not self._eager:
            return sparse
        return len(self._queue) >= JOIN_FRACTION * num_running or self._steps_since_join >= min(
            JOIN_INTERVAL, num_running
        )

    def _admit(self, running: Sequence[BatchRow]) -> list[BatchRow]:
        """Takes rows from the head of the queue, as many as fit beside the running ones."""
        most = min(len(self._queue), self._max_num_seqs - len(running))
        waiting = list(islice(self._queue, max(0, most)))

        def exceeds(count: int) -> bool:
            return count > 0 and not self._forward.fits([*running, *waiting[:count]])

        fitting = len(waiting)
        if exceeds(fitting):
            fitting = bisect_left(range(fitting), True, key=exceeds) - 1
        admitted = waiting[:fitting]
        for _ in admitted:
            self._queue.popleft()
        return admitted

    def _rebuild(self, running: list[BatchRow], admitted: list[BatchRow]) -> None:
        numbered = [(n, row) for n, row in enumerate(self._rows.all) if row.finish_reason is None]
        self._forward.store(numbered)
        for row in admitted:
            row.policy_version = self._policy_version
        # Sorted by their tokens, rows that share a prefix are neighbours.
        rows = sorted(running + admitted, key=lambda row: row.ids)
        if rows:
            num_prompt = sum(len(row.prompt_ids) for row in admitted)
            # The last token of a prompt is always fed, by the first step.
            num_computed = self._forward.rebuild(rows) + len(admitted)
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
