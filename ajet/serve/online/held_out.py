"""Measures a version on the held-out tasks of the config, and on recorded traffic. Two versions
play the same tasks with the same seeds, so they are compared task by task.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet import assembly
from ajet.core import seeding
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.judge.judge import BaseJudge
from ajet.core.judge.verdict import JudgeFault
from ajet.core.record.evaluation import mean_over_tasks
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.serve.online.feedback import judged
from ajet.serve.online.log import RatedSession, Round, Wins
from ajet.serve.online.round import RoundLearner, groups_of
from ajet.serve.online.sessions import conversation_keys


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


def tasks_of(config: AjetConfig, tasks: Sequence[Task], adapter: str) -> dict[int, Task]:
    """Returns an adapter's tasks by their numbers among all tasks, on which their seeds depend; all
    tasks where there are no adapters."""
    choice, numbered = AdapterChoice.from_config(config), dict(enumerate(tasks))
    if choice is None:
        return numbered
    return {
        n: task for n, task in numbered.items() if choice.for_task(task).task_adapter == adapter
    }


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
