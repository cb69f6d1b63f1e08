"""The process of one round (`python -m ajet.serve.online.learner RUN ROUND`): trains a version,
measures it on the held-out tasks and on recorded traffic, and promotes it or rolls it back. A
learner that was killed is started again with the same round: until the decision is in the log
nothing of the round counts.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet import assembly
from ajet.core import seeding
from ajet.core.config import AjetConfig
from ajet.core.config.services import LearnConfig
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.judge.verdict import JudgeFault
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.record.evaluation import (
    IntervalEstimate,
    mean_over_tasks,
    paired_difference,
    share_over_tasks,
)
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.run_log import begin_screen_log
from ajet.core.record.run_recorder import RunRecorder
from ajet.core.rollout.batch import StepGroups
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.text.terminal import Console
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.read.recorded_run import RecordedRun
from ajet.serve.online.feedback import judged
from ajet.serve.online.log import MAX_CLIENTS, RatedSession, Round, SessionLog, Wins
from ajet.serve.online.round import RoundLearner, groups_of
from ajet.serve.online.sessions import conversation_keys
from ajet.serve.online.setup import tasks_of


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
        """Trains and measures; stores the decision last, together with the evidence. Both versions
        play the same tasks with the same seeds, so they are compared task by task."""
        learner, number, base = self.learner, self.round.number, self.round.base
        tasks = tasks_of(learner.config, self.tasks, self.round.adapter)
        started_s = time.monotonic()
        sessions = self.log.sessions_of(number)
        shadow = ShadowTraffic.of(learner.config, self.round, sessions)
        served_wins = self.log.held_out(base)
        # The recorder cuts off what an earlier attempt at this round wrote. The first round also
        # records the base model's held-out episodes, at step 0.
        with RunRecorder(
            learner.config,
            self.folder,
            Console(),
            first_step=number,
            total_steps=number,
            is_resumed=served_wins is not None or bool(base),
        ) as recorder:
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


async def play_held_out(
    learner: RoundLearner, tasks: Mapping[int, Task], judge: BaseJudge | None, version: int
) -> list[Group]:
    """Plays these held-out tasks, by their numbers, with the current weights."""
    config = learner.config
    gateway, engine = assembly.make_gateway(config), learner.make_engine(version)
    repeats = config.validation_repeats
    request = RolloutRequest(list(tasks.values()), version, "eval", repeats, numbers=list(tasks))
    try:
        template = learner.template
        runner = assembly.make_runner(config, engine, template, judge=judge, gateway=gateway)
        return await runner.rollout(request)
    finally:
        gateway.close()
        await engine.close()


def wins_of(groups: Sequence[Group]) -> Wins:
    """Returns the successes of each task's episodes; a failed episode counts as unsuccessful."""
    return {
        group.trajectories[0].workflow_task.task_id: [
            bool(t.is_success) and t.is_valid for t in group.trajectories
        ]
        for group in groups
    }


def verdicts_of(groups: Sequence[Group]) -> dict[str, bool]:
    """Returns the successes of the judged episodes, by the keys of their whole conversations."""
    episodes = [t for group in groups for t in group.trajectories if t.is_valid and t.turns]
    return {
        conversation_keys([*last.messages, last.reply], last.adapter)[-1]: bool(t.is_success)
        for t in episodes
        for last in t.turns[-1:]
    }


@dataclass(frozen=True)
class ShadowView:
    """What one version makes of the shadow traffic: its replies, verdicts on them (None where there
    is no judge), and its log-probabilities of the recorded tokens."""

    replies: list[Completion]
    verdicts: list[float | None]
    logprobs: list[NDArray[np.float32]]


