"""Takes the folders of this machine out of what is made for other people to read."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

_FOLDERS = re.compile(r"(?<![\w:/.<])(?:~|\.\.|)/(?:[^\s'\"/]*/)*(?=[^\s'\"/])")
"""The folders of a path that is absolute or leaves the project."""
Value = TypeVar("Value")


def without_folders(value: Value) -> Value:
    """Returns the value with only the last name of each path that is absolute or leaves the
    project, in all its texts.

    /home/ada/models/qwen -> qwen        data/train.jsonl, https://host/v1, </answer> are
                                         unchanged
    """
    shown: Any = value
    if isinstance(value, str):
        shown = _FOLDERS.sub("", value)
    elif isinstance(value, Mapping):
        shown = {key: without_folders(inner) for key, inner in value.items()}
    elif isinstance(value, list):
        shown = [without_folders(inner) for inner in value]
    return shown
