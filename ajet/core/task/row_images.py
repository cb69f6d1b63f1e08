"""Puts the images of a row into its messages, as parts in OpenAI's form.

    "<image>What is it?", images ["a.png"]                     verl, ROLL, ChatLearn, LLaMA-Factory
    [{"type": "image"}, {"type": "text", …}], images [{…}]     TRL
    "What is it?", image {"bytes": …}                          TRL: before the first user's text
    [{"type": "image", "image": "a.png"}, …]                   parts that have their image
      -> [{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}},
          {"type": "text", "text": "What is it?"}]

An image is a file (absolute, or below the folder of the data), bytes, an image of PIL, a data URL,
or base64. Without a column of images, `<image>` is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, RowError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import data_url, find_image, image_parts, is_image_part, openai_part
from ajet.core.images.image import FORMATS, NO_LIMITS
from ajet.core.task.chat_messages import IMAGE_MARK, shown_text
from ajet.core.text.error_text import extra_advice

Message = dict[str, Any]
COLUMNS = ("images", "image")
ROW_LIMITS = replace(NO_LIMITS, files=True)
"""The run's own limits are checked where a prompt is made."""
OTHER_MARKS = {"videos": "<video>", "audios": "<audio>"}
"""Maps a field of a row to the mark of one of its entries in a message's text."""
PLACES = ("image", "image_url", "url", "path", "bytes", "base64", "source")
"""The fields of a part that may have the image; a part without any takes the column's next one."""
_BASE64 = re.compile(r"(?:iVBORw0KGgo|/9j/|UklGR|R0lGOD)[\w+/=\s]{16,}", re.ASCII)
"""What base64 of PNG, JPEG, WebP and GIF begins with."""
_HAS_SCHEME = re.compile(r"[a-zA-Z][\w+.-]+:")
_SUFFIXES = tuple(f".{name.lower()}" for name in (*FORMATS, "jpg"))


def with_images(
    messages: Sequence[Message], row: Mapping[str, Any], location: str, folder: Path | None
) -> list[Message]:
    """Returns the messages with the row's images in their content. Raises DataError for a video, a
    sound or a damaged image, and where the numbers of images and of places for them differ."""
    _refuse_others(messages, row, location)
    name, images = _column(row, location)
    shown = [dict(message) for message in messages]
    parts = [part for message in shown for part in image_parts(message)]
    num_places = sum(map(_is_place, parts))
    # With parts for its images, or without images, a row's marks are text.
    num_marks = sum(map(_num_marks, shown)) if images and not num_places else 0
    if images and not parts and not num_marks:
        first = next((message for message in shown if message["role"] == "user"), None)
        if first is None:
            raise RowError(f"{location}: no user's message shows its {name}")
        first["content"] = [{"type": "image"} for _ in images] + _parts(first["content"])
    elif (number := num_places or num_marks) != len(images):
        raise RowError(
            f"{location}: {name} has {len(images)} images, and the messages have {number} places "
            f"for them ({IMAGE_MARK}, or a part of type image)"
        )
    taken = ({"type": "image", "image": _bare(image)} for image in images)
    for message in shown:
        if (num_marks and _num_marks(message)) or any(image_parts(message)):
            content = _parts(message["content"])
            if num_marks:
                content = [piece for part in content for piece in _pieces(part)]
            filled = (next(taken) if _is_place(part) else part for part in content)
            message["content"] = [_openai_part(part, location, folder) for part in filled]
    return shown


def without_images(row: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Returns the row without its column of images: its messages have them."""
    name, images = _column(row, location)
    return {field: value for field, value in row.items() if not images or field != name}


def _refuse_others(messages: Sequence[Message], row: Mapping[str, Any], location: str) -> None:
    for field, mark in OTHER_MARKS.items():
        marked = any(mark in shown_text(message["content"]) for message in messages)
        if marked and row.get(field) is not None:
            raise RowError(
                f"{location}: {mark} stands for one of its {field}, and only text and images can "
                "be trained"
            )


def _column(row: Mapping[str, Any], location: str) -> tuple[str, list[Any]]:
    """Returns the name of the row's column of images, and its images."""
    columns = {name: images for name in COLUMNS if (images := _images(name, row.get(name)))}
    if len(columns) > 1:
        raise RowError(f"{location} has {' and '.join(columns)}; keep one of them")
    return next(iter(columns.items()), (COLUMNS[0], []))


def _images(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):  # a cell of a CSV file
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    entries = value if isinstance(value, list | tuple) else [value]
    present = [
        entry
        for entry in entries
        if entry is not None and not (isinstance(entry, str) and not entry.strip())
    ]
    # Rows of tasks in containers have the container's image in this column.
    is_other = name == "image" and all(
        isinstance(entry, str) and not _names_image(entry) for entry in present
    )
    return [] if is_other else present


def _names_image(text: str) -> bool:
    return (
        text.startswith(("data:", "file:"))
        or _BASE64.fullmatch(text) is not None
        or text.lower().endswith(_SUFFIXES)
    )


def _is_place(part: Mapping[str, Any]) -> bool:
    return is_image_part(part) and all(part.get(name) is None for name in PLACES)


def _num_marks(message: Message) -> int:
    return sum(part.get("text", "").count(IMAGE_MARK) for part in _parts(message["content"]))


def _parts(content: Any) -> list[Mapping[str, Any]]:
    """Returns content as parts; those of text in one form, without empty ones."""
    if not isinstance(content, list | tuple):
        content = [{"type": "text", "text": content}]
    return [
        part if is_image_part(part) else {"type": "text", "text": text}
        for part in content
        if (text := part.get("text") or part.get("refusal")) or is_image_part(part)
    ]


def _pieces(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Splits a part of text at its marks, which become places for images."""
    if is_image_part(part):
        return [part]
    pieces = re.split(f"({IMAGE_MARK})", part["text"])
    return [
        {"type": "image"} if piece == IMAGE_MARK else {"type": "text", "text": piece}
        for piece in pieces
        if piece
    ]


def _openai_part(part: Mapping[str, Any], location: str, folder: Path | None) -> dict[str, Any]:
    if not is_image_part(part):
        return dict(part)
    if find_spec("PIL") is None:
        raise DataError(
            f"{location}: images need pillow: {extra_advice('PIL')}", code=Code.PACKAGE_MISSING
        )
    try:
        image = find_image(_located(part, folder), ROW_LIMITS)
    except DataError as error:
        raise DataError(f"{location}: {error}", code=error.code) from error
    if isinstance(image, int):
        raise DataError(
            f"{location}: it names an image of a run by its key; give the image", code=Code.IMAGE
        )
    return openai_part(data_url(image))


def _bare(image: Any) -> Any:
    """Returns the image of verl's ``{"image": …}``, and others unchanged."""
    if isinstance(image, Mapping) and image.get("image") is not None:
        return image["image"]
    return image


def _located(value: Any, folder: Path | None) -> Any:
    """Returns the value with its paths below the folder, and its base64 as data URLs."""
    if isinstance(value, Mapping):
        return {
            name: _located(inner, folder) if name in PLACES and name != "base64" else inner
            for name, inner in value.items()
        }
    if not isinstance(value, str) or _HAS_SCHEME.match(value):
        return value
    if _BASE64.fullmatch(value):
        return f"data:;base64,{''.join(value.split())}"
    return str(folder / value) if folder else value
