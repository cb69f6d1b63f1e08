"""An environment service on loopback, in a thread of this process.

with serve(make_app({"guess_number": GuessNumber})) as url: …        any ASGI application
with StubService(answer) as stub: stub.url, stub.calls               answer(verb, body) -> (…)
"""

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serve(app):
    import time

    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


class StubService:
    """Says what a test tells it: `answer(verb, body)` gives (status, JSON), or None to hang up."""

    def __init__(self, answer):
        self.calls, self.headers = [], []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms for its headers to be read

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._reply(self.path.lstrip("/"), body)

            def do_GET(self):
                self._reply(self.path, dict(self.headers))

            def _reply(self, verb, body):
                owner.calls.append((verb, body))
                owner.headers.append(dict(self.headers))
                told = answer(verb, body)
                if told is None:
                    self.close_connection = True
                    return
                status, said = told
                content = (said if isinstance(said, str) else json.dumps(said)).encode()
                with suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_):
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def verbs(self):
        return [verb for verb, _ in self.calls]

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
