"""Implements `ajet optimize-prompt`: searches for a better system prompt."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import (
    Checkpoint,
    Conf,
    Endpoint,
    EndpointModel,
    ExpDir,
    Overrides,
    Overwrite,
    ProjectDir,
    Verbose,
    output_file,
    refuse_existing,
)


def optimize_prompt(
    conf: Conf,
    overrides: Overrides = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A text to change, by its key in the config, such as my_agent.prompt; may be "
            "repeated. [ajet.rollout.multi_turn.system_prompt]"
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    endpoint: Endpoint = None,
    endpoint_model: EndpointModel = None,
    reflection_endpoint: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible address of the model that writes new texts; its key is "
            "AJET_REFLECTION_API_KEY, or as above. [the evaluated model]"
        ),
    ] = None,
    reflection_model: Annotated[
        str | None, typer.Option(help="The name of that model at its address.")
    ] = None,
    num_tasks: Annotated[
        int, typer.Option(min=1, help="The number of training tasks that the search plays.")
    ] = 24,
    episodes: Annotated[int, typer.Option(min=1, help="The most episodes of the search.")] = 300,
    num_held_out: Annotated[
        int | None,
        typer.Option(min=1, help="Held-out tasks, played before and after it. [as validation]"),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", min=1, help="Episodes of a held-out task. [trainer_common.val_pass_n]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the YAML with the best texts here. [CONF_prompt.yaml next to CONF]",
            callback=output_file,
        ),
    ] = None,
    overwrite: Overwrite = False,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Search for a better prompt, measured on held-out tasks.

    The search plays episodes of training tasks and changes no weights, so try it before training.
    The result is the config with better texts.
    """
    if (endpoint is None) != (endpoint_model is None):
        raise typer.BadParameter("--endpoint and --endpoint-model go together")
    if (reflection_endpoint is None) != (reflection_model is None):
        raise typer.BadParameter("--reflection-endpoint and --reflection-model go together")
    if checkpoint is not None and endpoint is not None:
        raise typer.BadParameter("give one of --checkpoint and --endpoint")
    if out is None:
        out = conf.with_name(f"{conf.stem}_prompt.yaml")
        refuse_existing("--out", out, overwrite=overwrite)
    elif out.suffix not in (".yaml", ".yml"):
        raise typer.BadParameter(f"--out {out}: a config ends in .yaml")
    import gepa  # noqa: F401 - says which extra is missing before a model is loaded

    from ajet.backbones.evaluating import Subject
    from ajet.backbones.prompt_search import (
        DEFAULT_KEY,
        SearchSettings,
        endpoint_reflection,
        search_prompts,
        write_config,
    )
    from ajet.cli.eval import episode_progress
    from ajet.cli.notices import begin_command, show_notices
    from ajet.cli.preflight import check_classes
    from ajet.core.config import load_config
    from ajet.core.text.terminal import Console

    begin_command(verbose)
    subject = Subject(None, checkpoint, endpoint, endpoint_model)
    config = load_config(
        conf,
        overrides or [],
        backbone="debug",
        exp_dir=exp_dir,
        project_dir=project_dir,
        required=subject.required,
    )
    check_classes(config)
    show_notices(config.notices)
    reflection = None
    if reflection_endpoint is not None and reflection_model is not None:
        reflection = endpoint_reflection(reflection_endpoint, reflection_model, config)
    keys = tuple(dict.fromkeys(text or [DEFAULT_KEY]))
    settings = SearchSettings(keys, num_tasks, episodes, num_held_out, k)
    with episode_progress() as (_, on_episode):
        result = search_prompts(config, subject, settings, reflection, on_episode)
    answer(folder=result.folder, num_episodes=result.num_episodes, texts=result.after)
    typer.echo(f"episodes: {result.folder} (ajet view shows them)")
    if result.comparison is None:
        typer.echo(f"found no better text in {result.num_episodes} episodes")
        return
    answer(comparison=result.comparison.as_plain(), out=out)
    Console().print(result.comparison.shown())
    for key, best_text in result.after.items():
        typer.echo(f"\n{key}:\n{best_text}")
    write_config(result, conf, out)
    typer.echo(f"\nwritten: {out}; train with it: ajet --conf {shlex.quote(str(out))}")
