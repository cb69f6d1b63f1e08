"""Runs a few episodes in this process and prints what happens in them, for `ajet debug`. Nothing is
trained or written, no failure policy applies, and episodes have no deadline, since the user may be
at a breakpoint.
"""

from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.record.signal import equal_outcomes
from ajet.core.record.step_warnings import UNUSED_MODEL, CallForms
from ajet.core.rollout.failure import has_failed
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.workflow.registry import WorkflowFactory
from ajet.read.reports.transcript import LiveTranscripts

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
    max_reply_tokens: int | None = None,
) -> list[Trajectory]:
    """Runs one episode of each of the first `num_tasks` training tasks, `parallel` at a time, with
    replies of at most `max_reply_tokens` (short ones, so that a model that does not stop shows
    soon), and prints them live. None means the number in `ajet.debug`. Errors of the workflow and
    the judge are raised."""
    section = config.ajet.debug
    tasks = make_reader(config).get_training_tasks()[: num_tasks or section.debug_first_n_tasks]
    # Errors of the workflow and the judge are raised before a model is loaded.
    workflows, judge = assembly.load_workflows(config, tasks), make_judge(config)
    parallel = parallel or section.debug_max_parallel
    limits = replace(RolloutLimits.from_config(config), max_env_worker=parallel)
    longest = max_reply_tokens or section.debug_max_reply_tokens
    if longest is not None and longest < limits.max_response_length_in_one_turn:
        limits = replace(limits, max_response_length_in_one_turn=longest)
    trajectories = run_bounded(_run(config, console, workflows, judge, tasks, limits))
    console.print(_summary(trajectories))
    return trajectories


def observations(
    config: AjetConfig, trajectories: list[Trajectory], max_reply_tokens: int | None = None
) -> Iterator[str]:
    """Yields what is unusual about the episodes: an unused model, calls in another form, replies
    that the limit of `ajet debug` cut, equal rewards."""
    if not any(turn.num_sampled_tokens for t in trajectories for turn in t.turns):
        yield UNUSED_MODEL
    if (line := CallForms.of(trajectories).line(config)) is not None:
        yield line
    limit = max_reply_tokens or config.ajet.debug.debug_max_reply_tokens
    if limit is not None and limit < config.ajet.rollout.max_response_length_in_one_turn:
        replies = [turn.completion for t in trajectories for turn in t.turns]
        num_cut = sum(r.finish_reason == "length" and len(r.token_ids) == limit for r in replies)
        if num_cut:
            yield (
                f"{num_cut} of {len(replies)} replies were cut at {limit} tokens, the limit of "
                "ajet debug; --max-reply-tokens N gives another "
                "(ajet.debug.debug_max_reply_tokens, null for none)"
            )
    if len(trajectories) > 1 and (reason := equal_outcomes(trajectories)) is not None:
        yield f"{reason}. {ALIKE}"


async def _run(
    config: AjetConfig,
    console: Console,
    workflows: WorkflowFactory,
    judge: BaseJudge | None,
    tasks: list[Task],
    limits: RolloutLimits,
) -> list[Trajectory]:
    assembly.prepare_torch(config)
    loaded = assembly.load_policy_model(config)
    template = assembly.make_template(loaded)
    num_parallel = min(limits.max_env_worker, len(tasks))
    live = LiveTranscripts(console, template, num_parallel=num_parallel)
    engine = assembly.make_engine(config, loaded, template, on_tokens=live.on_tokens)
    gateway = assembly.make_gateway(config)

    def show(trajectory: Trajectory) -> None:
        # An aborted episode was cancelled because another one failed: only that error is of use.
        if trajectory.status is not EpisodeStatus.ABORTED:
            live.end(trajectory)

    try:
        runner = assembly.make_runner(
            config,
            engine,
            template,
            judge=judge,
            gateway=gateway,
            debug=True,
            limits=limits,
            observe=live.begin,
            workflows=workflows,
        )
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
    num, are_judged = len(trajectories), bool(rewards) or any(map(has_failed, trajectories))
    successful = f"{wins} successful" if are_judged else "none judged"
    return Text(
        f"{num} episode{'s' * (num != 1)}, {successful}, mean reward {mean}; "
        "nothing was trained or written",
        style="bold",
    )
