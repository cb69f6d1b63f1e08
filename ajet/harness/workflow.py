"""The workflow of a command-line agent: a folder, a program that calls the gateway, a diff.

row: files or folder ──> workspace ──> program in a sandbox ──> workspace, changed ──> judge
                                          │  ▲
                                       the gateway, by the key of this episode
"""

from __future__ import annotations

import asyncio
import difflib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from ajet.core.config import AjetConfig
from ajet.core.config.services import HarnessConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import Limit
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow
from ajet.sandbox.command import CommandOutcome, run_command
from ajet.sandbox.files import copy_folder, file_texts, regular_files, remove_folder, write_files
from ajet.sandbox.runtime import CONTAINERS, INNER_PORT, Folders, Runtime, found_folder

SECTION = "ajet.harness"
MAX_BYTES_PER_CHARACTER = 4
MAX_FILE = 100_000
MAX_FILES = 2000
CUT = "\n[cut]\n"


@dataclass(frozen=True)
class Setting:
    """One episode as the program will see it: the model's address and key, the task's prompt, and
    its folders by their paths inside the sandbox. `shown` is the first folder that the config
    shows, else empty."""

    base_url: str
    anthropic_url: str
    api_key: str
    model: str
    prompt: str
    folder: str
    home: str
    shown: str = ""


@dataclass(frozen=True)
class Launch:
    """How the program is started: arguments, variables, and files by their paths in its home."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    home_files: Mapping[str, str] = field(default_factory=dict)


class HarnessFailed(RuntimeError):
    """The program ended with an error that the model did not cause."""


class HarnessWorkflow(Workflow):
    """Runs one program on a task. Subclasses name it and say how to start it; each has a file in
    this folder. The judge finds the folder in `metadata["folder"]`; it is removed once the episode
    is judged, unless `ajet.harness.episode_folders` keeps it. A row's `main_query` alone is the
    prompt.

    The gateway refuses the call that exceeds a limit of calls or tokens, and what the program
    leaves is judged as truncated. So it is if the program exceeded `ajet.harness.limits`. A program
    that ends with an error before its first reply, or after a request that the gateway refused for
    another reason, fails the episode."""

    reads = ("harness",)
    program: ClassVar[str]
    """The name of its executable."""

    def __init__(self) -> None:
        self._folders: Folders | None = None
        self._is_kept = False

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        """Returns how the program is started on this episode, without its executable."""
        raise NotImplementedError(f"{type(self).__name__} does not define launch()")

    @classmethod
    def executable(cls, harness: HarnessConfig) -> list[str]:
        """Returns the beginning of the command line: the program's path. Raises `ConfigError` if it
        is not on this machine."""
        program = harness.program or cls.program
        if harness.sandbox in CONTAINERS:
            return [program]
        path = shutil.which(program)
        if path is None:
            raise ConfigError(
                f"{cls.name}: PATH has no program {program!r}: install it, or set its path in "
                f"{SECTION}.program",
                code=Code.PROGRAM_MISSING,
            )
        return [str(Path(path).absolute())]

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        harness = config.ajet.harness
        Runtime.from_config(config).check(f"{SECTION}.sandbox")
        cls.executable(harness)

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        harness = config.ajet.harness
        executable = self.executable(harness)
        installed = install_folders(Path(executable[0])) if harness.sandbox == "bwrap" else []
        runtime = Runtime.from_config(config, installed)
        # The folders are removed after the verdict (`after_verdict`), unless the config keeps them.
        if harness.episode_folders is not None:
            self._is_kept = True
            Path(harness.episode_folders).mkdir(parents=True, exist_ok=True)
        prefix = f"ajet-{workflow_task.episode_id}-"
        base = tempfile.mkdtemp(prefix=prefix, dir=harness.episode_folders)
        folders = self._folders = Folders(Path(base).absolute())
        folders.make()
        await asyncio.to_thread(fill, folders, workflow_task.task, config)
        before = folders.base / "before"
        await asyncio.to_thread(copy_folder, folders.workspace, before)
        address = model_tuner.as_oai_baseurl_apikey()
        # A confined program reaches the gateway at a fixed port inside its sandbox.
        port = urlsplit(address.base_url).port
        origin = f"http://127.0.0.1:{INNER_PORT if runtime.is_confined else port}"
        workspace, home = folders.inside(runtime)
        setting = Setting(
            base_url=f"{origin}/v1",
            anthropic_url=origin,
            api_key=address.api_key,
            model=address.model,
            prompt=workflow_task.task.main_query,
            folder=workspace,
            home=home,
            shown=next(iter(runtime.shown_folders), "") if harness.shown_folders else "",
        )
        launch = self.launch(setting, harness)
        write_files(folders.home, launch.home_files, f"{self.name}: files of its home")
        outcome = await run_command(
            runtime,
            [*executable, *launch.arguments],
            folders,
            environment={"NO_COLOR": "1", "TMPDIR": "/tmp" if runtime.is_confined else home}
            | dict(launch.environment),
            port=port,
            max_output=harness.max_output * MAX_BYTES_PER_CHARACTER,
        )
        self._raise_if_failed(outcome, model_tuner)
        if outcome.exceeded is not None:
            model_tuner.truncate(outcome.exceeded, limit=Limit.HARNESS)
        diff = await asyncio.to_thread(changes, before, folders.workspace, harness.max_diff)
        return WorkflowOutput(
            metadata={
                "final_answer": outcome.output[-harness.max_output :].strip(),
                "exit_code": outcome.exit_code,
                "errors": outcome.errors[-harness.max_output :].strip(),
                "changes": diff,
                "folder": str(folders.workspace),
                "home": str(folders.home),
            },
            log_metrics={"program_failed": float(outcome.exit_code != 0)},
        )

    async def after_verdict(self) -> None:
        if self._folders is not None and not self._is_kept:
            await asyncio.to_thread(remove_folder, self._folders.base)

    def _raise_if_failed(self, outcome: CommandOutcome, model_tuner: ModelTuner) -> None:
        if outcome.exit_code == 0 or model_tuner.get_context_tracker().context_overflow:
            return
        if model_tuner.completions and model_tuner.refused_request is None:
            return  # the gateway answered all its requests: the error follows from the replies
        if outcome.exceeded is not None:
            raise HarnessFailed(f"{self.name} was ended: {outcome.exceeded}")
        lines = (outcome.errors.strip() or outcome.output.strip()).splitlines()
        raise HarnessFailed(
            f"{self.name} ended with exit code {outcome.exit_code}: "
            f"{lines[-1] if lines else 'it wrote nothing'}"
        )


def fill(folders: Folders, task: Task, config: AjetConfig) -> None:
    """Fills workspace and home with copies of the row's `folder` and `home`, and writes its `files`
    into the workspace. Raises `ValueError` for a row whose fields cannot be used."""
    row = task.metadata
    for name, target in (("folder", folders.workspace), ("home", folders.home)):
        if row.get(name):
            source = found_folder(str(row[name]), config, f"task {task.task_id}: {name}")
            copy_folder(source, target)
    write_files(folders.workspace, file_texts(row, "files"), f"task {task.task_id}: files")


def install_folders(executable: Path) -> list[str]:
    """Returns the folders that a program needs in its sandbox, without those inside another."""
    folders: list[Path] = []
    for path in (executable, executable.resolve()):
        folders += _installation(path)
    outer = [path for path in folders if not any(folder in path.parents for folder in folders)]
    # The sandbox always shows /usr.
    return [str(path) for path in dict.fromkeys(outer) if not path.is_relative_to("/usr")]


def _installation(path: Path) -> list[Path]:
    """Returns the folders of one installed file: npm's prefix, a Python environment and its
    interpreter, or the file's folder."""
    for parent in reversed(path.parents):
        if parent.name == "node_modules":
            return [parent.parent]
    for parent in path.parents:
        if (parent / "pyvenv.cfg").is_file():
            return [parent, (parent / "bin" / "python").resolve().parent.parent]
    return [path.parent]


