"""Serves the page over one or more run folders to this machine.

    with LogviewServer([run], port=8181) as server:   # port 0: any free one
        print(server.url)                             # http://127.0.0.1:8181

    GET /, /static/{file}        the page and its parts
    GET /api/runs                all runs in a table, and where their configs differ
    GET /api/difference          two starts of runs: config and code (run_difference.py)
    GET /api/events              server-sent events: which run has written a step
    GET /api/run, origin, metrics, changes, steps, step, tasks, task, compare, group, episodes,
        episode/{id}, token
                                 of the run that ?run=NAME names, or of the first (run_page.py);
                                 NAME/forks/FOLDER are forks of one of its episodes

It listens on the loopback interface alone and only reads. Requests need a Host header (and an
Origin, if they have one) of this machine, so a web site that points its name at 127.0.0.1 gets
nothing. Data of episodes reaches the page as JSON and is inserted as text, and the page may load
nothing from other servers (Content-Security-Policy).
"""

from __future__ import annotations

import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from traceback import format_exception
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from loguru import logger

from ajet.core.errors import AjetError, ConfigError, DataError
from ajet.core.errors.codes import Code
from ajet.core.net.address import is_loopback_host, is_loopback_origin
from ajet.core.record.run_folder import RunFolder
from ajet.core.text.error_text import one_line
from ajet.core.text.redaction import redact
from ajet.read.logview.run_difference import Start, difference, starts_of
from ajet.read.logview.run_page import RunPage, compared_configs, to_json

DEFAULT_PORT = 8181
HEADER_S, MAX_CONNECTIONS, MAX_STREAMS = 10.0, 64, 16
LOOK_S = 1.0
QUERIES = ("metrics", "episodes", "step", "tasks", "task", "compare", "token", "group")
"""The methods of `RunPage` that answer the query of an address."""
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LogviewServer:
    """Serves the page of some runs. `start` returns at once."""

    def __init__(
        self, runs: Sequence[Path], port: int | None = None, header_s: float = HEADER_S
    ) -> None:
        self._http = _bind(port)
        self._http.header_s = header_s
        self._http.pages = Pages(runs)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> None:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops answering, ends the streams of events and frees the port."""
        self._http.is_over.set()
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._thread = None
        self._http.server_close()
        self._http.pages.close()

    def __enter__(self) -> LogviewServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Pages:
    """Answers about some runs, without HTTP. A run's name is the last part of its folder's path,
    with as many more parts as it takes to be unique."""

    def __init__(self, runs: Sequence[Path]) -> None:
        folders = list(dict.fromkeys(Path(run).absolute() for run in runs))
        self.by_name = {
            name: RunPage(RunFolder(path))
            for name, path in zip(_names(folders), folders, strict=True)
        }
        self._forks: dict[str, RunPage] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        for page in [*self.by_name.values(), *self._forks.values()]:
            page.close()

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """Returns the data behind an /api path. Raises `DataError` for unknown paths and runs."""
        name = path.removeprefix("/api/")
        if name == "runs":
            return {
                "runs": [{**p.comparison(), "name": name} for name, p in self.by_name.items()],
                "differences": compared_configs(self.by_name) if len(self.by_name) > 1 else [],
            }
        if name == "difference":
            return self._difference(query)
        page = self._page(query.get("run") or next(iter(self.by_name)))
        if name.startswith("episode/"):
            return page.episode(unquote(name.removeprefix("episode/")))
        if name in ("run", "origin", "changes", "steps"):
            return getattr(page, name)()
        if name in QUERIES:
            return getattr(page, name)(query)
        raise DataError(f"{path}: no such page", code=Code.OPTION_VALUE)

    def _page(self, name: str) -> RunPage:
        """Returns the page of a run, or of forks of one of its episodes: RUN/forks/FOLDER."""
        if name in self.by_name:
            return self.by_name[name]
        run, _, folder = name.rpartition("/forks/")
        with self._lock:
            if name not in self._forks and run in self.by_name:
                forks = self.by_name[run].folder.forks
                # Names are compared, never joined to a path, so that none can leave the folder.
                for fork in forks.iterdir() if forks.is_dir() else ():
                    if fork.name == folder and not fork.is_symlink():
                        self._forks[name] = RunPage(RunFolder(fork))
            if name not in self._forks:
                raise DataError(f"no run {name!r}", code=Code.RUN_NOT_FOUND)
            return self._forks[name]

    def _difference(self, query: dict[str, str]) -> dict[str, Any]:
        """Returns the differences between two starts, `left` and `right`, each as RUN:NUMBER: by
        default the last two of `run`, or else the last one of another run and the run's only
        one."""
        starts = {
            f"{name}:{number}": (Start(page.folder, int(number) if number else None), text)
            for name, page in self.by_name.items()
            for number, text in starts_of(page.folder).items()
        }
        # Without a run, or with an unknown one, all starts count.
        of_run = [name for name in starts if name.rpartition(":")[0] == query.get("run")]
        of_others = [name for name in starts if name not in of_run]
        of_run = of_run or list(starts)
        right_name = query.get("right") or of_run[-1]
        left_name = query.get("left") or (
            of_run[-2] if len(of_run) > 1 else [*of_others, of_run[0]][0]
        )
        for name in (left_name, right_name):
            if name not in starts:
                raise DataError(f"no start {name!r}", code=Code.RUN_NOT_FOUND)
        return {
            "left": left_name,
            "right": right_name,
            "starts": [{"name": name, "text": text} for name, (_, text) in starts.items()],
            **difference(starts[left_name][0], starts[right_name][0]),
        }

    def states(self) -> dict[str, object]:
        """Returns a value for each run that changes when the run has written more."""
        return {name: page.state() for name, page in self.by_name.items()}


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns for each path the shortest suffix that no other path has."""
    return [
        next(
            "/".join(folder.parts[-length:])
            for length in range(1, len(folder.parts) + 1)
            if sum(path.parts[-length:] == folder.parts[-length:] for path in folders) == 1
        )
        for folder in folders
    ]


