"""Runs tests that the agent has not seen in a copy of the folder that it left.

The copy's other files are the agent's. A test that imports its code could be ended by it with exit
code 0: a test that must not be fooled runs the code as a separate process and reads its output.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.sandbox.command import run_command
from ajet.sandbox.files import copy_folder, file_texts, remove_folder, write_files
from ajet.sandbox.runtime import Folders, Runtime

TEST = "{test}"
MAX_OUTPUT = 1000


class HiddenTestsJudge(BaseJudge):
    """Writes the row's `hidden_files` over the copy, once the program has ended, and runs the row's
    `test_command`, or the config's. With `{test}` it runs once for each hidden file whose name
    begins with test_, and the reward is the share of them that exit with 0; without it once, for 1
    or 0. All passed is a success. The sandbox is that of `ajet.harness`, without network."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._runtime = Runtime.from_config(config)
        self._runtime.check("ajet.harness.sandbox")

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        row = workflow_task.task.metadata
        hidden = file_texts(row, "hidden_files")
        command = row.get("test_command") or self.config.ajet.task_judge.hidden_tests.command
        commands = _commands([*map(str, command)], sorted(hidden), workflow_task.task_id)
        agent_folder = workflow_output.metadata.get("folder")
        if agent_folder is None:
            return 0.0, False  # the episode reached a limit before its program had a folder
        base = Path(tempfile.mkdtemp(prefix=f"ajet-tests-{workflow_task.episode_id}-"))
        folders = Folders(base)
        folders.make()
        try:
            await asyncio.to_thread(copy_folder, Path(agent_folder), folders.workspace)
            source = f"task {workflow_task.task_id}: hidden_files"
            await asyncio.to_thread(write_files, folders.workspace, hidden, source)
            passed = [await self._passes(command, folders) for command in commands]
        finally:
            await asyncio.to_thread(remove_folder, base)
        workflow_output.log_metrics["hidden_tests_passed"] = float(sum(passed))
        return sum(passed) / len(passed), all(passed)

    async def _passes(self, command: Sequence[str], folders: Folders) -> bool:
        try:
            async with asyncio.timeout(self.config.ajet.task_judge.hidden_tests.timeout_s):
                outcome = await run_command(
                    self._runtime,
                    command,
                    folders,
                    environment={},
                    port=None,
                    max_output=MAX_OUTPUT,
                )
        except TimeoutError:
            return False
        return outcome.exit_code == 0


def _commands(command: list[str], hidden: Sequence[str], task_id: str) -> list[list[str]]:
    """Returns the command lines to run: one for each test if the command contains `{test}`."""
    if not command:
        raise ConfigError(
            f"task {task_id}: no command runs the hidden tests: set test_command in the row, or "
            "ajet.task_judge.hidden_tests.command",
            code=Code.JUDGE_SETTING,
        )
    if not any(TEST in part for part in command):
        return [command]
    tests = [name for name in hidden if PurePosixPath(name).name.startswith("test_")]
    if not tests:
        raise ConfigError(
            f"task {task_id}: the command has {TEST}, and hidden_files has no file named test_*",
            code=Code.JUDGE_SETTING,
        )
    return [[part.replace(TEST, test) for part in command] for test in tests]
