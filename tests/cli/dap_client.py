"""A client of the Debug Adapter Protocol: what an editor says to debugpy, in a hundred lines.

with DapClient(folder) as editor:
    editor.launch("ajet.cli.launcher", ["debug", …], {workflow_py: [12]})
    stopped = editor.wait_for("stopped")
    editor.evaluate(stopped["threadId"], "reply['content']")
    editor.request("continue", threadId=stopped["threadId"])
    editor.wait_for("exited")["exitCode"]
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TIMEOUT_S = 600  # debugpy traces every import: a busy machine takes minutes


class DapClient:
    """Speaks to `python -m debugpy.adapter` over its standard streams."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = ""  # what the debugged process printed
        self._adapter = self._start()
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self._events: list[dict[str, Any]] = []
        self._number = 0
        self._pid: int | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _start(self) -> Any:
        """Something with a stdin and a stdout that speak the protocol."""
        return subprocess.Popen(
            [sys.executable, "-m", "debugpy.adapter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def __enter__(self) -> "DapClient":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # the debuggee, where a test failed half-way
        self._adapter.kill()
        self._adapter.communicate()

    def launch(self, module: str, args: list[str], breakpoints: dict[Path, list[int]]) -> None:
        """Start `python -m module args` with breakpoints set before its first line."""
        self.request("initialize", clientID="tests", adapterID="debugpy", pathFormat="path")
        launching = self._send(
            "launch",
            module=module,
            args=args,
            cwd=str(self.folder),
            python=[sys.executable],
            console="internalConsole",
            redirectOutput=True,
            justMyCode=False,
        )
        self.wait_for("initialized")
        for file, lines in breakpoints.items():
            asked = [{"line": line} for line in lines]
            answer = self.request("setBreakpoints", source={"path": str(file)}, breakpoints=asked)
            assert all(point["verified"] for point in answer["breakpoints"]), answer
        self.request("configurationDone")
        self._answer_to(launching)

    def attach(self, breakpoints: dict[Path, list[int]]) -> None:
        """Join a process that waits in `debugpy.wait_for_client`."""
        self.request("initialize", clientID="tests", adapterID="debugpy", pathFormat="path")
        attaching = self._send("attach", justMyCode=False)
        self.wait_for("initialized")
        for file, lines in breakpoints.items():
            asked = [{"line": line} for line in lines]
            self.request("setBreakpoints", source={"path": str(file)}, breakpoints=asked)
        self.request("configurationDone")
        self._answer_to(attaching)

    def evaluate(self, thread: int, expression: str) -> str:
        """The repr of an expression in the innermost frame of a stopped thread."""
        frame = self.frames(thread)[0]["id"]
        return self.request("evaluate", expression=expression, frameId=frame, context="watch")[
            "result"
        ]

    def frames(self, thread: int) -> list[dict[str, Any]]:
        return self.request("stackTrace", threadId=thread)["stackFrames"]

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._answer_to(self._send(command, **arguments))

    def wait_for(self, event: str) -> dict[str, Any]:
        """The body of the next event of this name."""
        while True:
            for at, message in enumerate(self._events):
                if message["event"] == event:
                    return self._events.pop(at).get("body", {})
            self._events.append(self._next())

    def _send(self, command: str, **arguments: Any) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command}
        body = json.dumps({**message, "arguments": arguments}).encode()
        assert self._adapter.stdin is not None
        self._adapter.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._adapter.stdin.flush()
        return self._number

    def _answer_to(self, number: int) -> dict[str, Any]:
        while True:
            message = self._next()
            if message["type"] == "response" and message["request_seq"] == number:
                assert message["success"], message
                return message.get("body", {})
            if message["type"] == "event":
                self._events.append(message)

    def _next(self) -> dict[str, Any]:
        message = self._messages.get(timeout=TIMEOUT_S)
        body = message.get("body", {})
        if message.get("event") == "output" and body.get("category") in ("stdout", "stderr"):
            self.output += body["output"]
        if message.get("event") == "process":
            self._pid = body.get("systemProcessId")
        return message

    def _read(self) -> None:
        stream = self._adapter.stdout
        assert stream is not None
        while line := stream.readline():
            length = int(line.split(b":")[1])
            stream.readline()  # the blank one
            self._messages.put(json.loads(stream.read(length)))


class AttachedClient(DapClient):
    """Speaks to a process that waits at a port of this machine."""

    def __init__(self, folder: Path, port: int) -> None:
        self._port = port
        super().__init__(folder)

    def _start(self) -> Any:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        streams = {"stdin": self._socket.makefile("wb"), "stdout": self._socket.makefile("rb")}
        return SimpleNamespace(**streams)

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
