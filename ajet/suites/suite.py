"""What a suite is, and the section `suite:` of a config that evaluates one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field

from ajet.core.config.section import Section

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
