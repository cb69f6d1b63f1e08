"""Implements `ajet inspect harbor FOLDER`: plays Harbor's tasks without a model."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Verbose


def harbor_check(
    folder: Annotated[Path, typer.Argument(help="A folder of task folders, or one of them.")],
    sandbox: Annotated[
        Literal["bwrap", "podman", "docker"],
        typer.Option(help="Where they run; bwrap has this machine's system, and no images."),
    ] = "podman",
    verbose: Verbose = False,
) -> None:
    """Check Harbor's tasks with their solutions.

    Each task is tested twice: after its reference solution, and in an untouched container. Exit
    code 0: every solution has reward 1 and doing nothing has less. Loads no model.
    """
    from rich.markup import escape
    from rich.table import Table

    from ajet.cli.notices import begin_command
    from ajet.core.text.terminal import Console
    from ajet.sandbox.runtime import Runtime
    from ajet.suites.harbor.agent import check_sandbox
    from ajet.suites.harbor.machine import check_task
    from ajet.suites.harbor.task_folder import read_folder

    begin_command(verbose)
    runtime = Runtime(sandbox)
    tasks = read_folder(folder)
    check_sandbox(runtime)
    table = Table(title=escape(f"{folder} in {sandbox}"))
    for title in ("task", "solution", "nothing", "seconds"):
        table.add_column(title, justify="left" if title == "task" else "right")
    console, reports = Console(), []
    with console.status("testing") as status:
        for task in tasks:
            status.update(f"testing {task.name}")
            report = asyncio.run(check_task(task, runtime))
            reports.append(report)
            rewards = (f"{verdict.reward:g}" for verdict in (report.solution, report.empty))
            table.add_row(escape(report.name), *rewards, f"{report.seconds:.1f}")
    faults = {report.name: report.fault for report in reports if report.fault is not None}
    answer(tasks=reports, faults=faults)
    console.print(table)
    for name, fault in faults.items():
        console.print(f"fault: {name}: {fault}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if faults else 0)
