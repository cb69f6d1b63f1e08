"""Requests that take long: each is computed once, and a client asks for its answer until it is
there. Answers are in the journal, so a server that was killed still has them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from loguru import logger

from ajet.core.errors import AjetError
from ajet.core.inference.endpoint import ContextOverflow
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker.journal import Answer, Journal

MAX_RETRIEVED = 2000
"""Answers that are kept after they were retrieved, in case that one is asked for again."""
MAX_EARLY = 1000
"""Requests of a model that may arrive before one that should have come first."""
MAX_WAITING_BYTES = 1 << 30
"""The most bytes of a model's requests that wait."""

Work = Callable[[], Awaitable["bytes | dict[str, Any]"]]
"""Computes an answer: a message of the SDK as bytes, or an object for JSON."""


async def answer_of(work: Work, request_id: str) -> Answer:
    """Computes an answer; a failure is an answer too."""
    try:
        return Answer.from_value(await work())
    except (RequestError, AjetError, ContextOverflow) as error:
        return Answer.failed(str(error))
    except Exception as error:  # noqa: BLE001  # the edge of a server: the client gets one line
        logger.exception(f"ajet serve --tinker: request {request_id} failed")
        return Answer.failed(f"{type(error).__name__}: {error}", "server")


class Futures:
    """The requests under way by request_id; used on the server's event loop alone."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self._tasks: dict[str, asyncio.Task[Answer]] = {}
        self._retrieved: OrderedDict[str, None] = OrderedDict()
        self._is_closed = False

    def start(self, request_id: str, work: Work) -> None:
        """Starts a request that waits for no other, unless it was started before."""
        if request_id in self._pending or self._journal.answer(request_id) is not None:
            return

        def end(task: asyncio.Task[Answer]) -> None:
            if self._is_closed:
                return
            cancelled = Answer.failed("the request was cancelled by the client")
            self.finish(request_id, cancelled if task.cancelled() else task.result())
            self._journal.drop_requests([request_id])
            del self._tasks[request_id]

        self.add(request_id)
        self._tasks[request_id] = asyncio.ensure_future(answer_of(work, request_id))
        self._tasks[request_id].add_done_callback(end)

    def add(self, request_id: str) -> asyncio.Future[Answer]:
        """Returns the future of a request that `finish` ends."""
        self._pending[request_id] = asyncio.get_running_loop().create_future()
        return self._pending[request_id]

    def finish(self, request_id: str, answer: Answer, *, is_kept: bool = True) -> None:
        """Stores the answer and gives it to those who wait. With `is_kept` a restarted server has
        the request to compute it again."""
        if self._is_closed:
            return
        try:
            self._journal.add_answer(request_id, answer)
            if not is_kept:
                self._journal.forget_body(request_id)
        except AjetError as error:  # a full disk: whoever waits must hear of it
            answer = Answer.failed(str(error), "server")
        self._pending.pop(request_id).set_result(answer)

    async def retrieve(self, request_id: str, wait_s: float) -> Answer | None:
        """Waits for an answer, for `wait_s` at most. Raises `RequestError` (404) if there is no
        such request."""
        answer = self._journal.answer(request_id)
        if answer is None and (future := self._pending.get(request_id)) is not None:
            await asyncio.wait({future}, timeout=wait_s)
            if not future.done():
                return None
            answer = future.result()
        if answer is None:
            raise RequestError(f"there is no request {request_id}, or no more", status=404)
        self._retrieved[request_id] = None
        self._retrieved.move_to_end(request_id)
        while len(self._retrieved) > MAX_RETRIEVED:
            self._journal.drop_answer(self._retrieved.popitem(last=False)[0])
        return answer

    def close(self) -> None:
        """Stores no more answers: what is under way fails now, and begins again after a restart."""
        self._is_closed = True

    def cancel(self, request_id: str) -> None:
        """Cancels a request that `start` began."""
        if (task := self._tasks.get(request_id)) is not None:
            task.cancel()


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that waits for its turn."""

    request_id: str
    work: Work
    changes_model: bool
    num_bytes: int


class RequestQueue:
    """The requests of one model, which run in the order of their seq_id, however they arrive. One
    that arrives again, because its answer was lost on the way, gets the same request_id and changes
    nothing."""

    def __init__(self, model_id: str, futures: Futures, next_id: int = 1) -> None:
        """Requests before `next_id` are in the model's weights already."""
        self._model_id, self._futures = model_id, futures
        self._next_id = next_id
        self._early: dict[int, Queued] = {}
        self._early_bytes, self._ready_bytes = 0, 0
        self._ready: asyncio.Queue[Queued | None] = asyncio.Queue()
        self._runner: asyncio.Task[None] | None = None

    def submit(
        self, seq_id: int, work: Work, *, changes_model: bool = True, num_bytes: int = 0
    ) -> str:
        """Queues a request of so many bytes, unless it came before, and returns its request_id. One
        that does not change its model is never computed again."""
        request_id = f"{self._model_id}:{seq_id}"
        if seq_id < 1:
            raise RequestError(f"seq_id is {seq_id}: it counts the requests of a model from 1")
        if seq_id < self._next_id or seq_id in self._early:
            return request_id
        if seq_id > self._next_id + MAX_EARLY:
            raise RequestError(
                f"seq_id is {seq_id}, and {self._next_id} has not come: send it first"
            )
        # Early ones must not keep out the one that they wait for.
        waiting = self._ready_bytes + (self._early_bytes if seq_id != self._next_id else 0)
        if waiting + num_bytes > MAX_WAITING_BYTES:
            raise RequestError(
                f"more than {MAX_WAITING_BYTES} bytes of this model's requests wait: send it later",
                status=429,
            )
        self._futures.add(request_id)
        self._early[seq_id] = Queued(request_id, work, changes_model, num_bytes)
        self._early_bytes += num_bytes
        while (ready := self._early.pop(self._next_id, None)) is not None:
            self._early_bytes -= ready.num_bytes
            self._ready_bytes += ready.num_bytes
            self._ready.put_nowait(ready)
            self._next_id += 1
        if self._runner is None:
            self._runner = asyncio.ensure_future(self._run())
        return request_id

    async def _run(self) -> None:
        while (queued := await self._ready.get()) is not None:
            answer = await answer_of(queued.work, queued.request_id)
            self._ready_bytes -= queued.num_bytes
            self._futures.finish(queued.request_id, answer, is_kept=queued.changes_model)

    def close(self) -> None:
        """Lets the request under way end, and fails those that wait."""
        waiting: list[Queued | None] = list(self._early.values())
        while not self._ready.empty():
            waiting.append(self._ready.get_nowait())
        for queued in waiting:
            if queued is not None:
                answer = Answer.failed(f"model {self._model_id} was unloaded")
                self._futures.finish(queued.request_id, answer)
        self._ready.put_nowait(None)
