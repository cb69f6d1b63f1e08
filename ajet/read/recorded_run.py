"""Reads a run folder back: its config, its chat template, its episodes, its images. Only this
folder is read: no model, no data.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ajet.core.config.redacted import redacted_keys, stored_references, variable_of
from ajet.core.config.saved import saved_config
from ajet.core.config.support import unread_keys
from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import image_parts
from ajet.core.images.image import NO_LIMITS, Image
from ajet.core.images.image_ids import FIRST_ID, is_image_of, key_text, keys_and_places
from ajet.core.record.run_folder import RunFolder, RunOrigin, is_file
from ajet.read.episode_reader import EpisodeReader, EpisodeRecord

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.inference.chat_template import ChatTemplate

_KEY = re.compile("[0-9a-f]{12}")


class RecordedRun:
    """Gives access to a run folder. Raises `CheckpointError` when it is not that of a run."""

    def __init__(
        self, path: Path, project_dir: Path | None = None, overrides: Sequence[str] = ()
    ) -> None:
        """Opens the folder. `project_dir` is searched first for the user's files, instead of the
        run's own; `overrides` replace values of the stored config."""
        self.folder = RunFolder(path)
        require_run(path)
        self.origin = RunOrigin.read(self.folder.origin_json)
        self._project_dir = project_dir
        self._overrides = overrides

    @cached_property
    def config(self) -> AjetConfig:
        """Returns the config as the run had it, without the secrets that it did not store."""
        yaml, project = self.origin.yaml, self._project_dir or self.origin.project_dir
        return saved_config(
            self.folder.config_yaml,
            yaml_path=Path(yaml) if yaml else self.folder.config_yaml,
            project_dir=Path(project).resolve() if project else None,
            overrides=self._overrides,
        )

    @cached_property
    def template(self) -> ChatTemplate:
        """Returns the tokenizer's chat template, set to the day on which the run started."""
        return load_template(self.folder)

    @property
    def current_folder(self) -> Path:
        """Returns the folder where the run was started: relative paths of its config and its code
        begin there."""
        folder = Path(self.origin.current_folder)
        if not folder.is_dir():
            raise CheckpointError(
                f"the run was started in {folder}, which is not there any more; "
                "give its config with --conf (and --project-dir)",
                code=Code.RUN_NOT_REBUILT,
            )
        return folder

    def reader(self) -> EpisodeReader:
        return EpisodeReader(self.folder.episodes_db)

    def require_agent(self, command: str) -> None:
        """Raises `CheckpointError` if the run's data were a client's: no agent sent messages."""
        if is_file(self.folder.client_json):
            raise CheckpointError(
                f"{self.folder.path}: {command} needs an agent's messages, and the data of "
                "`ajet serve --tinker` are tokens alone; `ajet view` shows them",
                code=Code.RUN_NOT_REBUILT,
            )

    def require_complete_config(self) -> None:
        """Raises `CheckpointError` if the config lacks a value that its episodes may read."""
        config = self.config
        values = config.to_dict()
        unread = (*unread_keys(config.ajet), "trinity", "verl")
        missing = [
            key
            for key in redacted_keys(values, except_for=config.ajet.not_secret)
            if not any(f"{key}.".startswith(f"{section}.") for section in unread)
        ]
        if missing:
            references = stored_references(values)
            names = {variable_of(references[key]): None for key in missing if key in references}
            variables = f", set {', '.join(names)}" if names else ""
            conf = f"--conf {self.origin.yaml}" if self.origin.yaml else "--conf with its YAML"
            raise CheckpointError(
                f"{self.folder.config_yaml} does not have the value of {', '.join(missing)}: a run "
                f"folder keeps no secrets; give KEY=VALUE{variables}, or {conf}",
                code=Code.RUN_NOT_REBUILT,
            )


def runs_in(path: Path) -> list[Path]:
    """Returns the run folder, or the run folders in it (experiments, stages, runs of Tinker's API);
    the path itself if there is none."""
    if (path / "episodes.sqlite").exists():
        return [path]
    inner = sorted(file.parent for file in path.glob("*/episodes.sqlite"))
    inner += sorted(file.parent for file in path.glob("*/*/episodes.sqlite"))
    inner += sorted(file.parent for file in path.glob("*/tinker/*/episodes.sqlite"))
    return inner or [path]


def require_run(path: Path) -> None:
    """Raises `CheckpointError` if the folder is not that of a run, or its record is damaged."""
    EpisodeReader(RunFolder(path).episodes_db).close()


def load_template(folder: RunFolder) -> ChatTemplate:
    """Loads the chat template of a run that has started."""
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.model.tokenizer import load_tokenizer

    origin = RunOrigin.read(folder.origin_json)
    tokenizer, images = load_tokenizer(folder.tokenizer), None
    if (folder.tokenizer / "config.json").is_file():  # the model sees images
        from transformers import AutoConfig

        from ajet.core.images.processor import ImageProcessor, load_processor
        from ajet.core.images.store import ImageStore

        store = ImageStore(source=RunImages(folder.images_db).image)
        config = AutoConfig.from_pretrained(folder.tokenizer)
        processor = load_processor(str(folder.tokenizer), config)
        images = ImageProcessor(processor, config.image_token_id, store)
    template = ChatTemplate(tokenizer, origin.stop_token_ids, images)
    template.today = datetime.fromisoformat(origin.begun)
    return template


class RunImages:
    """The images of a run, for its page and its prompts. Without `images.sqlite`, or where an image
    is missing or damaged, the page shows the image's key."""

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
        connection = _opened_images(self._file)
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


def _opened_images(file: Path) -> sqlite3.Connection | None:
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
