"""What a suite is, the section `suite:` of a config that evaluates one, and reading its files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field

from ajet.core.config.section import Section
from ajet.core.errors import DataError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.task.jsonl import rows_of_lines

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.task.task import Task
    from ajet.core.workflow.tuner import ModelTuner

Prompting = Literal["tools", "text"]


@dataclass(frozen=True)
class Suite:
    """One benchmark. `read_tasks` takes a folder of its files, or None for those of `package`.
    `workflow` and `judge` are named as in a config. `prompting` says in a sentence how the model is
    asked, with settings of the config if it depends on them, and is printed with the figures."""

    name: str
    about: str
    read_tasks: Callable[[Path | None], list[Task]]
    workflow: str
    judge: str
    prompting: str | Callable[[AjetConfig], str]
    package: str | None = None
    max_prompt_length: int = 4096
    max_response_length: int = 1024

    def asked(self, config: AjetConfig) -> str:
        return self.prompting if isinstance(self.prompting, str) else self.prompting(config)

    @property
    def source(self) -> str:
        """The installed package that has the data or the scoring, with its version."""
        if self.package is None:
            return "files"
        try:
            return f"{self.package} {version(self.package)}"
        except PackageNotFoundError:
            return f"{self.package}, not installed"


class SuiteSection(Section):
    name: str = Field(default="", description="The suite whose tasks SuiteReader reads.")
    data: str | None = Field(
        default=None, description="A folder with the suite's files; null is the package's."
    )
    prompting: Literal["auto", "tools", "text"] = Field(
        default="auto",
        description="Whether functions are offered as tools of the chat template or in the "
        "benchmark's prompt; auto offers tools if the template writes them.",
    )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the section of the config, or defaults if it has none."""
        return cls.from_sections(config.user_sections(), "suite")


def prompting(model_tuner: ModelTuner) -> Prompting:
    config = cast(Any, model_tuner.config)
    setting = SuiteSection.from_config(config).prompting
    if setting == "auto":
        return "tools" if model_tuner.shows_tools else "text"
    return setting


class SuiteDataError(DataError):
    """Raised when a benchmark's files do not have the form that its suite reads."""

    usual_code = Code.SUITE_DATA


def package_folder(module: str, *, install: str, wanted_by: str) -> Path:
    """Returns the folder of an installed package, without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissing(f"{wanted_by} needs {module}: {install}")
    return Path(spec.submodule_search_locations[0])


def read_json_lines(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file with one JSON object a line, gzipped if its name ends in .gz."""
    return rows_of_lines(read_text(file), file)


def read_json(file: Path) -> Any:
    try:
        return json.loads(read_text(file))
    except ValueError as error:
        raise SuiteDataError(f"{file}: not JSON: {error}") from error


def field(
    row: dict[str, Any], name: str, expected_type: type | tuple[type, ...], source: object
) -> Any:
    """Returns a field of a row; raises DataError if it is missing or of another type."""
    if not isinstance(row.get(name), expected_type):
        problem = f"is of type {type(row[name]).__name__}" if name in row else "is missing"
        raise SuiteDataError(
            f"{source}: row {row.get('id', row.get('task_id', '?'))}: {name} {problem}"
        )
    return row[name]


def read_text(file: Path) -> str:
    """Returns the text of a file, gzipped if its name ends in .gz."""
    try:
        if file.suffix == ".gz":
            with gzip.open(file, "rt", encoding="utf-8") as opened:
                return opened.read()
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise SuiteDataError(f"{file}: cannot be read: {error}") from error
