"""Tells whether a step had anything to learn from, and why not.

A group has signal if one of its trained tokens has an advantage, was given, or has a teacher.
Advantages do not count in a step whose rewards are all equal: those of a critic are then only its
errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ajet.core.rollout.failure import has_failed
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, SelectionName, Trajectory

MIN_ADVANTAGE = 1e-6
"""Smaller advantages are rounding errors of a subtracted mean."""
MEANINGS = {
    0.0: ": too hard, or the right answer is not recognised",
    1.0: ": too easy, or any answer is taken",
}
MAX_KINDS = 3  # limits, statuses or rewards in a line


def num_with_signal(groups: Sequence[Group], samples: Iterable[TrainingSample]) -> int:
    """Returns the number of groups that have signal."""
    has_contrast = _has_contrast(_members(groups))
    return len({s.group_id for s in samples if _learns(s, has_contrast)})


def _learns(sample: TrainingSample, has_contrast: bool) -> bool:
    # Given replies and teachers teach something in any case; advantages only if rewards differ.
    if sample.carries("cross_entropy") or sample.carries("kl_teacher"):
        return True
    return has_contrast and bool((abs(sample.advantages[sample.loss_mask]) > MIN_ADVANTAGE).any())


def why_no_signal(
    groups: Sequence[Group], samples: Sequence[TrainingSample], estimator: str
) -> str | None:
    """Returns the reason why a step of training has nothing to learn from, or None."""
    members = _members(groups)
    if not members or num_with_signal(groups, samples):
        return None
    masked = _all_masked(members)
    return masked or equal_outcomes(members) or _equal_within_groups(groups, estimator)


def _all_masked(members: Sequence[Trajectory]) -> str | None:
    """Returns why all episodes that did not fail are left out for their length; None if some are
    trained."""
    ended = [t for t in members if not has_failed(t)]
    if not ended or any(t.left_out != "overlong" for t in ended):
        return None
    failed = len(members) - len(ended)
    but = f"; the other {failed} failed" if failed else ""
    reasons = "; ".join(sorted({str(t.error) for t in ended}))
    return f"all {len(ended)} episodes are left out of training: {reasons}{but}"


def equal_outcomes(members: Sequence[Trajectory]) -> str | None:
    """Returns in what all these episodes are equal: all failed, all were truncated, or all have the
    same reward; None if they differ."""
    failed = [t for t in members if has_failed(t)]
    judged = [t for t in members if t.reward is not None and not has_failed(t)]
    if len(failed) == len(members):
        return _all_failed(failed)
    ended = [t for t in members if not has_failed(t) and t.outcome is not EpisodeStatus.ABORTED]
    limits = Counter(t.cut_by for t in ended)
    rewards = {t.reward for t in judged}
    but = f"; the other {len(failed)} failed" if failed else ""
    # Episodes that no limit cut are counted under None.
    if None not in limits:
        listed = _listed(Counter({each.text: num for each, num in limits.items() if each}))
        cut = f"all {limits.total()} episodes were truncated ({listed})"
        return f"{cut}; their {_rewards(judged)}{but}" if len(rewards) == 1 else None
    if len(rewards) != 1 or len(judged) < max(len(ended), 2):
        return None
    return f"all {_rewards(judged)}{but}{_what_it_says(judged)}"


def _members(groups: Sequence[Group]) -> list[Trajectory]:
    return [
        t
        for group in groups
        for t in group.trajectories
        if t.left_out is not SelectionName.REDUNDANCY
    ]


def _has_contrast(members: Sequence[Trajectory]) -> bool:
    """Tells whether two rewards differ; a single episode is compared with nothing."""
    return len(members) == 1 or len({_earned(t) for t in members if t.reward is not None}) > 1


def _earned(t: Trajectory) -> tuple[float | None, ...]:
    return (*t.earned, *(turn.reward for turn in t.turns if turn.reward is not None))


def _all_failed(failed: Sequence[Trajectory]) -> str:
    statuses = Counter(str(t.outcome) for t in failed)
    error, number = Counter(t.error for t in failed).most_common(1)[0]
    return (
        f"all {len(failed)} episodes failed ({_listed(statuses)}); the most frequent error, "
        f"{number} times: {error}"
    )


def _what_it_says(judged: Sequence[Trajectory]) -> str:
    """Returns what equal rewards may mean: the judge does not distinguish answers, or the tasks are
    too hard or too easy."""
    answers = {str(t.turns[-1].reply.get("content")) for t in judged if t.turns}
    value = judged[0].reward
    meaning = MEANINGS.get(value or 0.0, "")
    # Only a judge can be blamed: a workflow may have rewarded itself.
    if len(answers) < 2 or any("judge" not in t.reward_breakdown for t in judged):
        return meaning
    return f"; the judge gives the same to {len(answers)} different answers{meaning}"


def _equal_within_groups(groups: Sequence[Group], estimator: str) -> str:
    rewards = [{t.reward for t in g.trajectories if t.reward is not None} for g in groups]
    alone = sum(sum(t.reward is not None for t in g.trajectories) < 2 for g in groups)
    if alone == len(groups):
        return (
            f"no group has two episodes with a reward to compare, and adv_estimator {estimator} "
            "needs them (ajet.rollout.num_repeat)"
        )
    if any(len(values_of_group) > 1 for values_of_group in rewards):
        return f"rewards differ, but adv_estimator {estimator} gives no trained token an advantage"
    values = Counter(
        f"all {next(iter(values_of_group)):g}" for values_of_group in rewards if values_of_group
    )
    return f"the rewards are equal within each of the {len(groups)} groups ({_listed(values)})"


def _rewards(judged: Sequence[Trajectory]) -> str:
    return f"{len(judged)} rewards are {judged[0].reward:g}"


def _listed(counts: Counter[Any]) -> str:
    listed = ", ".join(f"{number} {name}" for name, number in counts.most_common(MAX_KINDS))
    return listed + (", …" if len(counts) > MAX_KINDS else "")
