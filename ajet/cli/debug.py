"""Implements `ajet debug`: runs the first tasks in this process and shows each episode in full."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ajet.cli.json_document import add_problem, answer
from ajet.cli.options import Conf, Overrides, ProjectDir, Verbose

if TYPE_CHECKING:
    from ajet.core.trajectory.trajectory import Trajectory


def debug(
    conf: Conf,
    overrides: Overrides = None,
    tasks: Annotated[
        int | None,
        typer.Option(min=1, help="Run the first N tasks. [ajet.debug.debug_first_n_tasks]"),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="How many at the same time. [ajet.debug.debug_max_parallel]"),
    ] = None,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="The same as --parallel 1.")
    ] = False,
    max_reply_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="The most tokens of a reply. [ajet.debug.debug_max_reply_tokens]"),
    ] = None,
    backbone: Annotated[
        Literal["debug", "verl", "trinity"] | None,
        typer.Option("--backbone", help="Only debug is accepted: episodes run in this process."),
    ] = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Run the first tasks and show each episode in full.

    Prints conversations, rewards and tokens live. Episodes run in this process, whatever the
    config's backbone. Nothing is trained or written. An exception in the workflow or the judge ends
    the command with its traceback.
    """
    from rich.text import Text

    from ajet.cli.notices import begin_command, show_notices
    from ajet.cli.preflight import check_classes
    from ajet.core.config import load_config
    from ajet.core.errors import AjetError
    from ajet.core.rollout.gc_thresholds import lasting_imports
    from ajet.core.text.error_text import extra_advice
    from ajet.core.text.terminal import Console

    if backbone not in (None, "debug"):
        raise typer.BadParameter(
            f"--backbone {backbone}: ajet debug runs episodes in this process, without Ray: leave "
            "--backbone out"
        )
    begin_command(verbose)
    config = load_config(conf, overrides or [], backbone="debug", project_dir=project_dir)
    check_classes(config)
    show_notices(config.notices)
    with lasting_imports():
        from ajet.backbones.debug.debugging import debug_episodes, observations
    try:
        trajectories = debug_episodes(
            config,
            Console(),
            num_tasks=tasks,
            parallel=1 if one_at_a_time else parallel,
            max_reply_tokens=max_reply_tokens,
        )
        notes = list(observations(config, trajectories, max_reply_tokens))
        for note in notes:
            Console().print(Text(note, style="yellow"), soft_wrap=True)
        episodes = [episode_answer(trajectory) for trajectory in trajectories]
        answer(episodes=episodes, observations=notes)
    except AjetError:
        raise
    except Exception as error:  # the user needs their own traceback
        if verbose or (isinstance(error, ModuleNotFoundError) and extra_advice(error.name or "")):
            raise
        from ajet.core.errors.codes import Code
        from ajet.core.text.error_text import one_line, user_traceback
        from ajet.core.text.redaction import redact

        add_problem(one_line(error), Code.OWN_CODE_FAILS)
        line = f"error: {type(error).__name__}: {error} (--verbose: where)\n"
        typer.echo(redact(user_traceback(error) or line), err=True, nl=False)
        raise typer.Exit(1) from error


def episode_answer(trajectory: "Trajectory") -> dict[str, Any]:
    """Returns an episode for --json. `messages` is the conversation of its last call, with the
    reply; `calls` has the replies of all calls, in order."""
    turns = trajectory.turns
    return {
        "episode_id": trajectory.workflow_task.episode_id,
        "task_id": trajectory.workflow_task.task_id,
        "status": trajectory.status,
        "reward": trajectory.reward,
        "is_success": trajectory.is_success,
        "failure": trajectory.failure,
        "num_calls": len(turns),
        "num_sampled_tokens": sum(turn.num_sampled_tokens for turn in turns),
        "num_cut_replies": sum(turn.is_cut for turn in turns),
        "messages": [*turns[-1].messages, turns[-1].reply] if turns else [],
        "calls": [{"agent": turn.agent_name, "reply": turn.reply} for turn in turns],
        "output": None if trajectory.output is None else trajectory.output.metadata,
    }
