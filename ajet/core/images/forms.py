"""The forms in which messages have images: the parts of OpenAI, Anthropic, AgentScope,
transformers, TRL and datasets' rows, or a stored image's key. A file is a path or a ``file:`` URL.
As a message may come from anybody, files and addresses on the web are refused, unless the limits
allow them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ajet.core.images.image import Image, ImageLimits, refused

FETCH_S = 30.0
PART_TYPES = ("image", "image_url", "input_image")
_KEY = re.compile("[0-9a-f]{12}")
_DATA_URL = re.compile(r"data:[\w.+/-]*(?:;[\w.+=-]+)*;base64,", re.IGNORECASE)


def is_image_part(part: Any) -> bool:
    """Tells whether a part of a message's content is an image."""
    return isinstance(part, Mapping) and part.get("type") in PART_TYPES


def find_image(part: Mapping[str, Any], limits: ImageLimits) -> Image | int:
    """Reads the image of a part, or returns the key of a stored one; raises `DataError`."""
    value = image_value(part)
    if isinstance(value, str) and _KEY.fullmatch(value):
        return int(value, 16)
    return read_image(value, limits)


def read_image(value: Any, limits: ImageLimits) -> Image:
    """Reads bytes, ``{"bytes": …, "path": …}``, a data URL, an image of PIL, an array or, if
    allowed, a file. An address on the web is refused: `fetch_image` reads it."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value.get("url")
    if isinstance(value, bytes | bytearray | memoryview):
        return Image.read(bytes(value), limits)
    if not isinstance(value, str | Path):
        if value is None:
            raise refused("it has neither data nor a place")
        return Image.from_picture(value, limits)
    text = str(value)
    if match := _DATA_URL.match(text):
        return Image.read(_decoded(text[match.end() :]), limits)
    # By default an episode does not depend on a server, and an agent's message cannot make this
    # machine ask another one or show the model its files.
    try:
        address = urlsplit(text)
        if address.scheme not in ("", "file"):
            raise refused(
                f"addresses ({address.scheme}:) are not fetched; give its data, as "
                "data:image/png;base64,…"
            )
        if not limits.files:
            raise refused("messages may not name files; give its data, as a data URL")
        path = Path(unquote(address.path) if address.scheme else text)
        num_bytes = path.stat().st_size
        if not path.is_file():  # a pipe or a device may never end
            raise refused(f"{path} is not a file")
        if num_bytes > limits.max_bytes:
            raise refused(
                f"{path} has {num_bytes:,} bytes, and ajet.model.images.max_bytes is "
                f"{limits.max_bytes:,}"
            )
        return Image.read(path.read_bytes(), limits)
    except OSError as error:
        raise refused(f"{text[:200]}: {error.strerror}") from error
    except ValueError as error:
        raise refused(f"its place cannot be read: {error}") from error


def is_address(value: Any) -> bool:
    return isinstance(value, str) and value.lower().startswith(("http://", "https://"))


async def fetch_image(address: str, limits: ImageLimits) -> Image:
    """Reads an image on the web; raises `DataError`."""
    import httpx

    from ajet.core.net.http_client import LimitedAsyncClient

    options = {"timeout": FETCH_S, "follow_redirects": True}
    try:
        async with LimitedAsyncClient(max_answer_bytes=limits.max_bytes, **options) as client:
            answer = (await client.get(address)).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise refused(f"{address[:200]} cannot be fetched: {reason[:200]}") from error
    return Image.read(answer.content, limits)


def image_parts(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the parts of a message's content that are images."""
    content = message.get("content")
    return filter(is_image_part, content if isinstance(content, list | tuple) else ())


def openai_part(url: str) -> dict[str, Any]:
    """Returns a part in OpenAI's form, which every client library takes."""
    return {"type": "image_url", "image_url": {"url": url}}


def data_url(image: Image) -> str:
    """Returns the image as a data URL."""
    kind = f"image/{image.format.lower()}"
    return f"data:{kind};base64,{base64.b64encode(image.data).decode()}"


def image_value(part: Mapping[str, Any]) -> Any:
    """Returns what a part has in the place of the image:

    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}} OpenAI
    {"type": "input_image", "image_url": "data:image/png;base64,…"}        OpenAI, Responses
    {"type": "image", "source": {"type": "base64", "data": "…"}}          Anthropic, AgentScope
    {"type": "image", "image": PIL image, array, bytes or data URL}        transformers, TRL
    {"type": "image", "bytes": …}                                          datasets' rows
    {"type": "image", "image": "0f3c5e7a9b1d"}                             stored, by its key
    """
    source = part.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "base64":
            return _decoded(source.get("data"))
        return source.get("url")
    names = ("image_url", "image", "bytes", "base64", "url", "path")
    name = next((name for name in names if part.get(name) is not None), None)
    value = None if name is None else part[name]
    if name == "base64":
        return _decoded(value)
    if name == "image_url" and isinstance(value, Mapping):
        return value.get("url")
    return value


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise refused("its base64 is damaged") from error
