"""The images of a run, each stored once under its key, in memory and in the run's folder."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import find_image, is_image_part
from ajet.core.images.image import Image, ImageLimits
from ajet.core.images.image_ids import key_text


class ImageStore:
    """Holds images by key. With a `folder`, each is a file there: another process, and a resumed
    run, read it from its key alone."""

    def __init__(self, limits: ImageLimits | None = None, folder: Path | None = None) -> None:
        self.limits = limits or ImageLimits()
        self._folder = folder
        self._images: dict[int, Image] = {}
        self._lock = threading.Lock()

    def keep_in(self, folder: Path) -> None:
        """Keeps the images in a folder, those that are here already, too."""
        self._folder = folder
        for image in list(self._images.values()):
            self._write(image)

    def add(self, image: Image) -> Image:
        """Stores an image unless it is there; returns the stored one."""
        with self._lock:
            stored = self._images.setdefault(image.key, image)
        if stored is not image:
            if stored.data != image.data:
                raise DataError(
                    f"two different images have the key {key_text(image.key)}", code=Code.IMAGE
                )
            return stored
        self._write(image)
        return image

    def get(self, key: int) -> Image:
        with self._lock:
            image = self._images.get(key)
        if image is None and self._folder is not None and (file := self._file(key)).is_file():
            image = self.add(Image.read(file.read_bytes(), self.limits))
        if image is None or image.key != key:
            raise DataError(
                f"no image has the key {key_text(key)} in this run"
                + (f": {self._folder} lacks it" if self._folder is not None else ""),
                code=Code.IMAGE,
            )
        return image

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
        found = find_image(part, self.limits)
        key = self.get(found).key if isinstance(found, int) else self.add(found).key
        return {"type": "image", "image": key_text(key)}

    def _write(self, image: Image) -> None:
        if self._folder is None or (file := self._file(image.key)).exists():
            return
        # A name of its own: others may write the same image at the same time.
        part = file.with_name(f"{file.name}.{secrets.token_hex(4)}.part")
        self._folder.mkdir(parents=True, exist_ok=True)
        part.write_bytes(image.data)
        part.replace(file)

    def _file(self, key: int) -> Path:
        assert self._folder is not None
        return self._folder / key_text(key)


def num_images(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return sum(map(is_image_part, content)) if isinstance(content, list | tuple) else 0
