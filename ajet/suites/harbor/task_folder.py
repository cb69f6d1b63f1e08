"""Reads a Harbor task folder (the format of harbor 0.26).

A task that needs what ajet does not have is refused by name (`TaskConfig.unsupported`).
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError

from ajet.core.config.explain import message_of
from ajet.suites.suite import SuiteDataError, read_text

CONFIG, INSTRUCTION = "task.toml", "instruction.md"
_REFERENCE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_CANARY = re.compile(r"(?i)\A(?:(?:<!--.*canary.*-->|#.*canary.*)[ \t]*\n)+\s*")
"""The lines that mark an instruction as a benchmark's; Harbor shows them to no agent."""
ROOT = (None, "root", 0, "0")


class Solution(BaseModel):
    """A table of task.toml, as those below, with the keys that matter here."""

    env: dict[str, str] = Field(default={})


class Agent(BaseModel):
    user: str | int | None = None
    timeout_sec: float | None = Field(default=None, gt=0)


class Verifier(BaseModel):
    env: dict[str, str] = Field(default={})
    user: str | int | None = None
    timeout_sec: float = Field(default=600.0, gt=0)
    environment_mode: Literal["shared", "separate"] | None = None


class Container(BaseModel):
    env: dict[str, str] = Field(default={})
    docker_image: str | None = None
    workdir: str | None = None
    memory_mb: int | None = Field(default=None, gt=0)
    build_timeout_sec: float = Field(default=600.0, gt=0)
    os: str = "linux"
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: list[Any] = Field(default=[])
    healthcheck: Any = None


class TaskConfig(BaseModel):
    agent: Agent = Field(default_factory=Agent)
    verifier: Verifier = Field(default_factory=Verifier)
    environment: Container = Field(default_factory=Container)
    solution: Solution = Field(default_factory=Solution)
    steps: list[Any] | None = None

    def unsupported(self) -> str | None:
        """Returns the first thing that ajet does not have, or None."""
        needs = {
            "[[steps]]": self.steps,
            f"os {self.environment.os!r}": self.environment.os != "linux",
            "gpus": self.environment.gpus,
            "tpu": self.environment.tpu,
            "mcp_servers": self.environment.mcp_servers,
            "healthcheck": self.environment.healthcheck,
            "an agent's user": self.agent.user not in ROOT,
            "a verifier's user": self.verifier.user not in ROOT,
            "a separate environment_mode": self.verifier.environment_mode == "separate",
        }
        return next((name for name, is_needed in needs.items() if is_needed), None)


@dataclass(frozen=True)
class HarborTask:
    """One task folder. `folder` is absolute.

    task.toml                time limits, variables, the container's resources
    instruction.md           what the agent is asked
    environment/Dockerfile   the container; or `docker_image` in task.toml names one
    solution/solve.sh        the reference solution, which no agent sees
    tests/test.sh            writes /logs/verifier/reward.txt or reward.json
    """

    folder: Path
    instruction: str
    config: TaskConfig

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises `SuiteDataError` for a folder without a task, or with one that ajet cannot run."""
        folder = folder.resolve()
        try:
            config = TaskConfig.model_validate(tomllib.loads(read_text(folder / CONFIG)))
        except tomllib.TOMLDecodeError as error:
            raise SuiteDataError(f"{folder / CONFIG}: not TOML: {error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            problem = message_of(first).removeprefix("Input ")
            raise SuiteDataError(f"{folder / CONFIG}: {key}: it {problem}") from error
        task = cls(folder, _CANARY.sub("", read_text(folder / INSTRUCTION)).strip(), config)
        if not task.instruction:
            raise SuiteDataError(f"{folder / INSTRUCTION} is empty; it is the task's question")
        if problem := task._problem():
            raise SuiteDataError(f"{folder}: {problem}")
        return task

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def context(self) -> Path:
        """The folder that a Dockerfile copies from."""
        return self.folder / "environment"

    @property
    def dockerfile(self) -> Path:
        return self.context / "Dockerfile"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        return self.folder / "solution"

    def digest(self) -> str:
        """Returns a digest of the files that the image is built from."""
        digest = hashlib.sha256()
        for path in sorted(self.context.rglob("*")):
            mode = path.lstat().st_mode
            content = path.read_bytes() if path.is_file() else b""
            parts = (str(path.relative_to(self.context)).encode(), b"%o" % mode, content)
            for part in parts:
                digest.update(b"%d\0" % len(part) + part)
        return digest.hexdigest()

    def _problem(self) -> str | None:
        if unsupported := self.config.unsupported():
            return f"the task needs {unsupported}, which ajet does not have for Harbor's tasks"
        composed = [path.name for path in self.context.glob("*compose.y*ml")]
        if composed:
            return f"the task needs several services (environment/{composed[0]}); ajet runs one"
        for name, does in {"trajectory.json": "replay", ".harborignore": "apply"}.items():
            if (self.folder / name).exists():
                return f"the task has a {name}, which ajet does not {does}"
        if not (self.tests / "test.sh").is_file():
            return "tests/test.sh is missing"
        if self.config.environment.docker_image is None and not self.dockerfile.is_file():
            return "there is neither environment/Dockerfile nor environment.docker_image"
        return None


def read_folder(folder: Path) -> list[HarborTask]:
    """Returns the tasks of a folder, by name: it is a task, or its folders are."""
    if not folder.is_dir():
        raise SuiteDataError(f"{folder}: no such folder of Harbor tasks")
    if (folder / CONFIG).is_file():
        return [HarborTask.read(folder)]
    tasks = [HarborTask.read(file.parent) for file in sorted(folder.glob(f"*/{CONFIG}"))]
    if not tasks:
        raise SuiteDataError(f"{folder}: neither it nor a folder in it has a {CONFIG}")
    return tasks


def with_variables(values: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns values in which those that are `${NAME}` or `${NAME:-default}`, as a whole, are
    replaced by ajet's variables. Raises `SuiteDataError` for one that is not set."""
    replaced = dict(values)
    for key, value in values.items():
        if match := _REFERENCE.fullmatch(value):
            found = os.environ.get(match[1], match[2])
            if found is None:
                raise SuiteDataError(f"{where}: {key}: the variable {match[1]} is not set")
            replaced[key] = found
    return replaced
