"""The process of one round: trains a version, measures it, and promotes it or rolls it back.

    python -m ajet.serve.online.learner RUN ROUND

    held-out and shadow traffic with the served version ─> training ─> the same with the new one
        ─> rule ─> promoted: a checkpoint, then the decision in the log │ rolled back: the decision

The server answers requests meanwhile. A learner that was killed is started again with the same
round: until the decision is in the log nothing of the round counts.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.config.services import LearnConfig
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.record.evaluation import IntervalEstimate, paired_difference, share_over_tasks
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.run_log import begin_screen_log
from ajet.core.record.run_recorder import RunRecorder
from ajet.core.rollout.batch import StepGroups
from ajet.core.task.task import Task
from ajet.core.text.terminal import Console
from ajet.read.recorded_run import RecordedRun
from ajet.serve.online.held_out import (
    ShadowTraffic,
    compare_shadow,
    play_held_out,
    tasks_of,
    verdicts_of,
    wins_of,
)
from ajet.serve.online.log import MAX_CLIENTS, RatedSession, Round, SessionLog, Wins
from ajet.serve.online.round import RoundLearner, groups_of


def main() -> None:
    begin_screen_log(False)
    run, number = RecordedRun(Path(sys.argv[1])), int(sys.argv[2])
    os.nice(run.config.ajet.serve.learn.niceness)
    log = SessionLog(run.folder.path)
    run_round(run.config, run.folder, log, log.round(number))
    log.close()


def run_round(config: AjetConfig, folder: RunFolder, log: SessionLog, open_round: Round) -> None:
    learner = RoundLearner(config, folder)
    # Templates may print the date: all rounds of a run print that of its first start.
    learner.template.today = datetime.fromisoformat(RunOrigin.read(folder.origin_json).begun)
    learner.load(folder.checkpoints, log.version)
    tasks = assembly.read_tasks(config).held_out
    run_bounded(RoundWork(learner, folder, log, open_round, tasks, make_judge(config)).run())


@dataclass(frozen=True)
class RoundWork:
    learner: RoundLearner
    folder: RunFolder
    log: SessionLog
    round: Round
    tasks: Sequence[Task]
    judge: BaseJudge | None

    async def run(self) -> None:
        """Trains and measures; stores the decision last, together with the evidence."""
        learner, number, base = self.learner, self.round.number, self.round.base
        tasks = tasks_of(learner.config, self.tasks, self.round.adapter)
        started_s = time.monotonic()
        sessions = self.log.sessions_of(number)
        shadow = ShadowTraffic.of(learner.config, self.round, sessions)
        served_wins = self.log.held_out(base)
        with self._recorder(is_first=served_wins is None and not base) as recorder:
            if served_wins is None:
                # Nothing has been trained yet, so this measures version 0 of every adapter.
                served_wins = await self._measure(recorder, base, dict(enumerate(self.tasks)))
                self.log.add_held_out(base, served_wins)
            served_wins = {task.task_id: served_wins[task.task_id] for task in tasks.values()}
            served = await shadow.seen_by(learner, self.judge, base)
            metrics = self._train(recorder, sessions)
            wins = await self._measure(recorder, number, tasks)
            seen = compare_shadow(served, await shadow.seen_by(learner, self.judge, number))
        difference = paired_difference(wins, served_wins)
        decision = decide(learner.config.ajet.serve.learn, difference, seen)
        report = {
            **self.round.report,
            "reason": decision.reason,
            "held_out": {
                "before": _success(served_wins),
                "after": _success(wins),
                "difference": difference.as_json(),
            },
            "shadow": seen,
            "reward": sum(session.reward for session in sessions) / len(sessions),
            "clients": describe_clients(sessions),
            "update": {name: metrics[name] for name in sorted(metrics) if "update/" in name},
            "seconds": round(time.monotonic() - started_s, 2),
        }
        if decision.is_promoted:
            learner.save(self.folder.checkpoints, number)
        state = "promoted" if decision.is_promoted else "rolled_back"
        checksum = learner.checksum(number, self.round.adapter)
        self.log.end_round(number, state, checksum, report, wins)

    def _recorder(self, is_first: bool) -> RunRecorder:
        """Returns the run's recorder, which cuts off what an earlier attempt at this round wrote.
        The first round also records the base model's held-out episodes, at step 0."""
        number = self.round.number
        return RunRecorder(
            self.learner.config,
            self.folder,
            Console(),
            first_step=number,
            total_steps=number,
            is_resumed=not is_first,
        )

    def _train(self, recorder: RunRecorder, sessions: Sequence[RatedSession]) -> dict[str, float]:
        number = self.round.number
        groups = groups_of(sessions, number)
        batch, metrics = self.learner.train(groups, number)
        metrics["feedback/unreliable_clients"] = len(self.round.unreliable_clients)
        metrics["feedback/unreliable_sessions"] = self.log.counts(self.round.adapter)[
            "num_unreliable"
        ]
        traffic_s = max(sessions[-1].unix_s - sessions[0].unix_s, 1e-3)
        recorder.step(number, StepGroups(groups, [], traffic_s), batch, metrics)
        return metrics

    async def _measure(
        self, recorder: RunRecorder, version: int, tasks: Mapping[int, Task]
    ) -> Wins:
        groups = await play_held_out(self.learner, tasks, self.judge, version)
        self.log.add_verdicts(verdicts_of(groups))
        recorder.validation(version, groups)
        return wins_of(groups)


