"""A command's answer as one JSON document, for programs: `--json` (docs/json.md lists the fields).
The document is all that is on stdout; what the command prints for people is on stderr. Commands add
their fields with `answer`, which does nothing without --json.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from ajet.core.errors import AjetError
from ajet.core.errors.codes import Code
from ajet.core.text.plain_value import without_surrogates
from ajet.core.text.redaction import redact

FLAG = "--json"


@dataclass
class JsonDocument:
    """The document of the command that runs. `exit_code` is 1 until the command has ended.

    {"command": "check", "ok": false, "exit_code": 1, "errors": [{"code": "AJ-CFG-004",
     "message": "…", "where": "x.yaml:7: ajet.sed", "remedy": "…"}], "notices": [], "runs": []}
    """

    command: str = ""
    exit_code: int = 1
    errors: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        top = {
            "command": self.command,
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "errors": self.errors,
            "notices": self.notices,
        }
        return json.dumps(plain(top | self.fields | top), indent=1, allow_nan=False) + "\n"


_CURRENT: ContextVar[JsonDocument | None] = ContextVar("document", default=None)


def current_document() -> JsonDocument | None:
    """Returns the document of the command that runs, or None without --json."""
    return _CURRENT.get()


def can_ask() -> bool:
    """Tells whether somebody can answer a question: at a terminal, and not with --json."""
    return sys.stdin.isatty() and current_document() is None


def answer(**values: Any) -> None:
    """Adds fields to the document, if there is one. Values are dataclasses, paths and what JSON
    has."""
    if (document := current_document()) is not None:
        document.fields |= values


def add_error(error: AjetError) -> None:
    """Adds the error to the document, if there is one: its parts, where it has several."""
    for part in error.parts or (error,):
        add_problem(str(part), part.code, part.where)


def add_problem(message: str, code: Code | None, where: str | None = None) -> None:
    if (document := current_document()) is not None:
        remedy = None if code is None else code.remedy
        problem = {"code": code, "message": message, "where": where, "remedy": remedy}
        document.errors.append(problem)


@contextmanager
def json_document() -> Iterator[JsonDocument]:
    """Yields the document, sends all that is printed meanwhile to stderr, and prints the document
    at the end, also after an exception."""
    document, stdout = JsonDocument(), sys.stdout
    token = _CURRENT.set(document)
    try:
        with _descriptor_1_on_stderr(), redirect_stdout(sys.stderr):
            yield document
    finally:
        _CURRENT.reset(token)
        stdout.write(document.text())
        stdout.flush()


@contextmanager
def _descriptor_1_on_stderr() -> Iterator[None]:
    """Also sends what processes of the user's code print to stderr. In a test or a notebook, where
    stdout has no descriptor, they are left alone."""
    if sys.stdout is not sys.__stdout__ or sys.stdout is None:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def plain(value: Any) -> Any:
    """Returns a value in the types that JSON has, without secrets. A number that is not finite is
    null; of a dataclass, each field."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return without_surrogates(redact(str(value)))  # text, a path, a code
