"""Serves the page over one or more run folders, to this machine unless another address is given,
and only reads. The page may load nothing from other servers (Content-Security-Policy), and data of
episodes reaches it as JSON that it inserts as text.
"""

from __future__ import annotations

import asyncio
import mimetypes
import socket
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from traceback import format_exception
from typing import Any

from loguru import logger
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ajet.core.errors import AjetError, CheckpointError, ConfigError, DataError
from ajet.core.errors.codes import Code
from ajet.core.net.address import is_loopback_host, is_loopback_origin, is_numeric_host
from ajet.core.net.http_server import MIB, ServerLimits, ServerThread, listening_socket
from ajet.core.record.run_folder import RunFolder
from ajet.core.text.error_text import one_line
from ajet.core.text.redaction import redact
from ajet.read.logview.run_difference import Start, difference, starts_of
from ajet.read.logview.run_page import RunPage, compared_configs, to_json
from ajet.read.recorded_run import require_run, runs_in

HOST, DEFAULT_PORT = "127.0.0.1", 8181
EVERY_HOST = "0.0.0.0"
HEADER_S, MAX_CONNECTIONS, MAX_STREAMS = 10.0, 64, 16
LOOK_S = 1.0
QUERIES = ("metrics", "episodes", "step", "tasks", "task", "compare", "token", "group")
"""The methods of `RunPage` that answer the query of an address."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATUSES = {DataError: 404, ConfigError: 400, AjetError: 500, sqlite3.Error: 500}
STATIC = Path(str(files("ajet.read.logview").joinpath("static")))


class LogviewServer:
    """Serves the page of some runs, also of those that begin later. `start` returns at once."""

    def __init__(
        self,
        roots: Sequence[Path],
        port: int | None = None,
        header_s: float = HEADER_S,
        host: str = HOST,
    ) -> None:
        """`roots` are run folders and folders of run folders."""
        self._listener = _listener(host, port)
        self._is_open = not is_loopback_host(host)
        self._limits = ServerLimits(
            header_s=header_s, max_connections=MAX_CONNECTIONS, max_body_bytes=MIB
        )
        self.pages = Pages(roots)
        self._events = Events(self.pages)
        self._thread: ServerThread | None = None

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{socket.gethostname() if host == EVERY_HOST else host}:{port}"

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def start(self) -> None:
        self._thread = ServerThread(
            make_app(self.pages, self._events, is_open=self._is_open),
            self._listener,
            self._limits,
            "ajet-page",
            server_header=False,
            headers=list(HEADERS.items()),
        )

    def stop(self) -> None:
        """Stops answering, ends the streams of events and frees the port."""
        self._events.is_over.set()
        if self._thread is not None:
            self._thread.close(finish_s=1)
            self._thread = None
        self._listener.close()
        self.pages.close()

    def __enter__(self) -> LogviewServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_app(pages: Pages, events: Events, *, is_open: bool = False) -> Starlette:
    """Returns the application. An open one also answers to this machine's name and addresses.

        GET /, /static/{file}        the page and its parts
        GET /api/runs                all runs in a table, and where their configs differ
        GET /api/difference          two starts of runs: config and code (run_difference.py)
        GET /api/image/{key}         an image of a run's prompts, of ?run=NAME as below
        GET /api/events              server-sent events: which run has written a step

    GET /api/run, status, …      of the run that ?run=NAME names, or of the first (run_page.py);
                                 NAME/forks/FOLDER are forks of one of its episodes
    """
    # Some systems say text/plain, which a browser refuses to run as a module.
    mimetypes.add_type("text/javascript", ".js")

    def data(request: Request) -> Response:  # not async: these read files, each in a thread
        query = {name: value for name, value in request.query_params.items() if value}
        return _json(200, pages.answer(request.path_params["name"], query))

    def image(request: Request) -> Response:
        run = pages.page(request.query_params.get("run"))
        found = run.images.image(request.path_params["key"])
        return Response(found.data, media_type=f"image/{found.format.lower()}")

    def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    return Starlette(
        routes=[
            Route("/", page),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/events", events),
            Route("/api/image/{key}", image),
            Route("/api/{name:path}", data),
        ],
        middleware=[Middleware(_only_this_machine, is_open=is_open)],
        exception_handlers=dict.fromkeys((*STATUSES, Exception), _failed),
    )


def _only_this_machine(app: App, *, is_open: bool) -> App:
    """Refuses requests whose Host or Origin is another machine: a web site that points its name at
    this address gets nothing."""
    names = {name.lower() for name in (socket.gethostname(), socket.getfqdn())} if is_open else {}

    def is_here(host: str) -> bool:
        if is_loopback_host(host):
            return True
        return is_open and (is_numeric_host(host) or host.partition(":")[0].lower() in names)

    async def check(scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        hosts, origin = headers.getlist("host") or [""], headers.get("origin")
        is_own = origin is None or is_loopback_origin(origin) or origin == f"http://{hosts[0]}"
        if all(map(is_here, hosts)) and is_own:
            return await app(scope, receive, send)
        answers_to = ", ".join(["127.0.0.1", "localhost", *sorted(names)])
        refusal = _json(403, {"error": f"this page answers to {answers_to}"})
        await refusal(scope, receive, send)

    return check


def _failed(_: Request, error: Exception) -> Response:
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return _json(status, {"error": str(error)})
    logger.error(redact("".join(format_exception(error))))
    return _json(500, {"error": one_line(error)})


def _json(status: int, data: dict[str, Any]) -> Response:
    return Response(to_json(data), status, media_type="application/json")


App = Callable[[Any, Any, Any], Awaitable[None]]


class Events:
    """Sends an event whenever a run has written more, until the browser or the server stops."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._num_streams = 0
        self.is_over = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._num_streams >= MAX_STREAMS:
            refusal = _json(503, {"error": "too many pages are open"})
            return await refusal(scope, receive, send)
        self._num_streams += 1
        try:
            stream = StreamingResponse(self._news(), media_type="text/event-stream")
            await stream(scope, receive, send)
        finally:
            self._num_streams -= 1

    async def _news(self) -> AsyncIterator[bytes]:
        seen = await run_in_threadpool(self._pages.states)
        yield b": looking\n\n"
        while True:
            for _ in range(10):  # the end of the server is noticed sooner than news of a run
                await asyncio.sleep(LOOK_S / 10)
                if self.is_over.is_set():
                    return
            states = await run_in_threadpool(self._pages.states)
            for name in (run for run in states if states[run] != seen.get(run)):
                steps = self._pages.by_name[name].metrics_of_run.rows()
                news = {"run": name, "step": max(steps, default=0)}
                yield b"data: " + to_json(news) + b"\n\n"
            seen = states


