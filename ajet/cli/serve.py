"""Implements `ajet serve`: a training whose episodes, or whose steps, are a client's over HTTP."""

import json
import os
import secrets
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import (
    Backbone,
    ExpDir,
    Overrides,
    ProjectDir,
    RayFlags,
    SkipCheckAvailGpu,
    Verbose,
    WithRay,
    WithRayCluster,
    no_words,
    serve_or_check,
    session_settings,
)

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

KEY_VARIABLE = "AJET_SERVE_API_KEY"
POLL_S = 0.2


def serve(
    conf: Annotated[
        Path | None,
        typer.Option(
            "--conf",
            help="The YAML that names workflow, tasks, judge and model; --swarm and --tinker need "
            "none.",
            autocompletion=no_words,
        ),
    ] = None,
    overrides: Overrides = None,
    backbone: Backbone = None,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    with_ray: WithRay = False,
    with_ray_cluster: WithRayCluster = False,
    skip_check_avail_gpu: SkipCheckAvailGpu = False,
    swarm: Annotated[
        bool,
        typer.Option("--swarm", help="Wait for clients, which send the config and start the run."),
    ] = False,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="Serve the model, and train it on feedback on its replies."),
    ] = False,
    tinker: Annotated[
        bool,
        typer.Option("--tinker", help="Serve Tinker's API, for scripts that use its SDK."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="The model of --tinker: a folder, a Hub name, a .gguf file."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Train on episodes that clients run, over HTTP.

    A client (`ajet.client`, or any HTTP client) begins an episode, calls the model with OpenAI's or
    Anthropic's API, and ends the episode with a reward. The server's key is AJET_SERVE_API_KEY, or
    a new one that is printed. Ctrl-C stops after the step, a second one at once; the same command
    continues from the last checkpoint.

    With --swarm clients also configure, start and stop the run; what this command sets
    (--backbone, key=value) comes before their config. Whoever has the key decides what this machine
    runs.

    With --learn there are no episodes: clients use the model, and send feedback on its replies
    later. When there is enough, a new version is trained in the background, measured on held-out
    tasks, and promoted or rolled back.

    With --tinker the client has the loop: it samples, computes gradients and makes optimizer steps
    through Tinker's SDK, with TINKER_BASE_URL set to this server's address.
    """
    from ajet.cli.notices import begin_command, show_notices
    from ajet.cli.preflight import check_run
    from ajet.core.config import load_config
    from ajet.serve.exchange.setup import SETS

    if tinker + learn + swarm > 1:
        raise typer.BadParameter("--swarm, --learn and --tinker are servers: give one of them")
    if swarm and conf is not None:
        raise typer.BadParameter("--swarm has no --conf: its clients send one")
    if tinker and conf is None and model is None:
        raise typer.BadParameter("--tinker needs --model, or a --conf with ajet.model.path")
    if model is not None and not tinker:
        raise typer.BadParameter("--model goes with --tinker; a config has ajet.model.path")
    begin_command(verbose)
    flags = RayFlags(with_ray, with_ray_cluster, skip_check_avail_gpu)
    if tinker:
        return serve_tinker(conf, model, overrides or [], exp_dir, flags)
    if swarm:
        return serve_swarm(overrides or [], backbone, exp_dir, project_dir, flags)
    if conf is None:
        raise typer.BadParameter("give --conf, --swarm, or --tinker with --model")
    options = [*(overrides or []), *(() if learn else SETS)]
    config = load_config(conf, options, backbone=backbone, exp_dir=exp_dir, project_dir=project_dir)
    if learn:
        from ajet.serve.online.setup import check_can_learn as check_can_serve
    else:
        from ajet.serve.exchange.setup import check_can_serve
    check_can_serve(config)
    show_notices([*config.notices, *check_run(config), *flags.notices(config.ajet.backbone)])
    if learn:
        serve_learning(config)
    else:
        serve_episodes(config, flags)


def serve_episodes(config: "AjetConfig", flags: RayFlags) -> None:
    from ajet import backbones
    from ajet.core.errors import RunComplete
    from ajet.core.process.interrupt import Interrupt
    from ajet.core.text.terminal import Console
    from ajet.read.reports.summary_table import print_summary
    from ajet.serve.exchange.setup import make_exchange_gateway

    session = session_settings(flags, debug=None)
    if config.runs_on_ray and serve_or_check(config, session):
        return
    gateway = None
    if not config.has_explorer_elsewhere:
        key = server_key()
        gateway = make_exchange_gateway(config, key)
        line = f"episodes at {gateway.listen().removesuffix('/v1')}, {shown_key(key)}"
        if config.ajet.trainer_common.save_freq != 1:
            line += (
                "; after a kill, clients are asked again for episodes of steps since the last "
                "checkpoint (ajet.trainer_common.save_freq=1 writes one after each)"
            )
        typer.echo(line)
    interrupt = Interrupt()
    try:
        summary = backbones.fit(config, session, interrupt, gateway)
    except RunComplete as complete:
        typer.echo(complete.with_code())
        return
    except KeyboardInterrupt:
        raise typer.Exit(interrupt.exit_code) from None
    finally:
        if gateway is not None:
            gateway.close()
    if summary is not None:  # the explorer's command has none
        # Without the config: `ajet eval` would play its workflow, and here the agent is a client.
        print_summary(Console(), summary, config.run_folder)
    if interrupt.stopped_early:
        raise typer.Exit(interrupt.exit_code)


def serve_swarm(
    overrides: list[str],
    backbone: str | None,
    exp_dir: Path | None,
    project_dir: Path | None,
    flags: RayFlags,
) -> None:
    """Serves one run after another, as clients ask, until Ctrl-C."""
    from ajet.cli.swarm import SwarmCommand

    key = server_key()

    def show_address(url: str) -> None:
        typer.echo(f"waiting for clients at {url}, {shown_key(key)}; `ajet watch {url}` shows them")

    with tempfile.TemporaryDirectory(prefix="ajet-swarm-") as folder:
        yaml = Path(folder) / "swarm.yaml"
        command = SwarmCommand(yaml, overrides, backbone, exp_dir, project_dir, flags)
        raise typer.Exit(command.serve(key, show_address))


def serve_learning(config: "AjetConfig") -> None:
    """Serves a model that keeps learning from feedback, until Ctrl-C."""
    from ajet.core.process.interrupt import catch_interrupts
    from ajet.core.record.run_folder import RunFolder
    from ajet.core.record.run_log import run_log
    from ajet.serve.online.serving import OnlineServer

    key = server_key()
    with (
        RunFolder.open(config.run_folder) as folder,
        run_log(folder.logs / "run.log"),
        catch_interrupts() as interrupt,
    ):
        server = OnlineServer(config, folder, key)
        address = server.gateway.listen()
        served = ", ".join(
            f"version {models.current.version}" + (f" of adapter {name}" if name else "")
            for name, models in server.models.items()
        )
        typer.echo(f"{served} at {address}, {shown_key(key)}; Ctrl-C ends it")
        try:
            server.run(interrupt, typer.echo)
        except KeyboardInterrupt:
            raise typer.Exit(interrupt.exit_code) from None


def serve_tinker(
    conf: Path | None,
    model: str | None,
    overrides: list[str],
    exp_dir: Path | None,
    flags: RayFlags,
) -> None:
    """Serves Tinker's API until Ctrl-C. With Ray, other processes sample."""
    from ajet.cli.notices import show_notices
    from ajet.core.config import load_config
    from ajet.core.process.interrupt import catch_interrupts
    from ajet.core.record.run_folder import RunFolder, shown_path
    from ajet.core.record.run_log import run_log
    from ajet.serve.tinker.samplers import CONFIG
    from ajet.serve.tinker.server import make_service, start_server

    model_key = [] if model is None else [f"ajet.model.path={json.dumps(model)}"]
    on_ray = flags.with_ray or flags.with_ray_cluster
    backbone = "verl" if on_ray else "debug"
    config = load_config(
        conf or CONFIG, [*model_key, *overrides], backbone=backbone, exp_dir=exp_dir
    )
    show_notices(config.notices)
    ray: AbstractContextManager[object] = nullcontext()
    if on_ray:
        from ajet.cluster.session import ray_session

        ray = ray_session(session_settings(flags, debug=None), config, typer.echo)
    with (
        RunFolder.open(config.run_folder) as folder,
        run_log(folder.logs / "run.log"),
        ray,
        catch_interrupts() as interrupt,
    ):
        service = make_service(config, folder, on_ray=on_ray)
        server = start_server(service, config, os.environ.get(KEY_VARIABLE))
        address = server.base_url.removesuffix("/v1")
        typer.echo(
            f"{config.ajet.model.path} at TINKER_BASE_URL={address}, any TINKER_API_KEY that "
            "begins with tml-; Ctrl-C ends it\n"
            f"each training run is a folder that `ajet view {shown_path(folder.path)}` shows"
        )
        try:
            while not interrupt.requested:
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            raise typer.Exit(interrupt.exit_code) from None
        finally:
            server.close(finish_s=1)
    raise typer.Exit(interrupt.exit_code)


def server_key() -> str:
    return os.environ.get(KEY_VARIABLE) or f"sk-serve-{secrets.token_hex(16)}"


def shown_key(key: str) -> str:
    """Returns the server's key for the screen; a key from the environment is not shown."""
    return f"the key of {KEY_VARIABLE}" if os.environ.get(KEY_VARIABLE) else f"key {key}"
