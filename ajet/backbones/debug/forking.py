"""Runs a recorded episode again up to one of its turns, and goes on from there, for `ajet fork`.

    turn      0          1          2                    2                    3 …
    model     recorded   recorded   recorded        ┌──  sampled, fork 0  ──  sampled  ── judged
    tools     recorded   recorded   answers         ├──  sampled, fork 1  ──  sampled  ── judged
    states    as then    as then    as then         └──  …

The workflow, its environment and the judge are the real ones; the environment has its recorded
seed. Prompts and states up to the turn must be the recorded ones, else nothing is shown but the
first difference. Up to the turn, tools of the config give their recorded answers and are not
called, unless they give a reward, which takes their state. The forks are written into a folder of
their own in the run folder, as a group beside the original; the run's own record is only read.

Not covered: the state of services, and tools that the workflow itself calls: they are asked again.
A judge of groups sees each fork alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.agents.tools.toolbox import answers_in, answers_of_episodes
from ajet.backbones.debug.replaying import recorded_plan
from ajet.backbones.evaluating import Subject, load_subject
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError, DataError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.inference.engines.fork import ForkEngine
from ajet.core.inference.engines.in_process import InProcessEngine
from ajet.core.inference.engines.replay import RecordedCall
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.record.episode_reader import EpisodeRecord
from ajet.core.record.fork_folder import FORK_JSON, recorded_trajectory, write_forks
from ajet.core.record.recorded_run import RecordedRun
from ajet.core.rollout.admission import AdmittedEpisodes
from ajet.core.rollout.attempt import OnError
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import Trajectory
from ajet.core.update.manifest import step_of
from ajet.core.update.weights import find_checkpoint
from ajet.reports.fork_report import ForkReport
from ajet.reports.prompt_position import describe_position


@dataclass(frozen=True)
class ForkPoint:
    """Holds a recorded episode, the plan of it, and the turn from which it goes on otherwise."""

    record: EpisodeRecord
    plan: WorkflowTask
    turn: int

    @classmethod
    def of(cls, record: EpisodeRecord, turn: int, config: AjetConfig) -> ForkPoint:
        """Checks that the episode can be forked there."""
        name, last = record.row.episode_id, len(record.turns) - 1
        if not 0 <= turn <= last:
            have = f"turns 0 to {last}" if last > 0 else f"{last + 1} turns"
            raise DataError(f"--turn {turn}: episode {name} has {have}", code=Code.FORK_IMPOSSIBLE)
        if any(each.notes.is_given for each in record.turns):
            raise DataError(
                f"episode {name}: its replies were given to it: no model to fork",
                code=Code.FORK_IMPOSSIBLE,
            )
        return cls(record, recorded_plan(record, config), turn)

    def plans(self, num_forks: int) -> list[WorkflowTask]:
        """Returns the plans of the forks. A workflow sees what it has seen, but for the id of its
        episode."""
        name = f"{self.record.row.episode_id}-turn-{self.turn}"
        return [replace(self.plan, episode_id=f"{name}-{n:02d}") for n in range(num_forks)]

    def tool_answers(self) -> dict[str, str]:
        """Returns the answers of tools up to the turn, by the ids of their calls."""
        turns = self.record.turns[: self.turn + 1]
        return {name: text for turn in turns for name, text in answers_in(turn.messages).items()}


@dataclass(frozen=True)
class Forking:
    """Holds what all forks share, whatever samples them."""

    config: AjetConfig
    template: ChatTemplate
    judge: BaseJudge | None
    sampling: SamplingParams
    runs_tools: bool = False
    on_error: OnError | None = None

    async def run(
        self, point: ForkPoint, engine: ModelEndpoint, num_forks: int
    ) -> list[Trajectory]:
        """Returns the judged forks. Raises `DataError` where one departs from the record before it
        goes on."""
        calls = [RecordedCall(t.completion, t.started_s, t.ended_s) for t in point.record.turns]
        forked = ForkEngine(calls, point.turn, engine)
        plans = point.plans(num_forks)
        if not self.runs_tools:
            answers = point.tool_answers()
            answers_of_episodes.update({plan.episode_id: answers for plan in plans})
        gateway = assembly.make_gateway(self.config)
        limits = RolloutLimits.from_config(self.config)
        try:
            runner = assembly.make_runner(
                self.config,
                forked,
                self.template,
                judge=self.judge,
                sampling=self.sampling,
                gateway=gateway,
                limits=replace(limits, failure_policy="mask"),  # no second attempts
                on_error=lambda error: (
                    None
                    if forked.departure is not None or self.on_error is None
                    else self.on_error(error)
                ),
            )
            episodes = AdmittedEpisodes(plans, runner.rerun)
            forked.on_departure = episodes.stop
            runner.admission.admit(episodes)
            results = await episodes.results()
        finally:
            gateway.close()
            for plan in plans:
                answers_of_episodes.pop(plan.episode_id, None)
        if (line := self._departure(point, forked)) is not None:
            raise DataError(line, code=Code.FORK_IMPOSSIBLE)
        forks = [trajectory for trajectory in results if trajectory is not None]
        for fork in forks:
            _check_prefix(point, fork, forked.missing_calls(fork.episode_id))
        return forks

    def _departure(self, point: ForkPoint, forked: ForkEngine) -> str | None:
        """Returns the line about the first prompt that is not the recorded one; None where all
        are."""
        call = forked.departure
        if call is None:
            return None
        assert call.recorded is not None
        turn, at = point.record.turns[call.recorded], call.departs_at
        if at is None:
            asked = f"turn {call.recorded}: it asks for at most {call.max_tokens} tokens"
            return f"{asked}, and the recorded reply has {len(turn.token_ids)}"
        where = describe_position(turn, at, self.template)
        recorded = self._token(turn.prompt_ids.tolist(), at)
        now = self._token(call.prompt_ids, at)
        return (
            f"turn {call.recorded}: the prompt departs from the record at position {at}, in "
            f"{where}: recorded is {recorded}, now it is {now}; `ajet replay` shows both"
        )

    def _token(self, ids: Sequence[int], at: int) -> str:
        if at >= len(ids):
            return "its end"
        return f"token {ids[at]} ({self.template.text_of(ids[at : at + 1])!r})"


def fork_episode(
    run: RecordedRun,
    record: EpisodeRecord,
    config: AjetConfig,
    turn: int,
    num_forks: int,
    *,
    subject: Subject | None = None,
    temperature: float | None = None,
    runs_tools: bool = False,
    on_error: OnError | None = None,
) -> ForkReport:
    """Samples `num_forks` continuations from `turn` on and writes them. They are sampled as in
    training, by the run's newest checkpoint unless `subject` says which model; `temperature`
    replaces the run's. `runs_tools` calls tools again before the turn too."""
    config = with_render_dir(config, None)  # does not overwrite the run's own frames
    point = ForkPoint.of(record, turn, config)
    judge = make_judge(config)  # its errors are raised before a model is loaded
    subject = subject or Subject(checkpoint=find_checkpoint(run.folder.path))
    served = load_subject(config, subject)
    assert isinstance(served.engine, InProcessEngine) and served.template is not None
    if served.template.vocabulary_hash != run.template.vocabulary_hash:
        raise ConfigError(
            f"{served.name} has other tokens than the run: its recorded ids mean nothing to it",
            code=Code.OTHER_TOKENIZER,
        )
    if subject.checkpoint is not None:
        served.engine.publish(step_of(find_checkpoint(subject.checkpoint)))
    sampling = SamplingParams.from_config(config, "train")
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    forking = Forking(config, run.template, judge, sampling, runs_tools, on_error)
    forks = run_bounded(_run_and_close(forking, point, served.engine, num_forks))
    original = recorded_trajectory(record, point.plan)
    report = ForkReport(original, forks, turn, served.name, sampling, str(run.folder.path))
    folder = write_forks(run, config, [original, *forks], f"{point.plan.episode_id}-turn-{turn}")
    report.write(folder / FORK_JSON)
    return replace(report, folder=folder)


