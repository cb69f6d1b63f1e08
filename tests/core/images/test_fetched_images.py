"""Images at addresses of the web, which messages may name only if the run allows it."""

from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from ajet.core.errors import DataError
from ajet.core.images.image import ImageLimits
from ajet.core.images.store import ImageStore
from tests.seeing_recorder import png

ALLOWED = ImageLimits(addresses=True)


class Handler(BaseHTTPRequestHandler):
    """A red image, and then a blue one; `/moved` leads to it, `/page` is a text."""

    def __init__(self, asked, *arguments):
        self.asked = asked
        super().__init__(*arguments)

    def do_GET(self):
        self.asked.append(self.path)
        color = "red" if len(self.asked) == 1 else "blue"
        status = {"/none": 404, "/moved": 302, "/file": 302}.get(self.path, 200)
        places = {"/moved": "/a.png", "/file": "file:///etc/hostname"}
        body = b"<html>" if self.path == "/page" else png(color)
        self.send_response(status)
        if self.path in places:
            self.send_header("location", places[self.path])
            body = b""
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def site():
    asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, asked))
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def message(address):
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}


async def taken(store, *messages):
    await store.fetch(messages)
    return [each["content"][0]["image"] for each in store.taken(messages)]


async def test_by_default_no_server_is_asked():
    with site() as (address, asked):
        with pytest.raises(DataError, match=r"addresses \(http:\) are not fetched"):
            await taken(ImageStore(), message(f"{address}/a.png"))
        assert asked == []


async def test_an_address_is_fetched_once_for_all_calls_of_a_run():
    store = ImageStore(ALLOWED)
    with site() as (address, asked):
        [first] = await taken(store, message(f"{address}/a.png"))
        again = await taken(store, message(f"{address}/a.png"), message(f"{address}/b.png"))
    assert asked == ["/a.png", "/b.png"]
    assert again[0] == first != again[1]
    assert store.get(int(first, 16)).data == png("red")
    assert store.get(int(again[1], 16)).data == png("blue")


async def test_anthropics_source_and_a_redirect_lead_to_the_image():
    part = {"type": "image", "source": {"type": "url"}}
    with site() as (address, asked):
        part["source"]["url"] = f"{address}/moved"
        store = ImageStore(ALLOWED)
        [key] = await taken(store, {"role": "user", "content": [part]})
    assert asked == ["/moved", "/a.png"] and store.get(int(key, 16)).data == png("blue")


@pytest.mark.parametrize(
    ("path", "limits", "reason"),
    [
        ("/none", ALLOWED, "/none cannot be fetched: Client error '404 Not Found'"),
        ("/file", ALLOWED, "/file cannot be fetched: "),
        ("/page", ALLOWED, "it is not one of PNG"),
        ("/a.png", ImageLimits(max_bytes=9, addresses=True), "has more than 9 bytes"),
    ],
)
async def test_what_is_no_image_within_the_limits_is_refused_in_one_line(path, limits, reason):
    with site() as (address, _), pytest.raises(DataError, match=reason) as error:
        await ImageStore(limits).fetch([message(address + path)])
    assert str(error.value).startswith("an image is refused: ") and "\n" not in str(error.value)


async def test_a_server_that_is_not_there_is_named():
    with site() as (address, _):
        pass
    with pytest.raises(DataError, match=f"an image is refused: {address}/a.png cannot be fetched"):
        await ImageStore(ALLOWED).fetch([message(f"{address}/a.png")])
