"""Repeats a recorded episode up to a turn and samples new continuations, for `ajet inspect fork`.

turn      0          1          2                    2                    3 …
model     recorded   recorded   recorded        ┌──  sampled, fork 0  ──  sampled  ── judged
tools     recorded   recorded   answers         ├──  sampled, fork 1  ──  sampled  ── judged
states    as then    as then    as then         └──  …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.backbones.debug.replaying import recorded_plan
from ajet.backbones.evaluating import Subject, load_subject
from ajet.core.checkpoint.manifest import find_checkpoint, step_of
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError, DataError
from ajet.core.errors.codes import Code
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.rollout.admission import AdmittedEpisodes
from ajet.core.rollout.attempt import OnError
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import Trajectory
from ajet.engines.in_process import InProcessEngine
from ajet.engines.replay import ForkEngine, RecordedCall
from ajet.read.episode_reader import EpisodeRecord
from ajet.read.fork_folder import FORK_JSON, recorded_trajectory, write_forks
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.fork_report import ForkReport
from ajet.read.reports.replay_report import describe_position
from ajet.tools.toolbox import answers_in, answers_of_episodes


@dataclass(frozen=True)
class ForkPoint:
    """A recorded episode, its plan, and the turn at which forks depart from it."""

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
        if any(turn_record.notes.is_given for turn_record in record.turns):
            raise DataError(
                f"episode {name}: its replies were not sampled, so there is no model to fork",
                code=Code.FORK_IMPOSSIBLE,
            )
        return cls(record, recorded_plan(record, config), turn)

    def plans(self, num_forks: int) -> list[WorkflowTask]:
        """Returns the plans of the forks, which differ from the original's in the id only."""
        name = f"{self.record.row.episode_id}-turn-{self.turn}"
        return [replace(self.plan, episode_id=f"{name}-{n:02d}") for n in range(num_forks)]


@dataclass(frozen=True)
class Forking:
    """What all forks of an episode share, whichever engine samples them.

    The workflow, its environment (with the recorded seed) and the judge are the real ones. Up to
    the turn, the config's tools give their recorded answers and are not called, unless they give a
    reward, which needs their state; tools that the workflow calls itself are called again."""

    config: AjetConfig
    template: ChatTemplate
    judge: BaseJudge | None
    sampling: SamplingParams
    runs_tools: bool = False
    on_error: OnError | None = None

    async def run(
        self, point: ForkPoint, engine: ModelEndpoint, num_forks: int
    ) -> list[Trajectory]:
        """Returns the judged forks. Raises `DataError` if one departs from the record before its
        turn."""
        calls = [RecordedCall(t.completion, t.started_s, t.ended_s) for t in point.record.turns]
        forked = ForkEngine(calls, point.turn, engine)
        plans = point.plans(num_forks)
        if not self.runs_tools:
            turns = point.record.turns[: point.turn + 1]
            answers = {k: text for turn in turns for k, text in answers_in(turn.messages).items()}
            answers_of_episodes.update({plan.episode_id: answers for plan in plans})
        gateway = assembly.make_gateway(self.config)
        limits = RolloutLimits.from_config(self.config)

        def on_error(error: BaseException) -> None:
            # After a departure the workflow's error is only a consequence of the stopped engine.
            if forked.departure is None and self.on_error is not None:
                self.on_error(error)

        try:
            runner = assembly.make_runner(
                self.config,
                forked,
                self.template,
                judge=self.judge,
                sampling=self.sampling,
                gateway=gateway,
                limits=replace(limits, failure_policy="mask"),  # no second attempts
                on_error=on_error,
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
        """Describes the first prompt that differs from the record; None if all are equal."""
        call = forked.departure
        if call is None:
            return None
        assert call.recorded is not None
        turn, at = point.record.turns[call.recorded], call.departs_at
        if at is None:
            return (
                f"turn {call.recorded}: it asks for at most {call.max_tokens} tokens, and the "
                f"recorded reply has {len(turn.token_ids)}"
            )
        location = describe_position(turn, at, self.template)
        recorded = self._token(turn.prompt_ids.tolist(), at)
        now = self._token(call.prompt_ids, at)
        return (
            f"turn {call.recorded}: the prompt departs from the record at position {at}, in "
            f"{location}: recorded is {recorded}, now it is {now}; `ajet inspect replay` shows both"
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
    training, by the run's newest checkpoint or by `subject`; `temperature` replaces the run's.
    With `runs_tools` tools are called again before the turn too."""
    config = with_render_dir(config, None)  # does not overwrite the run's own frames
    point = ForkPoint.of(record, turn, config)
    judge = make_judge(config)  # its errors are raised before a model is loaded
    subject = subject or Subject(checkpoint=find_checkpoint(run.folder.path))
    seen = run.template.images
    served = load_subject(config, subject, images=None if seen is None else seen.store)
    assert isinstance(served.engine, InProcessEngine) and served.template is not None
    if served.template.vocabulary_hash != run.template.vocabulary_hash:
        raise ConfigError(
            f"{served.name} has another vocabulary than the run: the recorded ids do not fit it",
            code=Code.OTHER_TOKENIZER,
        )
    if subject.checkpoint is not None:
        served.engine.publish(step_of(find_checkpoint(subject.checkpoint)))
    sampling = SamplingParams.from_config(config, "train")
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    forking = Forking(config, run.template, judge, sampling, runs_tools, on_error)
    engine = served.engine

    async def run_and_close() -> list[Trajectory]:
        try:
            return await forking.run(point, engine, num_forks)
        finally:
            await engine.close()

    forks = run_bounded(run_and_close())
    original = recorded_trajectory(record, point.plan)
    report = ForkReport(original, forks, turn, served.name, sampling, str(run.folder.path))
    folder = write_forks(run, config, [original, *forks], f"{point.plan.episode_id}-turn-{turn}")
    report.write(folder / FORK_JSON)
    return replace(report, folder=folder)


def _check_prefix(point: ForkPoint, fork: Trajectory, missing: Sequence[int]) -> None:
    """Raises `DataError` unless the fork reached its turn as the original did."""
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
        for name, value, recorded in pairs:
            if value != recorded:
                raise DataError(
                    f"turn {then.turn_index}: the {name} departs from the record: recorded is "
                    f"{recorded!r}, now it is {value!r}",
                    code=Code.FORK_IMPOSSIBLE,
                )