class _Server(ThreadingHTTPServer):
    """Closes connections that send no request in time, and the oldest one of too many."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True
    pages: Pages
    header_s = HEADER_S

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: dict[socket.socket, float] = {}  # when it was opened, oldest first
        self._num_open = 0
        self._lock = threading.Lock()
        self.is_over = threading.Event()
        self.streams = threading.BoundedSemaphore(MAX_STREAMS)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._num_open += 1
            self._waiting[request] = time.monotonic()
            if self._num_open > MAX_CONNECTIONS:
                _end(self._waiting, next(iter(self._waiting)))
        super().process_request(request, client_address)

    def has_request(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)

    def service_actions(self) -> None:
        """Closes connections that waited too long; the base class calls this twice a second."""
        since = time.monotonic() - self.header_s
        with self._lock:
            for connection in [
                waiting for waiting, begun in self._waiting.items() if begun < since
            ]:
                _end(self._waiting, connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._num_open -= 1
            self._waiting.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that close the connection in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _end(waiting: dict[socket.socket, float], connection: socket.socket) -> None:
    """Shuts a connection down; its thread notices and closes it."""
    del waiting[connection]
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server_version = "ajet"
    sys_version = ""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.has_request(self.connection)
        try:
            url = urlsplit(self.path)
        except ValueError as error:  # "http://["
            return self._fail(HTTPStatus.BAD_REQUEST, f"invalid address: {error}")
        origin, hosts = self.headers.get("Origin"), self.headers.get_all("Host") or [""]
        if not all(map(is_loopback_host, hosts)) or not (
            origin is None or is_loopback_origin(origin)
        ):
            return self._fail(HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost")
        if url.path in STATIC:  # only these files, so that no path can leave the folder
            content, media_type = STATIC[url.path]
            return self._send(HTTPStatus.OK, content.read_bytes(), f"{media_type}; charset=utf-8")
        if url.path == "/api/events":
            return self._stream(self.server)
        self._answer(self.server, url.path, dict(parse_qsl(url.query, errors="replace")))

    def _answer(self, server: _Server, path: str, query: dict[str, str]) -> None:
        try:
            data = server.pages.answer(path, query)
        except DataError as error:
            return self._fail(HTTPStatus.NOT_FOUND, str(error))
        except ConfigError as error:
            return self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except (AjetError, sqlite3.Error) as error:
            return self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except Exception as error:  # noqa: BLE001  # the edge of a server: an answer, and the log
            logger.error(redact("".join(format_exception(error))))
            return self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, one_line(error))
        self._send(HTTPStatus.OK, to_json(data), "application/json")

    def _stream(self, server: _Server) -> None:
        """Sends an event whenever a run has written more, until the browser or the server stops."""
        if not server.streams.acquire(blocking=False):
            return self._fail(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
        try:
            self._begin(HTTPStatus.OK, "text/event-stream")
            self._send_events(server)
        except (ConnectionError, AjetError):  # the browser left, or reconnects and gets the error
            self.close_connection = True
        finally:
            server.streams.release()

    def _send_events(self, server: _Server) -> None:
        seen = server.pages.states()
        self.wfile.write(b": looking\n\n")
        while not server.is_over.wait(LOOK_S):
            # A browser sends nothing on this connection, so reading b"" means that it closed it.
            with suppress(BlockingIOError):
                if self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                    break
            states = server.pages.states()
            for name in (run for run in states if states[run] != seen[run]):
                steps = server.pages.by_name[name].metrics_of_run.rows()
                news = {"run": name, "step": max(steps, default=0)}
                self.wfile.write(b"data: " + to_json(news) + b"\n\n")
            seen = states

    def _fail(self, status: HTTPStatus, message: str) -> None:
        self._send(status, to_json({"error": message}), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, media_type: str) -> None:
        self._begin(status, media_type, ("Content-Length", str(len(content))))
        self.wfile.write(content)

    def _begin(self, status: HTTPStatus, media_type: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*HEADERS.items(), ("Content-Type", media_type), *more):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because the terminal belongs to the run."""


def _static_files() -> dict[str, tuple[Traversable, str]]:
    """Returns the files of the page and their media types, by the paths of their URLs."""
    by_path, folders = {}, [("/static", files("ajet.read.logview").joinpath("static"))]
    for path, folder in folders:
        for file in folder.iterdir():
            if file.is_dir():
                folders.append((f"{path}/{file.name}", file))
            elif media_type := KINDS.get(Path(file.name).suffix):
                by_path[f"{path}/{file.name}"] = (file, media_type)
    by_path["/"] = by_path.pop("/static/index.html")
    return by_path


def _bind(port: int | None) -> _Server:
    """Returns a server bound to `port`; for None to the default port, or else to any free one."""
    try:
        return _Server(("127.0.0.1", DEFAULT_PORT if port is None else port), _Handler)
    except OSError as error:
        if port is None:
            return _Server(("127.0.0.1", 0), _Handler)
        raise ConfigError(
            f"--port {port}: {error.strerror}; choose another, or 0 for any free one",
            code=Code.PORT_IN_USE,
        ) from error


STATIC = _static_files()