@dataclass(frozen=True)
class ShadowTraffic:
    """The sessions of a round that both versions answer, and the index of one call of each, which
    is sampled again with a fixed seed."""

    config: AjetConfig
    round: Round
    sessions: Sequence[RatedSession]
    calls: Sequence[int]

    @classmethod
    def of(
        cls, config: AjetConfig, current_round: Round, sessions: Sequence[RatedSession]
    ) -> ShadowTraffic:
        """Draws sessions and calls by the run's seed and the round's number."""
        size = min(config.ajet.serve.learn.shadow_sessions, len(sessions))
        draw = random.Random(seeding.derive(config.ajet.seed, "shadow", current_round.number))
        drawn = draw.sample(list(sessions), size)
        calls = [draw.randrange(len(session.turns)) for session in drawn]
        return cls(config, current_round, drawn, calls)

    async def seen_by(
        self, learner: RoundLearner, judge: BaseJudge | None, version: int
    ) -> ShadowView:
        """Returns what the current weights make of it."""
        replies = await self._replies(learner, version)
        verdicts: list[float | None] = []
        for session, call, reply in zip(self.sessions, self.calls, replies, strict=True):
            # Feedback is about a session's last reply, so another call has nothing to judge it by.
            is_last = call + 1 == len(session.turns)
            is_judged = judge is not None and is_last and bool(session.metadata)
            verdicts.append(
                await self._verdict(learner, judge, session, reply) if is_judged else None
            )
        samples = to_samples(
            groups_of(self.sessions, self.round.number), grammars=learner.template.grammars
        )
        scores = learner.policy(self.round.adapter).score(samples)
        pairs = zip(samples, scores, strict=True)
        return ShadowView(replies, verdicts, [score[s.loss_mask] for s, score in pairs])

    async def _replies(self, learner: RoundLearner, version: int) -> list[Completion]:
        engine = learner.make_engine(version)
        sampling = SamplingParams.from_config(self.config, "train")
        sampling = replace(sampling, adapter=self.round.adapter)
        path = (self.config.ajet.seed, "shadow", self.round.number)

        async def reply(index: int, session: RatedSession) -> Completion:
            prompt_ids = session.turns[self.calls[index]].completion.prompt_ids
            # The same seed for both versions, so equal weights give equal replies.
            seeded = replace(sampling, seed=seeding.derive(*path, index))
            num_free = self.config.ajet.rollout.max_model_len - len(prompt_ids)
            seeded = replace(seeded, max_tokens=min(seeded.max_tokens, num_free))
            name = f"shadow-{index:06d}"
            try:
                return await engine.generate(list(prompt_ids), seeded, f"{name}/0")
            finally:
                engine.leave(name)

        # All sessions enter before the first call: waves must not depend on which coroutine is
        # first.
        for index in range(len(self.sessions)):
            engine.enter(f"shadow-{index:06d}")
        try:
            calls = (reply(index, session) for index, session in enumerate(self.sessions))
            return list(await asyncio.gather(*calls))
        finally:
            await engine.close()

    async def _verdict(
        self,
        learner: RoundLearner,
        judge: BaseJudge | None,
        session: RatedSession,
        reply: Completion,
    ) -> float | None:
        text = learner.template.text_of(reply.token_ids)
        turn = replace(session.turns[-1], reply={"role": "assistant", "content": text})
        timeout_s = self.config.ajet.rollout.episode_timeout_s
        try:
            return await judged(judge, session.session, turn, session.metadata, timeout_s)
        except JudgeFault:  # the judge has no answer to this session
            return None


def compare_shadow(before: ShadowView, after: ShadowView) -> dict[str, Any]:
    """Returns how the new version differs from the served one on shadow traffic. `kl` is
    KL(served || new) per token by the estimator k3, unbiased and never negative: the mean of
    ratio - 1 - log ratio over the recorded tokens."""
    pairs = list(zip(before.replies, after.replies, strict=True))
    verdicts = [
        (a, b)
        for a, b in zip(before.verdicts, after.verdicts, strict=True)
        if a is not None and b is not None
    ]
    report: dict[str, Any] = {"num_sessions": len(pairs), "num_judged": len(verdicts)}
    if pairs:
        shift = np.concatenate(after.logprobs) - np.concatenate(before.logprobs)
        report["same_reply"] = fmean(a.token_ids == b.token_ids for a, b in pairs)
        report["kl"] = float((np.exp(shift) - 1 - shift).mean(dtype=np.float64))
    if verdicts:
        report["difference"] = mean_over_tasks([b - a for a, b in verdicts]).as_json()
    return report


if __name__ == "__main__":
    main()
