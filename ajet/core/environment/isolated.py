"""Runs environments in worker processes, so that their crashes and leaks do not harm the run.

run ── a socket of JSON lines ──> worker 1   environments 1 … max_env_num_per_worker
                                  worker 2   …                          (worker.py)
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ajet.core.environment.environment import Frame
from ajet.core.environment.frames import frame_problem
from ajet.core.environment.registry import EnvironmentMaker
from ajet.core.environment.returns import ResetResult, StepResult
from ajet.core.errors import EnvironmentFault
from ajet.core.process.process_guard import guarded

MAX_MESSAGE_BYTES = 2**27
"""The limit of one message, which a large picture fits into."""
CLOSE_TIMEOUT_S = 2.0
_workers: list[Worker] = []


class ProcessEnvironment:
    """Calls one environment in a worker process."""

    def __init__(
        self, maker: EnvironmentMaker, step_timeout_s: float, max_env_num_per_worker: int
    ) -> None:
        self._maker = maker
        self._name = maker.environment_class.__name__
        self._timeout_s = step_timeout_s
        self._worker = _worker_with_capacity(max_env_num_per_worker)
        self._number = self._worker.add()
        self.instruction = ""

    async def make(self) -> None:
        """Makes the environment in its worker. Raises EnvironmentFault where that fails."""
        arguments = {
            "env_type": self._maker.env_type,
            "env_config": dict(self._maker.env_config),
            "base_dirs": [str(folder) for folder in self._maker.base_dirs],
        }
        self.instruction = await self._ask("", "make", arguments)

    async def reset(self, seed: int, options: Mapping[str, Any]) -> ResetResult:
        return ResetResult(
            *await self._ask(".reset", "reset", {"seed": seed, "options": dict(options)})
        )

    async def step(self, action: str) -> StepResult:
        return StepResult(*await self._ask(".step", "step", {"action": action}))

    async def render(self) -> Frame:
        return unpack_frame(await self._ask(".render", "render", {}))

    async def close(self) -> None:
        """Closes the environment, and ends the worker after its last one."""
        try:
            if not self._worker.is_retired:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._worker.ask(self._number, "close", {})
        except (EnvironmentFault, TimeoutError):
            self._worker.is_retired = True
        finally:
            self._worker.remove()

    async def _ask(self, method: str, call: str, arguments: Mapping[str, Any]) -> Any:
        request = asyncio.ensure_future(self._worker.ask(self._number, call, arguments))
        try:
            done, _ = await asyncio.wait({request}, timeout=self._timeout_s)
        finally:
            # Also when this caller is cancelled: the call still occupies the environment's thread.
            if not request.done():
                request.cancel()
                self._worker.is_retired = True
        if done:
            return request.result()
        raise EnvironmentFault(
            f"{self._name}{method}() gave no answer within {self._timeout_s:g} s (step_timeout_s)"
        )


class PendingCalls:
    """Holds the calls of one event loop that a process has not answered yet, each by its number.
    `prefix` begins each fault.

    {"number": 3, …}  ─────>  the process  ─────>  {"number": 3, "result": …}, or "fault": "…"
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._last_number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def begin(self) -> tuple[int, asyncio.Future[Any]]:
        """Returns the number of a new call and the future of its answer."""
        self._last_number += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._last_number] = answer
        return self._last_number, answer

    def forget(self, number: int) -> None:
        """Removes a call whose answer nobody waits for."""
        self._waiting.pop(number, None)

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Passes an answer to its caller; one that nobody waits for is dropped."""
        waiting = self._waiting.get(message["number"])
        if waiting is None or waiting.done():
            return
        if "fault" in message:
            waiting.set_exception(EnvironmentFault(f"{self._prefix}{message['fault']}"))
        else:
            waiting.set_result(message["result"])

    def fail(self, reason: str) -> None:
        """Ends all calls with an EnvironmentFault."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EnvironmentFault(reason))