async def _run_and_close(
    forking: Forking, point: ForkPoint, engine: InProcessEngine, num_forks: int
) -> list[Trajectory]:
    try:
        return await forking.run(point, engine, num_forks)
    finally:
        await engine.close()


def _check_prefix(point: ForkPoint, fork: Trajectory, missing: Sequence[int]) -> None:
    """Raises `DataError` unless the fork has come to its turn as the original did."""
    if missing:
        end = f"it ended as {fork.outcome}" + (f": {fork.error}" if fork.error else "")
        raise DataError(
            f"turn {missing[0]} was recorded, and {fork.episode_id} did not make it; {end}",
            code=Code.FORK_IMPOSSIBLE,
        )
    for now, then in zip(fork.turns[: point.turn + 1], point.record.turns, strict=False):
        if now.completion.prompt_ids != tuple(then.prompt_ids.tolist()):
            continue  # agents that call at the same time may do so in another order
        pairs: list[tuple[str, Any, Any]] = [("state", now.state_key, then.state_key)]
        if then.turn_index < point.turn:
            pairs.append(("reward", now.reward, then.reward))
        elif now.state_key is None:  # the sampled action failed before the state was noted
            continue
        for what, value, recorded in pairs:
            if value != recorded:
                raise DataError(
                    f"turn {then.turn_index}: the {what} departs from the record: recorded is "
                    f"{recorded!r}, now it is {value!r}",
                    code=Code.FORK_IMPOSSIBLE,
                )
