"""Removes secrets that a text may show by accident.

    "401 for sk-ajet-0123…ef"                      ->   "401 for sk-ajet-…"
    "postgresql://me:pw@db/runs?password=pw"       ->   "postgresql://***@db/runs?password=***"

Not covered: keys of other services (a saved config leaves those out by their names).
"""

import re

PREFIX = "sk-ajet-"
REDACTED = "***"
_KEY = re.compile(f"{PREFIX}[0-9a-f]{{32}}")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
_DATABASE_LOGIN = re.compile(r"(?<=://)(?<!http://)(?<!https://)[^/@\s]*:[^@\s]+(?=@)")
"""Database passwords, unlike those of HTTP addresses, may contain a slash."""
_OPTION = re.compile(
    r"(?<=[?&])([^=&\s]*(?:password|passwd|secret|token|api_?key)[^=&\s]*=)[^&\s'\"]+", re.I
)


def redact(text: str) -> str:
    """Returns the text without keys to the model, and without logins and passwords in addresses."""
    if PREFIX in text:
        text = _KEY.sub(f"{PREFIX}…", text)
    return without_logins(text) if "://" in text else text


def without_logins(text: str) -> str:
    """Returns the text with the logins and passwords in its addresses replaced."""
    text = _DATABASE_LOGIN.sub(REDACTED, _LOGIN.sub(REDACTED, text))
    return _OPTION.sub(rf"\1{REDACTED}", text)