class Worker:
    """Controls one worker process, which holds environments. It starts when no other has capacity
    for one, and ends when its last one is closed. A call that hangs retires the worker: it gets no
    further environment. The process guard (core/process/process_guard.py) ends the children that
    environments leaked, with the worker or the run."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.loop = asyncio.get_running_loop()
        self.is_retired = False
        self.num_environments = 0
        self._last_number = 0
        self._calls = PendingCalls()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                # -P: files of the current folder must not hide packages.
                guarded([sys.executable, "-P", "-m", "ajet.core.environment.worker"]),
                stdin=theirs.fileno(),
                stdout=2,  # to stderr: what environments print must not reach the socket
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._streams = asyncio.ensure_future(
            asyncio.open_connection(sock=ours, limit=MAX_MESSAGE_BYTES)
        )
        self._reading = asyncio.ensure_future(self._read())

    def add(self) -> int:
        """Reserves capacity for one environment and returns its number in this worker."""
        self.num_environments += 1
        self._last_number += 1
        return self._last_number

    def remove(self) -> None:
        """Removes one environment and ends the process with the last one."""
        self.num_environments -= 1
        if self.num_environments == 0:
            self.end()

    async def ask(self, environment: int, call: str, arguments: Mapping[str, Any]) -> Any:
        """Sends a call and returns its result. Raises EnvironmentFault where the environment or the
        worker fails."""
        # The shield keeps the connection when this caller is cancelled; other calls share it.
        _, writer = await asyncio.shield(self._streams)
        number, answer = self._calls.begin()
        message = {"number": number, "environment": environment, "call": call, **arguments}
        try:
            if self._reading.done():
                raise EnvironmentFault(self._ended())
            writer.write(json.dumps(message).encode() + b"\n")
            return await answer
        finally:
            self._calls.forget(number)

    def end(self) -> None:
        """Ends the process and its children."""
        _workers.remove(self)
        self._reading.cancel()
        self.process.terminate()
        self.process.wait()

        def close_writer(streams: asyncio.Future[Any]) -> None:
            if not streams.cancelled() and streams.exception() is None:
                streams.result()[1].close()

        self._streams.add_done_callback(close_writer)  # the connection may still be opening

    async def _read(self) -> None:
        """Gives each answer to its caller, until the worker ends."""
        reader, _ = await asyncio.shield(self._streams)
        with suppress(ConnectionError, ValueError):  # it died, or sent no valid message
            while line := await reader.readline():
                self._calls.deliver(json.loads(line))
        self.is_retired = True
        self._calls.fail(self._ended())

    def _ended(self) -> str:
        code = self.process.poll()
        return "the environment's process ended" + ("" if code is None else f" (exit code {code})")


def _worker_with_capacity(limit: int) -> Worker:
    """Returns the first worker that takes another environment, or a new one."""
    loop = asyncio.get_running_loop()  # a connection belongs to the loop that opened it
    for worker in _workers:
        has_capacity = worker.num_environments < worker.limit == limit
        if has_capacity and worker.loop is loop and not worker.is_retired:
            return worker
    worker = Worker(limit)
    _workers.append(worker)
    return worker


def pack_frame(frame: Any) -> Any:
    """Returns a frame as JSON values. Raises EnvironmentFault for anything else."""
    problem = frame_problem(frame)
    if problem is not None:
        raise EnvironmentFault(f"its frame {problem}")
    if isinstance(frame, str):
        return frame
    pixels = np.ascontiguousarray(frame)
    return {"shape": frame.shape, "pixels": base64.b64encode(pixels.tobytes()).decode()}


def unpack_frame(packed: Any) -> Frame:
    """Inverts `pack_frame`."""
    if isinstance(packed, str):
        return packed
    pixels = np.frombuffer(base64.b64decode(packed["pixels"]), np.uint8)
    return pixels.reshape(packed["shape"])
