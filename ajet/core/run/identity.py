"""Identifies the experiment that a start of a run is: its config, code, data and model, as hashes.

Secrets are left out, so a new key for a judging model is not a change. Files that the user's code
opens are not seen.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.config.effects import Effect, effect_of, keys_without_effect
from ajet.core.config.nested import flatten
from ajet.core.config.redacted import config_without_secrets, redacted_config
from ajet.core.run.code_files import below_base_dirs, code_files
from ajet.core.run.run_tasks import RunTasks
from ajet.core.task.task import Task
from ajet.core.text.plain_value import MAX_INTEGER_BITS, type_name
from ajet.core.text.redaction import REDACTED

PACKAGES = ("ajet", "torch", "transformers")
WHOLE_FILE_BYTES = 64_000_000
"""Larger files are hashed by their size and their first and last `WHOLE_FILE_BYTES // 2` bytes."""
MAX_FILES = 1_000
UNREADABLE = "unreadable"
SHA256 = r"[0-9a-f]{64}"
INPUTS = (
    "path", "file_path", "dataset_path", "results_path", "document_path", "chat_template",
    "tool_config_path", "interaction_config_path", "agent_loop_config_path",
)  # fmt: skip
INPUT_SUFFIXES = (
    ".csv", ".j2", ".jinja", ".json", ".jsonl", ".md", ".parquet", ".toml", ".txt", ".yaml", ".yml"
)  # fmt: skip
LISTED_CHANGES = 6
START_KEYS = ("ajet.trainer_common.accept_changes", "ajet.trainer_common.resume")
"""Keys about a single start: another value is not a change of the run."""


@dataclass(frozen=True, slots=True)
class Change:
    """Describes one difference between two starts. `before` or `after` is None for a file or a
    package that only one of them has; a setting has a value in both."""

    what: str
    before: Any
    after: Any
    effect: Effect
    is_setting: bool = False

    def __str__(self) -> str:
        if not self.is_setting and None in (self.before, self.after):
            return f"{self.what} {'added' if self.before is None else 'removed'}"
        if _is_hash(self.before) or _is_hash(self.after):
            return f"{self.what} changed"
        return f"{self.what} {_shown(self.before)} -> {_shown(self.after)}"


def listed(changes: Sequence[Change]) -> str:
    """Returns the changes as one line, the gravest first; the last ones are only counted."""
    order = [Effect.EXPERIMENT, Effect.LENGTH, Effect.NOTHING]
    ordered = sorted(changes, key=lambda change: order.index(change.effect))
    text = ", ".join(map(str, ordered[:LISTED_CHANGES]))
    more = len(ordered) - LISTED_CHANGES
    return f"{text} and {more} more" if more > 0 else text


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Holds what determines a run. None stands for what an older version of ajet did not record.

    `config` maps dotted keys to values. `code` maps the user's code files, and `files` the keys
    whose values name other files or folders, to SHA-256 hashes. `rows` maps each split to the hash
    and the number of its tasks. `versions` maps packages to their versions.
    """

    config: Mapping[str, Any]
    code: Mapping[str, str] | None = None
    files: Mapping[str, str] | None = None
    rows: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None

    @classmethod
    def of(cls, config: AjetConfig, tasks: RunTasks) -> RunIdentity:
        settings = flat_settings(config)
        return cls(
            config=settings,
            code=code_hashes(config),
            files=dict(_named_files(settings, config.base_dirs)),
            rows={
                "training tasks": _rows(tasks.training),
                "held-out tasks": _rows(tasks.held_out),
            },
            versions={"python": platform.python_version(), **dict(_versions())},
        )

    def changes_since(self, earlier: RunIdentity) -> list[Change]:
        """Returns the differences, except of parts that one of the two did not record."""
        return [
            *_setting_changes(earlier.config, self.config),
            *_changes(earlier.code, self.code, Effect.EXPERIMENT),
            *_changes(earlier.files, self.files, Effect.EXPERIMENT),
            *_row_changes(earlier.rows, self.rows),
            *_changes(earlier.versions, self.versions, Effect.NOTHING),
        ]


def flat_settings(config: AjetConfig) -> dict[str, Any]:
    """Returns the values by dotted key, without keys that nothing reads. Secrets are ``***``; other
    texts that the run folder does not show are replaced by their hashes, to be compared."""
    unread = keys_without_effect(config)
    stored, settings = flatten(redacted_config(config)), flatten(config_without_secrets(config))
    settings = {key: value for key, value in settings.items() if key not in unread}
    for key, value in settings.items():
        if stored.get(key) != value and value != REDACTED:
            text = json.dumps(value, sort_keys=True, default=str)
            settings[key] = sha256(text.encode("utf-8", "replace")).hexdigest()
    return settings


