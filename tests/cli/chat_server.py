"""A model behind an OpenAI-compatible address on loopback: it uses the tool, then answers.

    with ChatServer() as server:
        … server.url … server.requests …

`server.reply` is what it says: request body -> (status, JSON, or a text that is sent as it is).
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], tuple[int, dict[str, Any] | str]]


def message(content: str | None, calls: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """A whole answer with one assistant message; `calls` are (name, arguments as text)."""
    told: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        told["tool_calls"] = [
            {"id": f"id{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, (name, text) in enumerate(calls)
        ]
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": told, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def use_the_tool(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """`add(a, b)` of the first user message's numbers; then what the tool said, in a box."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return 200, message(f"It is \\boxed{{{last['content']}}}.")
    a, b = (int(word) for word in last["content"].split() if word.isdigit())
    return 200, message(None, [("add", json.dumps({"a": a, "b": b}))])


class ChatServer:
    """Serves POST /v1/chat/completions in a thread, until the end of the `with`."""

    def __init__(self, reply: Reply = use_the_tool) -> None:
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with suppress(ConnectionError):  # an episode that was stopped hangs up
                    super().handle()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append(body)
                owner.keys.add(self.headers["Authorization"])
                status, answer = owner.reply(body)
                content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status if self.path == "/v1/chat/completions" else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "ChatServer":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
