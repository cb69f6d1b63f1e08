"""The images of a run, each stored once under its key, in memory and in the run's folder.

ImageStore ── Kept ─┬─ ImageFile      images.sqlite, which the processes of a machine share
                    └─ KeptImages     of another node (cluster/shared_images.py)
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ajet.core.errors import DataError, RecordError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import (
    fetch_image,
    find_image,
    image_parts,
    image_value,
    is_address,
    is_image_part,
)
from ajet.core.images.image import Image, ImageLimits
from ajet.core.images.image_ids import is_image_of, key_text

KEPT_BYTES = 1 << 28
"""The most bytes of images in memory, where they are kept elsewhere too."""
_TABLE = "CREATE TABLE IF NOT EXISTS images (key INTEGER PRIMARY KEY, data BLOB NOT NULL)"


class Kept(Protocol):
    """Where a run has the bytes of its images, by key: for all its processes, and to resume."""

    def read(self, key: int) -> bytes | None: ...

    def write(self, images: Sequence[tuple[int, bytes]]) -> None:
        """Adds images; one that is there already stays."""
        ...


class ImageFile:
    """A database of images. Raises `CheckpointError` if it cannot be used."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._errors():
            self._database = sqlite3.connect(file, check_same_thread=False, timeout=60)
            # Other processes of the run write here, too. A crash of the machine may lose the last
            # images, which the episodes that are repeated then add again.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(_TABLE)

    def read(self, key: int) -> bytes | None:
        query = "SELECT data FROM images WHERE key = ?"
        with self._errors():
            row = self._database.execute(query, (key,)).fetchone()
            if row is not None and not is_image_of(row[0], key):
                raise sqlite3.DatabaseError(f"its image {key_text(key)} is another or damaged")
        return None if row is None else row[0]

    def write(self, images: Sequence[tuple[int, bytes]]) -> None:
        with self._errors(), self._database:
            self._database.executemany("INSERT OR IGNORE INTO images VALUES (?, ?)", images)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RecordError(
                f"{self._file} cannot be used: {error}; move it away if it is damaged"
            ) from error


class ImageStore:
    """Holds images by key. Those that are `kept` too are read from their key alone by another
    process, and by a resumed run. `source` returns images of an earlier run by the text of their
    key, and raises `DataError` without one."""

    def __init__(
        self,
        limits: ImageLimits | None = None,
        kept: Kept | None = None,
        source: Callable[[str], Image] | None = None,
    ) -> None:
        self.limits = limits or ImageLimits()
        self._images: OrderedDict[int, Image] = OrderedDict()
        self._fetched: dict[str, int] = {}
        self._num_bytes = 0
        self._kept = kept
        self._source = source
        self._lock = threading.Lock()

    def keep_in(self, kept: Kept) -> None:
        """Keeps the images there from now on, those that are here already, too."""
        with self._lock:
            self._kept = kept
            self._write(self._images.values())

    def add(self, image: Image) -> Image:
        """Stores an image unless it is there; returns the stored one."""
        with self._lock:
            stored = self._images.get(image.key)
            if stored is None:
                stored = self._keep(image)
                self._write([image])
        if stored.data != image.data:
            raise DataError(
                f"two different images have the key {key_text(image.key)}", code=Code.IMAGE
            )
        return stored

    def get(self, key: int) -> Image:
        """Returns the image; raises `DataError` if there is none."""
        with self._lock:
            image = self._images.get(key)
            if image is not None:
                self._images.move_to_end(key)
            elif self._kept is not None and (data := self._kept.read(key)) is not None:
                image = self._keep(Image.read(data, self.limits))
        if image is not None:
            return image
        if self._source is None:
            raise DataError(f"no image has the key {key_text(key)} in this run", code=Code.IMAGE)
        return self.add(self._source(key_text(key)))

    def __len__(self) -> int:
        return len(self._images)

    async def fetch(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Fetches the images at addresses that the messages name, if that is allowed. Each address
        is fetched once, so that a conversation that grows keeps its images."""
        if not self.limits.addresses:
            return
        values = (image_value(part) for message in messages for part in image_parts(message))
        for address in dict.fromkeys(filter(is_address, values)):
            if address not in self._fetched:
                image = self.add(await fetch_image(address, self.limits))
                self._fetched.setdefault(address, image.key)  # another episode may have been first

    def taken(self, messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Returns the messages with each image replaced by its key, ``{"type": "image", "image":
        "0f3c…"}``, and stores the images."""
        replaced = [self._message(message) for message in messages]
        number = sum(map(num_images, replaced))
        if number > self.limits.max_images:
            raise DataError(
                f"a prompt shows {number} images, and ajet.model.images.max_images is "
                f"{self.limits.max_images}",
                code=Code.IMAGE,
            )
        return replaced

    def _message(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple) or not any(map(is_image_part, content)):
            return message
        return {
            **message,
            "content": [self._part(part) if is_image_part(part) else part for part in content],
        }

    def _part(self, part: Mapping[str, Any]) -> dict[str, str]:
        fetched = self._fetched.get(value) if is_address(value := image_value(part)) else None
        found = find_image(part, self.limits) if fetched is None else fetched
        key = self.get(found).key if isinstance(found, int) else self.add(found).key
        return {"type": "image", "image": key_text(key)}

    def _keep(self, image: Image) -> Image:
        self._images[image.key] = image
        self._num_bytes += len(image.data)
        while self._kept is not None and self._num_bytes > KEPT_BYTES and len(self) > 1:
            self._num_bytes -= len(self._images.popitem(last=False)[1].data)
        return image

    def _write(self, images: Iterable[Image]) -> None:
        if self._kept is not None:
            self._kept.write([(image.key, image.data) for image in images])


def num_images(message: Mapping[str, Any]) -> int:
    return sum(1 for _ in image_parts(message))
