"""Implements `ajet serve --learn`: a model that is served and keeps learning from feedback."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ajet.cli.ray_flags import RayFlags


def serve_learning(
    conf: Path,
    overrides: Sequence[str],
    backbone: str | None,
    exp_dir: Path | None,
    project_dir: Path | None,
    flags: "RayFlags",
    verbose: bool,
) -> None:
    """Serves until Ctrl-C."""
    from ajet.cli.notices import show_notices
    from ajet.cli.preflight import check_run
    from ajet.cli.serve import server_key, shown_key
    from ajet.core.config import load_config
    from ajet.core.descriptors import raise_descriptor_limit
    from ajet.core.interrupt import catch_interrupts
    from ajet.core.record.run_folder import RunFolder
    from ajet.core.record.run_log import run_log
    from ajet.core.record.screen_log import begin_screen_log
    from ajet.online.serving import OnlineServer
    from ajet.online.setup import check_can_learn

    begin_screen_log(verbose)
    raise_descriptor_limit()
    config = load_config(
        conf, list(overrides), backbone=backbone, exp_dir=exp_dir, project_dir=project_dir
    )
    check_can_learn(config)
    notices = [*config.notices, *check_run(config), *flags.notices(config.ajet.backbone)]
    show_notices(notices)
    key = server_key()
    with (
        RunFolder.open(config.run_folder) as folder,
        run_log(folder.logs / "run.log"),
        catch_interrupts() as interrupt,
    ):
        server = OnlineServer(config, folder, key)
        address, version = server.gateway.listen(), server.models.current.version
        typer.echo(f"version {version} at {address}, {shown_key(key)}; Ctrl-C ends it")
        try:
            server.run(interrupt, typer.echo)
        except KeyboardInterrupt:
            raise typer.Exit(interrupt.exit_code) from None
