"""The workflow of a command-line agent: a folder, a program that calls the gateway, a diff.

    row: files or folder ──> workspace ──> program in a sandbox ──> workspace, changed ──> judge
                                              │  ▲
                                           the gateway, by the key of this episode

Each file beside this one has one program: a subclass with `program` and `launch`. The program's
calls are the episode's. The judge finds the folder in `metadata["folder"]`; it is removed once the
episode is judged, unless `ajet.harness.episode_folders` keeps it.

The episode's deadline is `ajet.rollout.episode_timeout_s`, its limits of calls and tokens are those
of every workflow: the gateway refuses the call that exceeds one, and what the program then leaves
is judged as truncated. So is what a program leaves that used more of the machine than
`ajet.harness.limits` allow. A program that ends with an error before its first reply, or after a
request that the gateway refused for another reason, fails the episode.

Not covered: a row's earlier messages (`main_query` alone is the prompt).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from ajet.core.config import AjetConfig
from ajet.core.config.harness import HarnessConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.truncation import Limit
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow
from ajet.harness.changes import changes
from ajet.harness.launch import Launch, Setting
from ajet.sandbox.command import CommandOutcome, run_command
from ajet.sandbox.files import copy_folder, file_texts, remove_folder, write_files
from ajet.sandbox.runtime import CONTAINERS, INNER_PORT, Folders, Runtime, found_folder

WHERE = "ajet.harness"
MAX_CHARACTER = 4
"""The bytes of a character at most."""


class HarnessFailed(RuntimeError):
    """Raised when the program ended with an error that is not the model's doing."""


class HarnessWorkflow(Workflow):
    """Runs one program on a task. Subclasses name it and say how it is started."""

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
        """Returns the beginning of the command line: the program's path. Raises `ConfigError` where
        it is not on this machine."""
        program = harness.program or cls.program
        if harness.sandbox in CONTAINERS:
            return [program]
        path = shutil.which(program)
        if path is None:
            raise ConfigError(
                f"{cls.name}: there is no program {program!r} on PATH: install it, or give its path "
                f"in {WHERE}.program",
                code=Code.PROGRAM_MISSING,
            )
        return [str(Path(path).absolute())]

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        harness = config.ajet.harness
        Runtime.from_config(config).check(f"{WHERE}.sandbox")
        cls.executable(harness)

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        harness = config.ajet.harness
        executable = self.executable(harness)
        installed = install_folders(Path(executable[0])) if harness.sandbox == "bwrap" else []
        runtime = Runtime.from_config(config, installed)
        folders = self._make_folders(harness, workflow_task)
        await asyncio.to_thread(fill, folders, workflow_task.task, config)
        before = folders.base / "before"
        await asyncio.to_thread(copy_folder, folders.workspace, before)
        address = model_tuner.as_oai_baseurl_apikey()
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
            max_output=harness.max_output * MAX_CHARACTER,
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

    def _make_folders(self, harness: HarnessConfig, workflow_task: WorkflowTask) -> Folders:
        kept_in = harness.episode_folders
        if kept_in is not None:
            Path(kept_in).mkdir(parents=True, exist_ok=True)
        base = tempfile.mkdtemp(prefix=f"ajet-{workflow_task.episode_id}-", dir=kept_in)
        self._folders, self._is_kept = Folders(Path(base).absolute()), kept_in is not None
        self._folders.make()
        return self._folders

    def _raise_if_failed(self, outcome: CommandOutcome, model_tuner: ModelTuner) -> None:
        if outcome.exit_code == 0 or model_tuner.get_context_tracker().context_overflow:
            return
        if model_tuner.completions and model_tuner.refused_request is None:
            return  # it was answered, and ended as it did with what the model said
        if outcome.exceeded is not None:
            raise HarnessFailed(f"{self.name} was ended: {outcome.exceeded}")
        lines = (outcome.errors.strip() or outcome.output.strip()).splitlines()
        raise HarnessFailed(
            f"{self.name} ended with exit code {outcome.exit_code}: "
            f"{lines[-1] if lines else 'it wrote nothing'}"
        )


def fill(folders: Folders, task: Task, config: AjetConfig) -> None:
    """Fills workspace and home with copies of the row's `folder` and `home`, and writes its `files`
    on top of the first. Raises `ValueError` for a row whose fields cannot be used."""
    row = task.metadata
    for name, target in (("folder", folders.workspace), ("home", folders.home)):
        if row.get(name):
            source = found_folder(str(row[name]), config, f"task {task.task_id}: {name}")
            copy_folder(source, target)
    write_files(folders.workspace, file_texts(row, "files"), f"task {task.task_id}: files")


def install_folders(executable: Path) -> list[str]:
    """Returns the folders of a program, without those that hold one another."""
    folders: list[Path] = []
    for path in (executable, executable.resolve()):
        folders += _of_file(path)
    outer = [path for path in folders if not any(folder in path.parents for folder in folders)]
    return [str(path) for path in dict.fromkeys(outer) if not path.is_relative_to("/usr")]


def _of_file(path: Path) -> list[Path]:
    for parent in reversed(path.parents):
        if parent.name == "node_modules":
            return [parent.parent]
    for parent in path.parents:
        if (parent / "pyvenv.cfg").is_file():
            base = (parent / "bin" / "python").resolve().parent.parent
            return [parent, base]
    return [path.parent]
