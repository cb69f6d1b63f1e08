"""Runs a few episodes in this process and prints each in full, for `ajet debug`.

    first tasks -> episodes (errors of the workflow and the judge are raised) -> transcripts

Nothing is trained or written, and no failure policy is applied. There is no deadline, since the
user may be at a breakpoint.
"""

from dataclasses import replace

from rich.console import Console
from rich.text import Text

from ajet import assembly
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.record.signal import equal_outcomes
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.workflow.registry import WorkflowFactory
from ajet.reports.transcript import transcript

ALIKE = (
    "A run learns only where rewards differ within a group: look at more tasks with --tasks, and "
    "at what the judge was given"
)


def debug_episodes(
    config: AjetConfig,
    console: Console,
    *,
    num_tasks: int | None = None,
    parallel: int | None = None,
) -> list[Trajectory]:
    """Runs one episode of each of the first `num_tasks` training tasks, `parallel` at the same
    time, and prints each as it ends. None means the number in `ajet.debug`."""
    section = config.ajet.debug
    tasks = make_reader(config).get_training_tasks()[: num_tasks or section.debug_first_n_tasks]
    for agent in WorkflowFactory.from_config(config).classes_for(tasks):
        agent.check_config(config)
    judge = make_judge(config)  # its errors are raised before a model is loaded
    parallel = parallel or section.debug_max_parallel
    trajectories = run_bounded(_run(config, console, judge, tasks, parallel))
    console.print(_summary(trajectories))
    if len(trajectories) > 1 and (reason := equal_outcomes(trajectories)) is not None:
        console.print(Text(f"{reason}. {ALIKE}", style="yellow"), soft_wrap=True)
    return trajectories


async def _run(
    config: AjetConfig,
    console: Console,
    judge: BaseJudge | None,
    tasks: list[Task],
    parallel: int,
) -> list[Trajectory]:
    assembly.set_threads(config)
    loaded = assembly.load_policy_model(config)
    template = assembly.make_template(loaded)
    engine = assembly.make_engine(config, loaded, template)
    limits = replace(RolloutLimits.from_config(config), max_env_worker=parallel)
    gateway = assembly.make_gateway(config)
    runner = assembly.make_runner(
        config,
        engine,
        template,
        judge=judge,
        mode="train",
        gateway=gateway,
        debug=True,
        limits=limits,
    )

    def show(trajectory: Trajectory) -> None:
        if trajectory.status is not EpisodeStatus.ABORTED:  # ended by the error of another episode
            console.print(transcript(trajectory))

    try:
        groups = await runner.rollout(
            RolloutRequest(tasks, step=0, mode="train", num_repeat=1), on_episode=show
        )
    finally:
        gateway.close()
        await engine.close()
    return [trajectory for group in groups for trajectory in group.trajectories]


def _summary(trajectories: list[Trajectory]) -> Text:
    rewards = [t.reward for t in trajectories if t.reward is not None]
    wins = sum(bool(t.is_success) for t in trajectories)
    mean = f"{sum(rewards) / len(rewards):g}" if rewards else "none"
    num = len(trajectories)
    return Text(
        f"{num} episode{'s' * (num != 1)}, {wins} successful, mean reward {mean}; "
        "nothing was trained or written",
        style="bold",
    )