def _success(wins: Wins) -> dict[str, Any]:
    shares = [sum(successes) / len(successes) for successes in wins.values()]
    return share_over_tasks(shares, max(map(len, wins.values()), default=0)).as_json()


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a version is promoted, and why, in one line."""

    is_promoted: bool
    reason: str


def decide(learn: LearnConfig, difference: IntervalEstimate, shadow: Mapping[str, Any]) -> Decision:
    """Decides by the difference in held-out success between the new version and the served one.

    promote: interval     the lower end of the 95 % interval of the difference >= min_difference
    promote: difference   the mean difference                                  >= min_difference
    max_shadow_kl         and the new version is not further away than this on shadow traffic
    """
    name, value = "difference", difference.value
    if learn.promote == "interval":
        name, value = "lower end of the difference", difference.low
    success = (
        f"held-out success {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    )
    kl = shadow.get("kl")
    if learn.max_shadow_kl is not None and kl is not None and kl > learn.max_shadow_kl:
        return Decision(False, f"{success}; shadow KL {kl:.4f} is above {learn.max_shadow_kl:g}")
    if value >= learn.min_difference:
        return Decision(True, success)
    return Decision(False, f"{success}; the {name} is below {learn.min_difference:g}")


def describe_clients(sessions: Sequence[RatedSession]) -> list[dict[str, Any]]:
    """Returns the clients of a round with the number and mean of their rewards, and `z`: how many
    standard errors their mean is from that of all other clients, largest first. It is only a hint,
    since clients may differ in what they ask."""
    rewards: dict[str, list[float]] = {}
    for session in sessions:
        rewards.setdefault(session.client, []).append(session.reward)
    spread = pstdev([session.reward for session in sessions]) if sessions else 0.0
    total, count = sum(session.reward for session in sessions), len(sessions)
    clients = []
    for client, values in rewards.items():
        # The standard error uses the spread over all sessions for both means.
        num_others = count - len(values)
        z = 0.0
        if num_others and spread:
            other_mean = (total - sum(values)) / num_others
            error = spread * math.sqrt(1 / len(values) + 1 / num_others)
            z = (fmean(values) - other_mean) / error
        clients.append(
            {"client": client, "sessions": len(values), "reward": fmean(values), "z": round(z, 2)}
        )
    return sorted(clients, key=lambda row: -abs(row["z"]))[:MAX_CLIENTS]


if __name__ == "__main__":
    main()
