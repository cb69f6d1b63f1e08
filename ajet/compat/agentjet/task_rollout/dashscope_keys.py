"""Reads DashScope's keys from the environment, where there may be several.

DASHSCOPE_API_KEY=sk-a|sk-b          tried first; each call starts with another one
DASHSCOPE_API_KEY_BACKUP=sk-c        tried next; optional
"""

import itertools
import os

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

KEYS, BACKUP_KEYS = "DASHSCOPE_API_KEY", "DASHSCOPE_API_KEY_BACKUP"
ATTEMPTS = 4
RETRY_WAIT_S = 5.0
_calls = itertools.count()


def keys_to_try(num_attempts: int) -> list[str]:
    """Returns each attempt's key: regular ones in the first half, then backup ones first."""
    regular, backup = _keys(KEYS), _keys(BACKUP_KEYS)
    if not regular:
        raise ConfigError(
            f"DashScope has no key: set {KEYS} (several as A|B, further ones in {BACKUP_KEYS})",
            code=Code.CHAT_ADDRESS,
        )
    shift = next(_calls) % len(regular)
    regular = regular[shift:] + regular[:shift]
    num_first = (num_attempts + 1) // 2
    first = itertools.islice(itertools.cycle(regular), num_first)
    second = itertools.islice(itertools.cycle([*backup, *regular]), num_attempts - num_first)
    return [*first, *second]


def without_keys(text: str) -> str:
    """Returns the text in one line, with stars instead of keys."""
    for key in _keys(KEYS) + _keys(BACKUP_KEYS):
        text = text.replace(key, "***")
    return " ".join(text.split())


def _keys(variable: str) -> list[str]:
    return [key.strip() for key in os.environ.get(variable, "").split("|") if key.strip()]
