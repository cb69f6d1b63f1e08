"""The images of a run, as the page shows them: their sizes, and one with its bytes. Without
`images.sqlite`, or where an image is missing or damaged, the page shows the image's key.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import image_parts
from ajet.core.images.image import NO_LIMITS, Image
from ajet.core.images.image_ids import FIRST_ID, is_image_of, key_text, keys_and_places
from ajet.core.record.run_folder import is_file
from ajet.read.episode_reader import EpisodeRecord

_KEY = re.compile("[0-9a-f]{12}")


class RunImages:
    def __init__(self, file: Path) -> None:
        self._file = file

    def sizes(self, episode: EpisodeRecord) -> dict[str, list[int]]:
        """Returns the width and height of each image of an episode that the run has, by key."""
        # Messages and prompts may each have images that the other lacks: a client may send ids, and
        # a reply may be given without a prompt.
        keys: set[str] = set()
        for turn in episode.turns:
            image_ids = turn.prompt_ids[turn.prompt_ids >= FIRST_ID]
            keys.update(map(key_text, np.unique(keys_and_places(image_ids)[0]).tolist()))
            for message in (*turn.messages, turn.reply):
                keys.update(str(part.get("image")) for part in image_parts(message))
        stored = self._stored(sorted(filter(_KEY.fullmatch, keys)))
        return {key: [image.width, image.height] for key, image in stored}

    def image(self, key: str) -> Image:
        """Returns the image with this key; raises `DataError` if there is none."""
        for _, image in self._stored([key] if _KEY.fullmatch(key) else []):
            return image
        raise DataError(f"no image {key!r} in this run", code=Code.IMAGE)

    def _stored(self, keys: Iterable[str]) -> Iterator[tuple[str, Image]]:
        connection = _opened(self._file)
        if connection is None:
            return
        with closing(connection):
            for key in keys:
                try:
                    query = "SELECT data FROM images WHERE key = ?"
                    row = connection.execute(query, [int(key, 16)]).fetchone()
                    if row is not None and is_image_of(row[0], int(key, 16)):
                        yield key, Image.read(row[0], NO_LIMITS)
                except (sqlite3.Error, DataError):  # damaged
                    continue


def _opened(file: Path) -> sqlite3.Connection | None:
    """Opens the file to read it; returns None if it is absent or damaged."""
    if not is_file(file):
        return None
    # With a write-ahead log SQLite makes files next to the database even to read it. Where the
    # folder does not allow that, nobody writes, so the file cannot change.
    for options in ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?{options}", uri=True)
        try:
            query = "SELECT type FROM sqlite_master WHERE name = 'images'"
            # A view, which no run writes, could compute rows without end.
            if connection.execute(query).fetchone() == ("table",):
                return connection
        except sqlite3.Error:
            pass
        connection.close()
    return None
