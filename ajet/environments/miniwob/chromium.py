"""Runs one headless Chromium for all environments of this process, over the DevTools protocol.

A tab's clock is virtual: it stands still, and `advance` moves it. So timers and animations do not
depend on how fast the machine is, and take no time. Every failure is an `EnvironmentFault`.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",  # a container's /dev/shm has 64 MB
    "--disable-extensions",
    "--disable-gpu",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no host name is looked up
    "--no-first-run",
)
TIMEOUT_S = 30.0
WIDTH, HEIGHT = 500, 400
LOAD_MS = 1000
"""How far the clock moves while a page loads."""
START_S = 1.5e9
"""The date at which every tab's clock begins."""
_starting = threading.Lock()
_started: list[Chromium] = []
"""This process's Chromium, once there is one."""


class Chromium:
    """A running Chromium. It reads its standard input for commands, so no port is open, and it ends
    with this process however that ends. Threads share it: a call waits for the answer with its
    number, and a reader thread hands the answers out."""

    def __init__(self, executable: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ajet-chromium-"))
        flags = [*FLAGS, f"--user-data-dir={self._folder}"]
        if os.geteuid() == 0:  # its sandbox refuses to start as root
            flags.append("--no-sandbox")
        # It expects commands on descriptor 3 and answers on 4.
        wired = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh", executable, *flags]
        with (self._folder / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                guarded(wired), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._waiting: dict[tuple[str, int | str], Future[Any]] = {}
        self.is_running = True
        threading.Thread(target=self._read, name="ajet-chromium", daemon=True).start()
        atexit.register(self.end)

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """Returns the result of a command; `session` is that of the tab it is for."""
        number = next(self._numbers)
        answer = self.expect(session, number)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        with self._lock, suppress(BrokenPipeError):  # the reader thread fails the call
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(message).encode() + b"\0")
            self.process.stdin.flush()
        return self.result(answer, method)

    def expect(self, session: str, number_or_event: int | str) -> Future[Any]:
        """Returns the future of an answer, or of the next event of this name in a tab."""
        future: Future[Any] = Future()
        with self._lock:
            if not self.is_running:
                raise EnvironmentFault(self._ended())
            self._waiting[session, number_or_event] = future
        return future

    def result(self, future: Future[Any], awaited: str) -> Any:
        try:
            return future.result(TIMEOUT_S)
        except TimeoutError:
            raise EnvironmentFault(f"Chromium: no {awaited} within {TIMEOUT_S:g} s") from None

    def end(self) -> None:
        """Ends the process and removes its profile."""
        atexit.unregister(self.end)
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        for message in self._messages():
            session, method = message.get("sessionId", ""), message.get("method", "")
            if method == "Inspector.targetCrashed":
                self._fail("Chromium: the tab crashed", session)
                continue
            with self._lock:
                future = self._waiting.pop((session, message.get("id", method)), None)
            if future is None:
                continue
            if "error" in message:
                future.set_exception(EnvironmentFault(f"Chromium: {message['error']['message']}"))
            else:
                future.set_result(message.get("result"))
        with self._lock:
            self.is_running = False
        self._fail(self._ended(), None)

    def _messages(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        incomplete = b""
        while chunk := os.read(self.process.stdout.fileno(), 1 << 16):
            *complete, incomplete = (incomplete + chunk).split(b"\0")
            yield from map(json.loads, complete)

    def _fail(self, reason: str, session: str | None) -> None:
        """Ends the calls to a tab, or all of them, with an EnvironmentFault."""
        with self._lock:
            keys = [key for key in self._waiting if session is None or key[0] == session]
            futures = [self._waiting.pop(key) for key in keys]
        for future in futures:
            future.set_exception(EnvironmentFault(reason))

    def _ended(self) -> str:
        with suppress(OSError):  # the profile is removed
            lines = (self._folder / "errors").read_text(errors="replace").splitlines()
            if lines:
                return f"Chromium ended: {lines[-1][:200]}"
        return "Chromium ended"


class Tab:
    """One page in a browser context that no other tab shares."""

    def __init__(self, chromium: Chromium) -> None:
        self._chromium = chromium
        context = chromium.call("Target.createBrowserContext", disposeOnDetach=True)
        self._context: str = context["browserContextId"]
        target = chromium.call(
            "Target.createTarget",
            url="about:blank",
            browserContextId=self._context,
            width=WIDTH,
            height=HEIGHT,
        )
        attached = chromium.call("Target.attachToTarget", flatten=True, targetId=target["targetId"])
        self._session: str = attached["sessionId"]
        self._call("Page.enable")

    def open(self, url: str) -> None:
        """Loads a page and returns when it is complete."""
        loaded = self._chromium.expect(self._session, "Page.loadEventFired")
        self._call("Emulation.setVirtualTimePolicy", policy="pause", initialVirtualTime=START_S)
        answer = self._call("Page.navigate", url=url)
        if "errorText" in answer:
            raise EnvironmentFault(f"Chromium: {url}: {answer['errorText']}")
        self.advance(LOAD_MS)
        self._chromium.result(loaded, "end of loading")

    def evaluate(self, expression: str) -> Any:
        """Returns the JSON value of an expression of JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"].get("exception", {}).get("description", "?")
            raise EnvironmentFault(f"Chromium: the page raised {thrown.splitlines()[0][:200]}")
        return answer["result"].get("value")

    def advance(self, milliseconds: int) -> None:
        """Moves the page's clock, and runs the timers that become due. The clock waits for files
        that the page loads: without its pictures an element may have no size."""
        moved = self._chromium.expect(self._session, "Emulation.virtualTimeBudgetExpired")
        policy = "pauseIfNetworkFetchesPending"
        self._call("Emulation.setVirtualTimePolicy", policy=policy, budget=milliseconds)
        self._chromium.result(moved, f"end of {milliseconds} ms")

    def click(self, x: float, y: float) -> None:
        button = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self._call("Input.dispatchMouseEvent", type="mousePressed", **button)
        self._call("Input.dispatchMouseEvent", type="mouseReleased", **button)

    def type(self, text: str) -> None:
        """Presses a key for each character, in the element that has the focus."""
        for character in text:
            self._call("Input.dispatchKeyEvent", type="keyDown", key=character, text=character)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=character)

    def close(self) -> None:
        if self._chromium.is_running:
            self._chromium.call("Target.disposeBrowserContext", browserContextId=self._context)

    def _call(self, method: str, **params: Any) -> Any:
        return self._chromium.call(method, self._session, **params)


def new_tab(wanted_by: str) -> Tab:
    """Returns a new tab of this process's Chromium, which is started if none runs."""
    with _starting:
        if not _started or not _started[-1].is_running:
            for ended in _started:
                ended.end()
            _started[:] = [Chromium(chromium_path(wanted_by))]
    return Tab(_started[-1])


def chromium_path(wanted_by: str) -> str:
    """Returns the browser's path. Raises ConfigError where none is installed."""
    path = next(filter(None, map(shutil.which, EXECUTABLES)), None)
    if path is None:
        raise ConfigError(
            f"{wanted_by}: PATH has no {', '.join(EXECUTABLES)}: install one (Debian: chromium)",
            code=Code.PROGRAM_MISSING,
        )
    return path
