"""Measures a version on the held-out tasks of the config, and on recorded traffic.

    held-out tasks   the config's workflow and judge, with the seeds of a run's own validation
    shadow traffic   a call of each of some recorded sessions, answered anew with the same seeds

Two versions have played the same tasks under the same seeds, so they are compared task by task.
On shadow traffic it is said how often both answer alike, and how far the new version is from the
served one on what was said. Where the config has a judge, a feedback had metadata and the call is
the session's last, the verdicts on both replies are compared too.
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
from ajet.online.feedback import judged
from ajet.online.log import RatedSession, Round, Wins
from ajet.online.round import RoundLearner, groups_of
from ajet.online.sessions import conversation_keys


async def play_held_out(
    parts: RoundLearner, tasks: Mapping[int, Task], judge: BaseJudge | None, version: int
) -> list[Group]:
    """Returns the episodes of these of the held-out tasks with the weights as they are."""
    config = parts.config
    gateway, engine = assembly.make_gateway(config), parts.make_engine(version)
    repeats = config.validation_repeats
    request = RolloutRequest(list(tasks.values()), version, "eval", repeats, numbers=list(tasks))
    try:
        runner = assembly.make_runner(config, engine, parts.template, judge=judge, gateway=gateway)
        return await runner.rollout(request)
    finally:
        gateway.close()
        await engine.close()


def tasks_of(config: AjetConfig, tasks: Sequence[Task], adapter: str) -> dict[int, Task]:
    """Returns the tasks that are an adapter's, by their places among all, which their seeds depend
    on; all of them where there are not several."""
    choice, found = AdapterChoice.from_config(config), dict(enumerate(tasks))
    if choice is None:
        return found
    return {n: task for n, task in found.items() if choice.for_task(task).task_adapter == adapter}


def wins_of(groups: Sequence[Group]) -> Wins:
    """Returns the successes of each task's episodes; one that failed is none."""
    return {
        group.trajectories[0].workflow_task.task_id: [
            bool(t.is_success) and t.is_valid for t in group.trajectories
        ]
        for group in groups
    }


def verdicts_of(groups: Sequence[Group]) -> dict[str, bool]:
    """Returns the successes of the episodes that were judged, by their conversations' keys."""
    episodes = [t for group in groups for t in group.trajectories if t.is_valid and t.turns]
    return {
        conversation_keys([*last.messages, last.reply], last.adapter)[-1]: bool(t.is_success)
        for t in episodes
        for last in t.turns[-1:]
    }


@dataclass(frozen=True)
class ShadowView:
    """Holds what one version makes of the shadow traffic: replies, verdicts on them (None where
    nobody can judge), and the log-probabilities of what was said."""

    replies: list[Completion]
    verdicts: list[float | None]
    logprobs: list[NDArray[np.float32]]


@dataclass(frozen=True)
class ShadowTraffic:
    """Holds the sessions of a round that both versions look at, and the call of each that they
    answer anew."""

    config: AjetConfig
    round: Round
    sessions: Sequence[RatedSession]
    calls: Sequence[int]

    @classmethod
    def of(cls, config: AjetConfig, this: Round, sessions: Sequence[RatedSession]) -> ShadowTraffic:
        """Draws them by the run's seed."""
        size = min(config.ajet.serve.learn.shadow_sessions, len(sessions))
        draw = random.Random(seeding.derive(config.ajet.seed, "shadow", this.number))
        drawn = draw.sample(list(sessions), size)
        return cls(config, this, drawn, [draw.randrange(len(each.turns)) for each in drawn])

    async def seen_by(
        self, parts: RoundLearner, judge: BaseJudge | None, version: int
    ) -> ShadowView:
        """Returns what the weights as they are make of it."""
        replies = await self._replies(parts, version)
        verdicts = [
            await self._verdict(parts, judge, session, reply) if is_last else None
            for session, reply, is_last in zip(self.sessions, replies, self._are_last, strict=True)
        ]
        return ShadowView(replies, verdicts, self._logprobs(parts))

    @property
    def _are_last(self) -> list[bool]:
        """Returns whether the call of each session is its last one, whose reply can be judged."""
        pairs = zip(self.sessions, self.calls, strict=True)
        return [call + 1 == len(session.turns) for session, call in pairs]

    async def _replies(self, parts: RoundLearner, version: int) -> list[Completion]:
        engine = parts.make_engine(version)
        sampling = SamplingParams.from_config(self.config, "train")
        sampling = replace(sampling, adapter=self.round.adapter)
        path = (self.config.ajet.seed, "shadow", self.round.number)

        async def reply(index: int, session: RatedSession) -> Completion:
            prompt_ids = session.turns[self.calls[index]].completion.prompt_ids
            seeded = replace(sampling, seed=seeding.derive(*path, index))
            room = self.config.ajet.rollout.max_model_len - len(prompt_ids)
            seeded = replace(seeded, max_tokens=min(seeded.max_tokens, room))
            name = f"shadow-{index:06d}"
            try:
                return await engine.generate(list(prompt_ids), seeded, f"{name}/0")
            finally:
                engine.leave(name)

        for index in range(len(self.sessions)):
            engine.enter(f"shadow-{index:06d}")
        try:
            calls = (reply(index, each) for index, each in enumerate(self.sessions))
            return list(await asyncio.gather(*calls))
        finally:
            await engine.close()

    async def _verdict(
        self, parts: RoundLearner, judge: BaseJudge | None, session: RatedSession, reply: Completion
    ) -> float | None:
        if judge is None or not session.metadata:
            return None
        said = parts.template.text_of(reply.token_ids)
        turn = replace(session.turns[-1], reply={"role": "assistant", "content": said})
        timeout_s = self.config.ajet.rollout.episode_timeout_s
        try:
            return await judged(judge, session.session, turn, session.metadata, timeout_s)
        except JudgeFault:  # it knows no answer to this session
            return None

    def _logprobs(self, parts: RoundLearner) -> list[NDArray[np.float32]]:
        groups = groups_of(self.sessions, self.round.number)
        no_advantages = {
            t.episode_id: [np.zeros(len(turn.completion.token_ids), np.float32) for turn in t.turns]
            for group in groups
            for t in group.trajectories
        }
        samples = to_samples(groups, no_advantages)
        scores = parts.policy(self.round.adapter).score(samples)
        pairs = zip(samples, scores, strict=True)
        return [score[sample.loss_mask] for sample, score in pairs]


def compare_shadow(before: ShadowView, after: ShadowView) -> dict[str, Any]:
    """Returns how the new version differs from the served one on shadow traffic. `kl` is that of a
    token, from the served version to the new one, estimated without bias and never negative:
    the mean of ratio - 1 - log ratio."""
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
