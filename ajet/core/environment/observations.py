"""Reads observations with images: text that names each image, and the images by their names.

    picture                              "⟦0f3c5e7a9b1d⟧", {"0f3c5e7a9b1d": "data:image/png;…"}
    {"image": picture, "text": "Go on."} "⟦0f3c5e7a9b1d⟧Go on.", {…}
    ["You see", "a lake:", picture]      "You see\\na lake:⟦0f3c5e7a9b1d⟧", {…}

A name comes from the image's content, so equal observations are equal texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ajet.core.errors import DataError, EnvironmentFault
from ajet.core.images.forms import data_url, find_image, is_image_part, openai_part, read_image
from ajet.core.images.image import NO_LIMITS, Image
from ajet.core.images.image_ids import key_text
from ajet.core.task.chat_messages import IMAGE_MARK

# Unicode's noncharacters: no text of an environment has them for another reason.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
MAX_VALUES = 500
"""The most values of an observation with images, nested ones included."""
_NAME = re.compile(f"{_OPEN}([0-9a-f]{{12}}){_CLOSE}")


def read_observation(value: Any, call_name: str) -> tuple[str, dict[str, str]] | None:
    """Returns the text of an observation with images, and the images as data URLs by their names;
    None for what has no image or is of another kind. Raises EnvironmentFault for an image that is
    refused. An image is an array ``[height, width, 3]`` of uint8, one of PIL, or a part of a
    message (core/images/forms.py)."""
    try:
        pieces = list(_pieces(value, iter(range(MAX_VALUES))))
    except DataError as error:
        raise EnvironmentFault(f"{call_name}: the observation: {error}") from error
    except TypeError:
        return None
    images = {key_text(piece.key): data_url(piece) for piece in pieces if isinstance(piece, Image)}
    if not images:
        return None
    text, follows_text = "", False
    for piece in pieces:
        if isinstance(piece, str):
            text += "\n" * follows_text + piece.replace(_OPEN, "").replace(_CLOSE, "")
        else:
            text += f"{_OPEN}{key_text(piece.key)}{_CLOSE}"
        follows_text = isinstance(piece, str)
    return text, images


def content_of(text: str, images: Mapping[str, str]) -> str | list[dict[str, Any]]:
    """Returns text that names images as the content of a message: parts, or the text itself."""
    if not images or not _NAME.search(text):
        return text
    pieces = _NAME.split(text)  # text and names in turn
    return [
        openai_part(images[piece]) if number % 2 else {"type": "text", "text": piece}
        for number, piece in enumerate(pieces)
        if piece and (number % 2 == 0 or piece in images)
    ]


def marked_text(text: str) -> str:
    """Returns the text with a mark in place of each image's name."""
    return _NAME.sub(IMAGE_MARK, text)


def _pieces(value: Any, left: Iterator[int]) -> Iterator[str | Image]:
    """Yields the texts and images of an observation. Raises TypeError for any other value, and once
    nothing is `left`: lists may contain each other, or themselves."""
    if next(left, None) is None:
        raise TypeError
    if isinstance(value, str):
        yield value
    elif is_image_part(value):
        image = find_image(value, NO_LIMITS)
        if isinstance(image, int):
            raise TypeError
        yield image
    elif isinstance(value, Mapping) and value.get("type") == "text":
        yield from _pieces(value.get("text"), left)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _pieces(inner, left)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _pieces(inner, left)
    elif _is_picture(value):
        yield read_image(value, NO_LIMITS)
    else:
        raise TypeError


def _is_picture(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3
    # By name, since Pillow may not be installed.
    return any(base.__module__.partition(".")[0] == "PIL" for base in type(value).__mro__)
