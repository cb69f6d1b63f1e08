"""An evaluation to compare with another one: of one split, or of several benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.core.errors import ConfigError, DataError
from ajet.core.errors.codes import Code
from ajet.read.comparison import PlayedTask, Tasks
from ajet.read.reports.evaluation_report import EvaluationReport


@dataclass(frozen=True)
class RecordedEvaluation:
    """A model's name and, by split or benchmark, its tasks and sampling parameters."""

    subject: str
    sections: Mapping[str, Tasks]
    sampling: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, reports: Mapping[str, EvaluationReport]) -> RecordedEvaluation:
        subject = next(iter(reports.values())).subject
        return cls._from_plain(
            subject, {name: report.as_plain() for name, report in reports.items()}
        )

    @classmethod
    def read(cls, file: Path, option: str) -> RecordedEvaluation:
        """Reads a file that `ajet eval --out` wrote; `option` is the option that named it."""
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
            suites = plain["suites"] if "suites" in plain else [plain | {"name": plain["split"]}]
            return cls._from_plain(str(plain["subject"]), {str(s["name"]): s for s in suites})
        except OSError as error:
            raise ConfigError(
                f"{option} {file}: {error.strerror}", code=Code.RESULT_FILE
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{option} {file}: not a result of `ajet eval … --out {file.name}`",
                code=Code.RESULT_FILE,
            ) from error

    @classmethod
    def _from_plain(cls, subject: str, plain: Mapping[str, Any]) -> RecordedEvaluation:
        sections = {name: _tasks(part["tasks"]) for name, part in plain.items()}
        return cls(
            subject, sections, {name: part.get("sampling", {}) for name, part in plain.items()}
        )

    def wins(self, name: str) -> dict[str, list[bool]]:
        section = self.sections.get(name, {})
        return {task: list(played.success) for task, played in section.items()}


def _tasks(plain: Mapping[str, Any]) -> dict[str, PlayedTask]:
    return {
        str(task): PlayedTask(
            success=[bool(success) for success in row["success"]],
            reward=[None if reward is None else float(reward) for reward in row["reward"]],
            status=list(map(str, row["status"])),
            query=str(row.get("query", "")),
            tag=None if row.get("tag") is None else str(row["tag"]),
            answers=list(map(str, row.get("answers", ()))),
        )
        for task, row in plain.items()
    }
