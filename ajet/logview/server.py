"""Serves the page of one run folder to this machine.

    with LogviewServer(run, port=8181) as server:     # port 0: any free one
        print(server.url)                             # http://127.0.0.1:8181

    GET /                        the page        GET /api/run             name, filters' choices
    GET /static/{file}           its parts       GET /api/episodes?…      a page of the list
                                                 GET /api/episode/{id}    one episode

It listens on the loopback interface alone, reads only, and answers only requests whose Host header
names this machine: a web site that points its own name at 127.0.0.1 gets nothing. All data of an
episode reaches the page as JSON and is inserted as text, and the page may load nothing from other
servers (Content-Security-Policy).

Not covered: other machines (use ssh -L), other users of this machine, live pushes (the page polls).
"""

from __future__ import annotations

import socket
import sqlite3
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ajet.core.errors import AjetError, ConfigError
from ajet.core.record.run_folder import RunFolder
from ajet.logview.page_data import episode_data, list_data, run_data, to_json
from ajet.logview.token_text import TokenText, tokenizer_of

DEFAULT_PORT = 8181
HEADER_S, MAX_CONNECTIONS = 10.0, 64
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/style.css": ("style.css", "text/css; charset=utf-8"),
    "/static/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/static/tokens.js": ("tokens.js", "text/javascript; charset=utf-8"),
}
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
    """Serves the page of one run. `start` returns at once."""

    def __init__(self, run: Path, port: int | None = None, header_s: float = HEADER_S) -> None:
        self.folder = RunFolder(run)
        self._http = _bind(port)
        self._http.header_s = header_s
        self._http.page = Page(self.folder)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> None:
        """Answers requests in a daemon thread."""
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops answering, and frees the port."""
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._thread = None
        self._http.server_close()

    def __enter__(self) -> LogviewServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Page:
    """Makes the answers, without HTTP. The tokenizer is loaded when the first episode is
    requested."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._text: TokenText | None = None

    def answer(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        """Returns the data behind an /api path; raises `KeyError` if there is no such path."""
        if path == "/api/run":
            return run_data(self._folder)
        if path == "/api/episodes":
            return list_data(self._folder, query)
        if path.startswith("/api/episode/"):
            name = unquote(path.removeprefix("/api/episode/"))
            return episode_data(self._folder, name, self._token_text())
        raise KeyError(path)

    def _token_text(self) -> TokenText:
        with self._lock:
            if self._text is None:
                self._text = TokenText(tokenizer_of(self._folder))
            return self._text


class _Server(ThreadingHTTPServer):
    """Closes connections that send no request in time, and the oldest of them when there are too
    many."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True
    page: Page
    header_s = HEADER_S

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: dict[socket.socket, float] = {}  # since when, the longest waiting first
        self._num_open = 0
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._num_open += 1
            self._waiting[request] = time.monotonic()
            if self._num_open > MAX_CONNECTIONS:
                _end(self._waiting, next(iter(self._waiting)))
        super().process_request(request, client_address)

    def has_request(self, connection: socket.socket) -> None:
        """Notes that a connection has sent its request, which is answered now."""
        with self._lock:
            self._waiting.pop(connection, None)

    def service_actions(self) -> None:
        """Is called about twice a second."""
        since = time.monotonic() - self.header_s
        with self._lock:
            for connection in [each for each, begun in self._waiting.items() if begun < since]:
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
    """Ends a connection; its thread reads the end and closes it."""
    del waiting[connection]
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server_version = "ajet"
    sys_version = ""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.has_request(self.connection)
        url = urlsplit(self.path)
        if not is_loopback_host(self.headers.get("Host", "")):
            return self._fail(HTTPStatus.FORBIDDEN, "this page answers to 127.0.0.1 and localhost")
        if url.path in STATIC:  # only these files, so that no path can leave the folder
            name, kind = STATIC[url.path]
            content = files("ajet.logview").joinpath("static", name).read_bytes()
            return self._send(HTTPStatus.OK, content, kind)
        self._answer(url.path, dict(parse_qsl(url.query, errors="replace")))

    def _answer(self, path: str, query: dict[str, str]) -> None:
        try:
            assert isinstance(self.server, _Server)
            data = self.server.page.answer(path, query)
        except KeyError:
            return self._fail(HTTPStatus.NOT_FOUND, "there is nothing here")
        except ConfigError as error:
            return self._fail(HTTPStatus.BAD_REQUEST, str(error))
        except (AjetError, sqlite3.Error) as error:
            return self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        self._send(HTTPStatus.OK, to_json(data), "application/json")

    def _fail(self, status: HTTPStatus, message: str) -> None:
        self._send(status, to_json({"error": message}), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because the terminal belongs to the run."""


def is_loopback_host(host: str) -> bool:
    """Returns whether a Host header names this machine. Any port is accepted, because ssh may
    forward another one."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdigit():
        name = host
    return name.lower() in LOOPBACK_NAMES


def _bind(port: int | None) -> _Server:
    """Returns a server bound to `port`. For None it takes the default port, or any free one if that
    is in use."""
    try:
        return _Server(("127.0.0.1", DEFAULT_PORT if port is None else port), _Handler)
    except OSError as error:
        if port is None:
            return _Server(("127.0.0.1", 0), _Handler)
        raise ConfigError(
            f"--port {port}: {error.strerror}; choose another, or 0 for any free one"
        ) from error
