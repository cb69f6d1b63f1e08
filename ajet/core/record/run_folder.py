"""The folder with everything that a run leaves; one process writes it.

    launcher_record/{experiment}/        or {--exp-dir}/{experiment}/
    ├── attempts/          0001/, …: each start of the run (run/attempt_record.py)
    ├── config.yaml        the last start's resolved config, without secrets (docs/secrets.md)
    ├── origin.json        the folders and the day of its start (`RunOrigin`)
    ├── code/              the user's workflow and judge files, with the *.py of their folders
    ├── logs/              metrics.jsonl, warnings.jsonl and log files
    ├── stops/             requests of `ajet inspect stop`; logs/stopped.jsonl records them
    ├── images.sqlite      the images of prompts, each once, by key (core/images/store.py)
    ├── checkpoints/       step_N/
    ├── scores/            log-probabilities of an episode under checkpoints (scores.py)
    ├── episodes.sqlite    every episode with its turns (episode_store.py)
    ├── buffer.sqlite, finished.sqlite   groups and episodes that no checkpoint holds yet (clusters)
    ├── run_id             the id of this run's rows in a database of several runs
    ├── tensorboard/       scalars
    ├── weights/           its newest weights, where explorer and trainer are two commands
    ├── forks/             {episode}-turn-{K}/: `ajet inspect fork` (read/fork_folder.py)
    ├── run.json           what a client of `ajet serve --tinker` asked for, if it owns the run
    ├── bench.jsonl        each checkpoint on the held-out tasks (trinity.mode bench)
    ├── tokenizer/         the model's tokenizer, so that ids can be read later
    ├── judge_replies.sqlite   replies of a judging model; auto_grader*: the rubrics it made
    ├── summary.json       the result in numbers (summary.py)
    ├── .lock              held by the process that writes here
    └── .lock-explore      held by its explorer, where explorer and trainer are two commands

`RunFolder(path)` only names the paths, for readers; `RunFolder.open(path)` makes the folder and
locks it until `close`. The lock is the kernel's, so a killed run leaves none behind.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import IO

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.redacted import redacted_config
from ajet.core.config.yaml_codec import to_yaml
from ajet.core.errors import CheckpointError, RecordError
from ajet.core.errors.codes import Code
from ajet.core.process.file_lock import HAS_LOCKS, take
from ajet.core.record.atomic_file import write_text_atomically, writing

LOCK = ".lock"
EXPLORER_LOCK = ".lock-explore"
MAX_CODE_FILES = 200
MAX_CODE_FILE_BYTES = 1_000_000


class RunFolder:
    """Names the paths of one run, and holds the lock on them."""

    def __init__(self, path: Path, _lock: IO[str] | None = None) -> None:
        self.path = Path(path).absolute()
        self.attempts = self.path / "attempts"
        self.scores = self.path / "scores"
        self.config_yaml = self.path / "config.yaml"
        self.origin_json = self.path / "origin.json"
        self.code = self.path / "code"
        self.logs = self.path / "logs"
        self.stops = self.path / "stops"
        self.images_db = self.path / "images.sqlite"
        self.buffer_db = self.path / "buffer.sqlite"
        self.weights = self.path / "weights"
        self.bench_jsonl = self.path / "bench.jsonl"
        self.finished_db = self.path / "finished.sqlite"
        self.checkpoints = self.path / "checkpoints"
        self.episodes_db = self.path / "episodes.sqlite"
        self.forks = self.path / "forks"
        self.tensorboard = self.path / "tensorboard"
        self.tokenizer = self.path / "tokenizer"
        self.summary_json = self.path / "summary.json"
        self.client_json = self.path / "run.json"
        self.metrics_jsonl = self.logs / "metrics.jsonl"
        self.warnings_jsonl = self.logs / "warnings.jsonl"
        self.stopped_jsonl = self.logs / "stopped.jsonl"
        self._lock = _lock

    @classmethod
    def open(cls, path: Path, lock_name: str = LOCK) -> RunFolder:
        """Makes the folder and takes its lock. Raises `CheckpointError` if another process has it.
        A process that writes in addition to the run's own takes a lock with another name."""
        folder = cls(path)
        try:
            for place in (folder.path, folder.checkpoints, folder.logs, folder.tensorboard):
                place.mkdir(parents=True, exist_ok=True)
            lock = (folder.path / lock_name).open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise CheckpointError(
                f"run folder {folder.path} cannot be made: {error.strerror}; "
                "choose another place with --exp-dir",
                code=Code.RUN_FOLDER_UNUSABLE,
            ) from error
        _acquire(lock, folder.path)
        # A forked child shares the lock: if it outlived a killed run, it would still hold it.
        reference = weakref.ref(lock)

        def close() -> None:
            if (file := reference()) is not None and not file.closed:
                file.close()

        if hasattr(os, "register_at_fork"):  # Windows never forks
            os.register_at_fork(after_in_child=close)
        folder._lock = lock
        return folder

    def close(self) -> None:
        """Releases the lock; the paths stay usable."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def archive_checkpoints_after(self, step: int) -> None:
        """Renames later checkpoints, so that the newest one is that of the resumed run."""
        for path in sorted(self.checkpoints.glob("step_*")):
            number_of_step = path.name.removeprefix("step_")
            if number_of_step.isdecimal() and int(number_of_step) > step:
                number = 1 + sum(1 for _ in self.checkpoints.glob(f"earlier-*-{path.name}"))
                path.rename(path.with_name(f"earlier-{number}-{path.name}"))

    def attempt(self, number: int) -> Path:
        """Returns the folder of one attempt."""
        return self.attempts / f"{number:04d}"

    def run_id(self) -> str:
        """Returns the unique id of this folder, which stays when the folder is moved. The first
        caller makes it."""
        file = self.path / "run_id"
        temporary = file.with_name(f".run_id.{os.getpid()}")
        if not file.exists():
            # A hard link makes the file with its content or fails: nobody reads half an id, and
            # of several processes one wins.
            with writing(file):
                temporary.write_text(secrets.token_hex(16))
                with contextlib.suppress(FileExistsError):
                    file.hardlink_to(temporary)
                temporary.unlink()
        run_id = file.read_text(encoding="utf-8", errors="replace").strip()
        if not re.fullmatch("[0-9a-f]{32}", run_id):
            raise RecordError(f"{file} is damaged: it holds no run id; restore a copy of it")
        return run_id

    def locks(self) -> list[Path]:
        """Returns the lock files of all processes that write, or wrote, into the folder."""
        return sorted(self.path.glob(".*lock*"))

    def save_config(self, config: AjetConfig, file: Path | None = None) -> None:
        """Writes the resolved config as YAML, without secrets, to config.yaml or to `file`."""
        write_text_atomically(file or self.config_yaml, to_yaml(redacted_config(config)))

    def save_code(self, files: Iterable[Path]) -> list[Path]:
        """Copies the *.py of each file's folder, and the file if it is one, to code/, and returns
        the files that were not copied.

        Files that are too big, too many or unreadable are not copied: a copy must not stop a run.
        """
        # A separate target for each source folder, also for two with the same name.
        targets: dict[str, Path] = {}
        for folder in dict.fromkeys(Path(file).resolve().parent for file in files):
            name, number = folder.name or "root", 1
            while name in targets:
                number += 1
                name = f"{folder.name}-{number}"
            targets[name] = folder
        pairs = [
            (file, self.code / name / file.name)
            for name, folder in targets.items()
            for file in sorted(folder.glob("*.py"))
        ]
        copied = [_copy(source, target) for source, target in pairs[:MAX_CODE_FILES]]
        return [source for (source, _), ok in zip_longest(pairs, copied) if not ok]


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Holds what readers of a run need besides its config.yaml. User classes and paths in the
    config are relative to these folders; a chat template may write the date `begun` (ISO 8601),
    which does not change on resume; the model's end tokens may differ from its tokenizer's."""

    yaml: str | None
    project_dir: str | None
    current_folder: str
    begun: str
    stop_token_ids: list[int]

    @classmethod
    def from_config(
        cls, config: AjetConfig, stop_token_ids: Sequence[int], begun: str
    ) -> RunOrigin:
        """Returns the origin of a run of this config, started in the current folder."""
        return cls(
            yaml=str(config.yaml_path) if config.yaml_path else None,
            project_dir=str(config.project_dir) if config.project_dir else None,
            current_folder=str(Path.cwd()),
            begun=begun,
            stop_token_ids=list(stop_token_ids),
        )

    def write(self, file: Path) -> None:
        write_text_atomically(file, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> RunOrigin:
        try:
            origin = cls(**json.loads(read_bytes_of(file)))
            datetime.fromisoformat(origin.begun)
            for folder in (origin.yaml, origin.project_dir, origin.current_folder):
                Path(folder or "")  # raises for other types
            return origin
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{file}: no such file; is this the folder of a run?", code=Code.RUN_NOT_FOUND
            ) from error
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RecordError(f"{file} cannot be read: {error}") from error


