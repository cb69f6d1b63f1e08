"""A server of OpenEnv's protocol for tests: it answers `/schema` and each message as it is told."""

import json
import threading
from contextlib import contextmanager
from http import HTTPStatus

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

GUESS = {
    "title": "GuessAction",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "guess": {"type": "integer", "description": "A number.", "minimum": 0, "maximum": 9},
    },
    "required": ["guess"],
}


def observed(reward=None, done=False, **fields):
    data = {"observation": fields, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


class Guessing:
    """A number from 0 to 9 is guessed; the seed is the number. Guesses beyond are refused."""

    schema = GUESS

    def reset(self, data):
        self.number = data["seed"] % 10
        return observed(hint=f"guess {data.get('level', 'any')}", metadata={"secret": self.number})

    def step(self, data):
        guess = data.get("guess")
        if not isinstance(guess, int) or not 0 <= guess <= 9:
            return {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no"}}
        is_right = guess == self.number
        told = "right" if is_right else "lower" if guess > self.number else "higher"
        return observed(float(is_right), is_right, hint=told, metadata={"success": is_right})


@contextmanager
def openenv_server(make=Guessing):
    """Yields the server's URL and the messages that it got. `make()` answers one session: a
    dict, or text that is sent as it is; None says nothing."""
    received = []

    def http(connection, request):
        if request.path == "/schema":
            schema = make.schema
            body = schema if isinstance(schema, str) else json.dumps({"action": schema})
            return connection.respond(HTTPStatus.OK, body)
        return None

    def session(socket):
        environment = make()
        try:
            for text in socket:
                message = json.loads(text)
                received.append(message)
                answer = getattr(environment, message["type"])(message["data"])
                if answer is not None:
                    socket.send(answer if isinstance(answer, str) else json.dumps(answer))
        except ConnectionClosed:
            pass

    with serve(session, "127.0.0.1", 0, process_request=http) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", received
        server.shutdown()
        thread.join()
