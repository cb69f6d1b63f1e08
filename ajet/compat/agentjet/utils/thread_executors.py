"""Provides AgentJet's `ajet.utils.thread_executors`: threads that run a swarm client's episodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any

from loguru import logger

from ajet.client import RunOver

__all__ = ["BoundedThreadPoolExecutor", "PeriodicDrainThreadPoolExecutor"]

RETRY_WAIT_S = 1.0


class BoundedThreadPoolExecutor:
    """Runs calls in threads; `submit` waits while `max_queue_size` calls are unfinished."""

    def __init__(
        self, max_workers: int, max_queue_size: int = 100, *, auto_retry: bool = False
    ) -> None:
        self._executor = ThreadPoolExecutor(max_workers)
        self._free = Semaphore(max_queue_size)
        self._auto_retry = auto_retry

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        self._free.acquire()
        future = self._executor.submit(self._call, fn, args, kwargs)
        future.add_done_callback(lambda _: self._free.release())
        return future

    def shutdown(self, wait: bool = True) -> None:
        self._executor.shutdown(wait=wait)

    def _call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        while True:
            try:
                return fn(*args, **kwargs)
            except (RunOver, TypeError):  # no later call can succeed
                raise
            except Exception as error:  # the user's function raises anything
                if not self._auto_retry:
                    raise
                logger.warning("an episode failed and is run again: {!r}", error)
                time.sleep(RETRY_WAIT_S)


class PeriodicDrainThreadPoolExecutor(BoundedThreadPoolExecutor):
    """Waits for all calls after every `workers` of them, if they are submitted by
    `submit_with_periodic_drain`."""

    def __init__(
        self,
        workers: int = 100,
        max_parallel: int | None = None,
        auto_retry: bool = True,
        block_first_run: bool = False,
    ) -> None:
        super().__init__(max_parallel or workers, workers, auto_retry=auto_retry)
        self._workers, self._waits_once = workers, block_first_run
        self.current_futures: list[Future[Any]] = []

    def submit_with_periodic_drain(
        self, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Future[Any], list[Any]]:
        """Returns the call's future, and the results of the calls that it waited for."""
        results: list[Any] = []
        if len(self.current_futures) >= self._workers:
            results = [future.result() for future in self.current_futures]
            self.current_futures.clear()
        future = self.submit(fn, *args, **kwargs)
        self.current_futures.append(future)
        if self._waits_once:
            self._waits_once = False
            future.result()
        return future, results