def require_place(folder: Path) -> None:
    """Raises CheckpointError if the run folder cannot be made."""
    # The nearest ancestor that exists decides.
    for ancestor in (folder, *folder.parents):
        try:
            is_folder = stat.S_ISDIR(ancestor.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error.strerror
        else:
            if is_folder and (ancestor == folder or os.access(ancestor, os.W_OK | os.X_OK)):
                return
            problem = f"{ancestor} may not be written to" if is_folder else f"{ancestor} is a file"
        raise CheckpointError(
            f"run folder {folder} cannot be made: {problem}; choose another place with --exp-dir",
            code=Code.RUN_FOLDER_UNUSABLE,
        )


def is_file(path: Path) -> bool:
    """Tells whether a file of a run folder exists. Raises CheckpointError if a folder above it may
    not be searched."""
    try:
        return path.is_file()
    except PermissionError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error


def read_bytes_of(path: Path) -> bytes:
    """Returns the content of a file of a run folder. Raises FileNotFoundError for anything but a
    regular file: somebody else may have made the folder, and a pipe or /dev/zero never ends."""
    if not is_file(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return path.read_bytes()


def shown_path(path: Path) -> str:
    """Returns the path relative to the current folder if it lies below it, else the absolute
    path."""
    path, current_folder = Path(path).absolute(), Path.cwd()
    is_below = path.is_relative_to(current_folder)
    return str(path.relative_to(current_folder) if is_below else path)


def _acquire(lock: IO[str], path: Path) -> None:
    if not HAS_LOCKS:
        logger.warning("{}: this system has no file locks: never start two runs in it", path)
    try:
        take(lock, wait=False)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise CheckpointError(
            f"run folder {path} is in use by process {holder}; wait for it, stop it, "
            "or choose another ajet.experiment_name or --exp-dir",
            code=Code.RUN_IN_USE,
        ) from None
    except OSError as error:
        lock.close()
        raise CheckpointError(
            f"run folder {path} cannot be locked: {error.strerror}; choose a disk with locks "
            "(flock) with --exp-dir",
            code=Code.RUN_FOLDER_UNUSABLE,
        ) from error
    with writing(lock.name):
        os.truncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()} on {socket.gethostname()}\n".encode())


def _copy(source: Path, target: Path) -> bool:
    """Copies the file; returns False if it is too big or cannot be copied."""
    try:
        if source.stat().st_size > MAX_CODE_FILE_BYTES:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError:
        return False
    return True
