"""Implements `ajet watch`: the clients of a server of episodes, in the terminal."""

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ajet.cli.json_document import answer, current_document

if TYPE_CHECKING:
    from rich.table import Table

POLL_S = 1.0


def watch(
    url: Annotated[
        str | None, typer.Argument(help="The server's address; by default AJET_SERVE_URL.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, and end.")] = False,
) -> None:
    """Show who feeds a server of episodes.

    It shows a server of `ajet serve`, until Ctrl-C. A line for each client: the groups of this step
    that it has begun, its share of the batch, the episodes that it runs and has ended. The key is
    AJET_SERVE_API_KEY. With --json or --once the state is printed once.
    """
    from rich.live import Live

    from ajet.client import EpisodeClient, ServeError, ServerUnreachable
    from ajet.client.protocol import DEFAULT_URL, URL_VARIABLE
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.text.terminal import Console

    try:
        with EpisodeClient(url) as client:
            status = client.status()
            if once or current_document() is not None:
                answer(**status)
                Console().print(shown(client.url, status))
                return
            console = Console()
            with Live(shown(client.url, status), console=console, refresh_per_second=4) as live:
                while True:
                    time.sleep(POLL_S)
                    try:
                        status = client.status()
                    except ServerUnreachable:  # it may be started again
                        status["state"] = "not reached"
                    live.update(shown(client.url, status))
    except (ServeError, ValueError) as error:  # ValueError: there is no key
        address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        message = f"ajet watch {address}: {error}"
        raise ConfigError(message, code=Code.EPISODE_SERVER) from error
    except KeyboardInterrupt:
        return


def shown(url: str, status: dict[str, Any]) -> "Table":
    """Returns a server's status as a table with a line for each client."""
    from rich.markup import escape
    from rich.table import Table

    run = f", {status['run_folder']}" if status.get("run_folder") else ""
    caption = (
        f"offered {status['num_offered']}; running {status['num_claimed']}; "
        f"clients waiting {status['num_waiting_clients']}; "
        f"ended: {_counts(status['num_ended']) or 'none'}"
    )
    if error := status.get("error"):
        caption += f"; the last run: {error}"
    table = Table(
        title=escape(f"{url}: {status['state']}, step {status['step']}{run}"),
        caption=escape(caption),
        title_justify="left",
        caption_justify="left",
    )
    for name in ("client", "groups", "running", "waiting", "silent", "ended"):
        table.add_column(name, justify="left" if name in ("client", "ended") else "right")
    for client in status["clients"]:
        share = client["max_groups"]
        silent_s = client["silent_s"]
        table.add_row(
            escape(client["client"]),
            f"{client['num_groups']}" + (f" of {share}" if share is not None else ""),
            str(client["num_running"]),
            str(client["num_waiting"]),
            "" if silent_s is None else f"{silent_s:.0f} s",
            escape(_counts(client["num_ended"])),
        )
    return table


def _counts(by_status: dict[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in by_status.items())