def changes(before: Path, after: Path, max_characters: int) -> str:
    """Returns how a folder has changed, as a unified diff of at most `max_characters`. Files that
    are not text, or too large to compare, are only named. Links are not followed."""
    names = sorted({*regular_files(before), *regular_files(after)})
    diffs: list[str] = []
    size = 0
    for name in names[:MAX_FILES]:
        old, new = _content(before / name), _content(after / name)
        if old != new:
            diffs.append(_difference(name, old, new))
            size += len(diffs[-1])
        if size > max_characters:
            break
    text = "".join(diffs)
    return text if len(text) <= max_characters else text[:max_characters] + CUT


def _content(path: Path) -> bytes | None:
    """Returns a file's bytes, or None if there is none. For a large file it is the size and both
    ends; the NUL after the size marks it as not text."""
    if path.is_symlink() or not path.is_file():
        return None
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= MAX_FILE:
            return file.read()
        head = file.read(MAX_FILE // 2)
        file.seek(-(MAX_FILE // 2), 2)
        return b"%d\0" % size + head + file.read()


def _difference(name: str, old: bytes | None, new: bytes | None) -> str:
    texts = _lines(old), _lines(new)
    if texts[0] is None or texts[1] is None:
        change = "added" if old is None else "removed" if new is None else "changed"
        return f"{name}: {change}, not text or too large to show\n"
    labels = (
        "/dev/null" if old is None else f"a/{name}",
        "/dev/null" if new is None else f"b/{name}",
    )
    lines = difflib.unified_diff(texts[0], texts[1], *labels)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _lines(content: bytes | None) -> list[str] | None:
    if content is None:
        return []
    if b"\0" in content:
        return None
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None