class Pages:
    """Answers about the runs in some folders, without HTTP. A run's name is the last part of its
    folder's path, with as many more parts as it takes to be unique when it is found; that of a
    stage, or of another run whose folder has several, has the folder's name too."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [Path(root).absolute() for root in roots]
        self.by_name: dict[str, RunPage] = {}
        self._forks: dict[str, RunPage] = {}
        self._lock = threading.Lock()
        self._add(run for root in self._roots for run in runs_in(root))

    def look(self) -> None:
        """Adds the runs that have begun since the last look."""
        known = {page.folder.path for page in self.by_name.values()}
        new = []
        for run in (run for root in self._roots for run in runs_in(root) if run not in known):
            with suppress(CheckpointError):  # the record of a run that begins cannot be read yet
                require_run(run)
                new.append(run)
        self._add(new)

    def _add(self, runs: Iterable[Path]) -> None:
        with self._lock:
            known = [page.folder.path for page in self.by_name.values()]
            new = [run for run in dict.fromkeys(runs) if run not in known]
            pages = [RunPage(RunFolder(run)) for run in new]
            # A new dict, as other threads may walk through the old one.
            # Folders below the roots that have several runs: stages, for example.
            counts = Counter(run.parent for run in (*known, *new))
            above = {*self._roots, *(root.parent for root in self._roots)}
            several = {folder for folder, num in counts.items() if num > 1} - above
            names = _names(new, known, several)
            self.by_name = self.by_name | dict(zip(names, pages, strict=True))

    def close(self) -> None:
        for page in [*self.by_name.values(), *self._forks.values()]:
            page.close()

    def answer(self, name: str, query: dict[str, str]) -> dict[str, Any]:
        """Returns the data of /api/`name`. Raises `DataError` for unknown names and runs."""
        if name == "runs":
            self.look()
            return {
                "runs": [{**p.comparison(), "name": name} for name, p in self.by_name.items()],
                "differences": compared_configs(self.by_name) if len(self.by_name) > 1 else [],
            }
        if name == "difference":
            return self._difference(query)
        page = self.page(query.get("run"))
        if name.startswith("episode/"):
            return page.episode(name.removeprefix("episode/"))
        if name in ("run", "status", "config", "origin", "changes", "steps", "why"):
            return getattr(page, name)()
        if name in QUERIES:
            return getattr(page, name)(query)
        raise DataError(f"/api/{name}: no such page", code=Code.OPTION_VALUE)

    def page(self, name: str | None) -> RunPage:
        """Returns the page of a run, or of forks of one of its episodes: RUN/forks/FOLDER. Without
        a name, that of the first run."""
        name = name or next(iter(self.by_name))
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
        default the last two of `run`, or else its only one and the last of the others that began
        earlier."""
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
            of_run[-2] if len(of_run) > 1 else self._start_before(right_name, of_others)
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

    def _start_before(self, start: str, others: Sequence[str]) -> str:
        """Returns the last of the other starts that began before this one, or any, or itself."""
        runs = {name: name.rpartition(":")[0] for name in (start, *others)}
        begun = {name: self.by_name[run].status()["begun"] or "" for name, run in runs.items()}
        earlier = [name for name in others if begun[name] < begun[start]]
        return max(earlier, key=lambda name: begun[name], default=[*others, start][0])

    def states(self) -> dict[str, object]:
        """Returns a value for each run that changes when the run has written more."""
        self.look()
        return {name: page.state() for name, page in self.by_name.items()}


def _names(
    folders: Sequence[Path], others: Sequence[Path], with_parent: Collection[Path]
) -> list[str]:
    """Returns for each path the shortest suffix that none of the other paths has, of two parts or
    more below the folders `with_parent`."""
    paths = [*folders, *others]
    return [
        next(
            "/".join(folder.parts[-length:])
            for length in range(1 + (folder.parent in with_parent), len(folder.parts) + 1)
            if sum(path.parts[-length:] == folder.parts[-length:] for path in paths) == 1
        )
        for folder in folders
    ]


def _listener(host: str, port: int | None) -> socket.socket:
    """Returns a socket at `port`; for None at the default port, or else at any free one."""
    remedy = "choose another --port, or 0 for any free one"
    if host != HOST:
        remedy = f"give --host an address of this machine, or {EVERY_HOST} for all; {remedy}"
    try:
        return listening_socket(host, DEFAULT_PORT if port is None else port, "the page", remedy)
    except ConfigError:
        if port is None:
            return listening_socket(host, 0, "the page", remedy)
        raise
