"""The command line's options about Ray.

--with-ray            start a Ray here         --with-ray-cluster    join one, or be part of it
neither               join RAY_ADDRESS if it is set, else start one
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from ajet.core.errors import OptionError

if TYPE_CHECKING:
    from ajet.cluster.connection import SessionSettings
    from ajet.core.config import AjetConfig


@dataclass(frozen=True)
class RayFlags:
    with_ray: bool = False
    with_ray_cluster: bool = False
    skip_check_avail_gpu: bool = False

    def notices(self, backbone: str) -> list[str]:
        """Returns a line for each flag that has no effect on this backbone."""
        if backbone != "debug":
            return []
        flags = {
            "--with-ray": self.with_ray,
            "--with-ray-cluster": self.with_ray_cluster,
            "--skip-check-avail-gpu": self.skip_check_avail_gpu,
        }
        return [
            f"ignored by backbone debug: {flag} (the run is one process)"
            for flag, is_given in flags.items()
            if is_given
        ]


def session_settings(flags: RayFlags, debug: str | None) -> "SessionSettings":
    """Returns how the run gets Ray. Also sets this process's debug tags, for backbone debug."""
    from ajet.cluster.connection import SessionSettings
    from ajet.core.user_code.breakpoint import TAGS_VARIABLE, debug_tags

    if flags.with_ray and flags.with_ray_cluster:
        raise typer.BadParameter("give one of --with-ray and --with-ray-cluster")
    tags = debug_tags(debug or "")
    if debug is not None and not tags:
        raise OptionError('--debug: give a tag, as in bp("TAG"); several as "A|B"')
    if tags:
        os.environ[TAGS_VARIABLE] = "|".join(tags)
    return SessionSettings(
        mode="start" if flags.with_ray else "cluster" if flags.with_ray_cluster else "auto",
        debug_tags=tags,
        check_gpus=not flags.skip_check_avail_gpu,
    )


def serve_or_check(config: "AjetConfig", session: "SessionSettings") -> bool:
    """Returns True after this machine has served another machine's run. If it starts a Ray, raises
    ConfigError unless the run fits this machine."""
    from ajet.cluster.connection import choose_connection
    from ajet.cluster.session import serve_as_node

    connection = choose_connection(session, os.environ)
    if connection.action == "serve":
        return serve_as_node(session, lambda text: typer.echo(text, err=True))
    if connection.action == "start":
        from ajet.plan.gpu_plan import check_local

        check_local(config)
    return False
