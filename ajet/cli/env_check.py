"""Implements `ajet inspect env ID`: tests an environment before a model plays it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Verbose

if TYPE_CHECKING:
    from rich.table import Table

    from ajet.core.environment.registry import EnvironmentMaker
    from ajet.environments.check import EnvironmentReport


def env_check(
    env_type: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="frozen_lake, FrozenLake-v1, file.py->Class, …"),
    ] = None,
    env_config: Annotated[
        str, typer.Option(help="The environment's settings as JSON: '{\"size\": 8}'.")
    ] = "{}",
    conf: Annotated[
        Path | None, typer.Option("--conf", help="Take the environment from this YAML …")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="… the one of this tag.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="The number of seeds.")] = 32,
    group_size: Annotated[
        int, typer.Option(min=1, help="Random episodes per seed, like a training group.")
    ] = 8,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="The most steps of an episode. [the YAML's, or 50]")
    ] = None,
    split: Annotated[
        Literal["train", "validation"], typer.Option(help="Whose instances.")
    ] = "train",
    verbose: Verbose = False,
) -> None:
    """Check an environment by playing it.

    A random, a scripted and an oracle agent play. The scripted agent repeats the random one's
    actions and must see the same. Reports success, rewards, steps, their time, and how many groups
    would have no signal. Exit code 0: sound, 1: a fault was found. Loads no model.
    """
    if (env_type is None) == (conf is None):
        raise typer.BadParameter("name an environment, or a YAML with --conf and its --tag")
    if tag is not None and conf is None:
        raise typer.BadParameter("--tag names one of a YAML's: give --conf, or leave --tag out")

    from ajet.cli.notices import begin_command
    from ajet.core.text.terminal import Console
    from ajet.environments.check import EnvironmentCheck

    begin_command(verbose)
    if conf is None:
        assert env_type is not None
        maker, steps = _named(env_type, env_config), 50
    else:
        maker, steps = _configured(conf, tag)
    check = EnvironmentCheck(maker, episodes, group_size, seed, max_steps or steps, split)
    report = check.run()
    answer(environment=report)
    console = Console()
    if report.agents:
        console.print(_table(report))
    for line in _lines(report):
        console.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(1 if report.faults else 0)


def _named(env_type: str, env_config: str) -> "EnvironmentMaker":
    from ajet.core.environment.registry import environment_maker

    try:
        settings = json.loads(env_config)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise typer.BadParameter(f"--env-config {env_config!r} is not a JSON object")
    return environment_maker(env_type, settings, [Path.cwd()], "inspect env")


def _configured(conf: Path, tag: str | None) -> "tuple[EnvironmentMaker, int]":
    """Returns an environment of a YAML, and its `max_steps`."""
    from ajet.core.config import load_config
    from ajet.core.environment.registry import environment_maker

    config = load_config(conf)
    environments = config.ajet.environment.custom_envs
    tag = tag or (next(iter(environments)) if len(environments) == 1 else None)
    if tag not in environments:
        names = ", ".join(environments) or "none"
        raise typer.BadParameter(f"--tag: name one of {conf}'s custom_envs: {names}")
    custom, key = environments[tag], f"ajet.environment.custom_envs.{tag}.env_type"
    maker = environment_maker(custom.env_type, custom.env_config, config.base_dirs, key)
    return maker, custom.max_steps


def _table(report: "EnvironmentReport") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(report.name))
    for title in ("agent", "episodes", "success", "reward", "mean", "std", "steps"):
        table.add_column(title, justify="left" if title == "agent" else "right")
    for figures in report.agents:
        table.add_row(
            figures.name,
            str(figures.num_episodes),
            f"{figures.success:.1%}",
            f"{figures.reward_min:g} to {figures.reward_max:g}",
            f"{figures.reward_mean:.3f}",
            f"{figures.reward_std:.3f}",
            f"{figures.num_steps:.1f}",
        )
    return table


def _lines(report: "EnvironmentReport") -> list[Any]:
    lines = []
    if report.silent_groups is not None:
        lines.append(f"groups without signal: {report.silent_groups:.1%} of {report.num_groups}")
    if report.seconds_per_step is not None:
        lines.append(f"one step: {report.seconds_per_step * 1e6:,.1f} microseconds")
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"fault: {fault}" for fault in report.faults]
    if report.faults:
        return lines
    played = "sound: the same seed gives the same episode"
    return [*lines, played if report.agents else "nobody played it: it resets and returns text"]
