"""Defines a finding: one line about a config, which `ajet check` shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line about the config, with advice if something is wrong. An error has a code."""

    level: Level
    text: str
    code: Code | None = None

    def __str__(self) -> str:
        return f"{self.level}: {self.text}{f' [{self.code}]' if self.code else ''}"


def errors_of(findings: Iterable[Finding]) -> list[ConfigError]:
    """Returns an error for each finding that is one."""
    return [
        ConfigError(finding.text, code=finding.code)
        for finding in findings
        if finding.level == "error"
    ]


def stop_at_errors(findings: Iterable[Finding]) -> None:
    """Raises ConfigError for the first finding that is an error."""
    for error in errors_of(findings):
        raise error