def code_hashes(config: AjetConfig) -> dict[str, str]:
    base_dirs = config.base_dirs
    return {str(below_base_dirs(f, base_dirs) or f): file_hash(f) for f in code_files(config)}


def named_file_hashes(config: AjetConfig) -> dict[str, str]:
    """Returns a hash for each key whose value names an existing file or folder."""
    return dict(_named_files(flat_settings(config), config.base_dirs))


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file's content, or `UNREADABLE`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= WHOLE_FILE_BYTES:
                return sha256(file.read()).hexdigest()
            # Hashing gigabytes of data would delay every start.
            digest = sha256(f"{size}".encode() + file.read(WHOLE_FILE_BYTES // 2))
            file.seek(-WHOLE_FILE_BYTES // 2, 2)
            digest.update(file.read())
            return digest.hexdigest()
    except OSError:
        return UNREADABLE


def _named_files(
    settings: Mapping[str, Any], base_dirs: Sequence[Path]
) -> Iterator[tuple[str, str]]:
    """Yields a hash for each key whose value names an existing input."""
    for key, value in settings.items():
        if effect_of(key) is not Effect.EXPERIMENT:
            continue
        values = value if isinstance(value, list) else [value]
        for name in values:
            if not isinstance(name, str) or not _is_path(key, name):
                continue
            try:
                paths = [folder / Path(name).expanduser() for folder in [Path.cwd(), *base_dirs]]
                path = next((path for path in paths if path.exists()), None)
            except (OSError, ValueError, RuntimeError):  # too long, a null byte, an unknown ~user
                continue
            if path is not None and (path.is_file() or key.startswith("ajet.")):
                yield (key if len(values) == 1 else f"{key} {name}"), _path_hash(path)


def _is_path(key: str, value: str) -> bool:
    if key.startswith("ajet."):
        return key.rpartition(".")[2] in INPUTS
    # A path in a section of the user's may be an output, so only suffixes of inputs count there.
    return Path(value).suffix in INPUT_SUFFIXES and "\n" not in value


def _path_hash(path: Path) -> str:
    """Returns the hash of a file, or of a folder's file names and contents."""
    if path.is_file():
        return file_hash(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())[:MAX_FILES]
    digests = [f"{file.relative_to(path)} {file_hash(file)}" for file in files]
    return sha256("\n".join(digests).encode("utf-8", "surrogateescape")).hexdigest()


def _rows(tasks: Sequence[Task]) -> dict[str, Any]:
    digest = sha256()
    for task in tasks:
        values = {field.name: _json_data(getattr(task, field.name)) for field in fields(task)}
        digest.update(json.dumps(values, sort_keys=True).encode())
    return {"number": len(tasks), "sha256": digest.hexdigest()}


def _json_data(value: Any) -> Any:
    """Returns the value as JSON data, to be hashed; other objects become the name of their type."""
    # A row of the user's own reader may hold any object. Methods of the base class are called, so
    # that subclasses with odd methods cannot change or break the hash.
    value_type = type(value)
    if value_type in (str, bool, float, type(None)):
        return value
    if issubclass(value_type, dict):
        plain = {}
        for key, item in dict.items(value):
            name = _json_data(key)
            plain[name if isinstance(name, str) else json.dumps(name)] = _json_data(item)
        return plain
    if issubclass(value_type, list | tuple):
        base: Any = list if issubclass(value_type, list) else tuple
        return [_json_data(item) for item in base.__iter__(value)]
    if issubclass(value_type, str):
        return str.__str__(value)
    if issubclass(value_type, int):
        number = int.__int__(value)  # Python limits the decimal digits of an integer, not hex
        return number if number.bit_length() <= MAX_INTEGER_BITS else hex(number)
    return float.__float__(value) if issubclass(value_type, float) else type_name(value_type)


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _setting_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yields the settings that differ. A key that one start's version of ajet did not have counts
    as the default."""
    defaults = flatten(AjetConfig().to_dict())
    for key in sorted((before.keys() | after.keys()) - set(START_KEYS)):
        old, new = (side.get(key, defaults.get(key)) for side in (before, after))
        if old != new and not any(REDACTED in str(value) for value in (old, new)):
            yield Change(key, old, new, effect_of(key), is_setting=True)


def _changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, effect: Effect
) -> Iterator[Change]:
    if before is None or after is None:
        return
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield Change(key, before.get(key), after.get(key), effect)


def _row_changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> Iterator[Change]:
    for change in _changes(before, after, Effect.EXPERIMENT):
        old, new = change.before or {}, change.after or {}
        key = "number" if old.get("number") != new.get("number") else "sha256"
        yield Change(change.what, old.get(key), new.get(key), change.effect)


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and (
        value == UNREADABLE or re.fullmatch(SHA256, value) is not None
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
