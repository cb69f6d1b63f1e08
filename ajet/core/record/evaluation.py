"""Computes success, mean@k, pass@k and pass^k over tasks, each with a 95 % interval.

The unit is the task: k episodes of one task are not independent. Two models on the same tasks are
compared task by task (`paired_difference`). Failed episodes (timeouts, errors) count as
unsuccessful: a user would meet them too.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, pvariance, stdev
from typing import Any

from ajet.core.trajectory.trajectory import Group

Z_95 = 1.959963984540054
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T_95 += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)
T_95 += (2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
"""The 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom n. Beyond them they are
within 0.004 of z + (z^3 + z) / 4n."""


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """Holds a value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_json(self) -> dict[str, float | None]:
        """Returns plain data, with None for an infinite end."""
        return _finite(asdict(self))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Holds the figures of one evaluation.

    `success` is over all episodes, `mean_at_k` is of rewards, `pass_at_k` and `pass_hat_k` are
    by k = 1, 2, 4, …, n; `success_by_tag` has the tags of environments, where tasks have one.
    """

    num_tasks: int
    num_repeat: int
    success: IntervalEstimate
    mean_at_k: IntervalEstimate
    pass_at_k: dict[int, IntervalEstimate]
    pass_hat_k: dict[int, IntervalEstimate]
    statuses: dict[str, int]
    success_by_tag: dict[str, IntervalEstimate] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns plain data, with None for infinite ends (those of a single task)."""
        return _finite(asdict(self))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def wilson(successes: float, trials: float, z: float = Z_95) -> IntervalEstimate:
    """Returns Wilson's score interval (Wilson 1927) of a proportion; `z` is a normal quantile."""
    if trials == 0:
        return IntervalEstimate(math.nan, 0.0, 1.0)
    share, z2 = successes / trials, z**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return IntervalEstimate(share, max(0.0, centre - half), min(1.0, centre + half))


def share_over_tasks(shares: Sequence[float], num_repeat: int) -> IntervalEstimate:
    """Returns the mean of the tasks' shares of successes, with Wilson's interval at the effective
    number of trials (Franco et al. 2019): the independent ones that would give the same variance
    between tasks. So it stays within 0 and 1, and has a width even if every episode succeeds."""
    num_tasks = len(shares)
    if num_tasks == 0:
        return wilson(0, 0)
    share, between = fmean(shares), pvariance(shares)
    most = num_tasks * num_repeat
    # n independent trials have the variance share (1 - share) / n; the mean over tasks has
    # `between` / num_tasks. Setting both equal gives n.
    trials = num_tasks * share * (1 - share) / between if between else most
    if not 0 < share < 1:
        trials = num_tasks  # no variance to estimate from: the smallest number is the cautious one
    # Tasks are independent, and episodes of a task can at best be.
    trials = min(max(trials, num_tasks), most)
    return replace(wilson(share * trials, trials), value=share)


def mean_over_tasks(values: Sequence[float]) -> IntervalEstimate:
    """Returns the mean of independent values with the normal interval, infinite for one value."""
    if not values:
        return IntervalEstimate(math.nan, -math.inf, math.inf)
    mean = fmean(values)
    half = Z_95 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return IntervalEstimate(mean, mean - half, mean + half)


def mean_of_few(values: Sequence[float]) -> IntervalEstimate:
    """The same with Student's t interval, for few values."""
    if len(values) < 2:
        return mean_over_tasks(values)
    mean, freedom = fmean(values), len(values) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else Z_95 + 2.372 / freedom
    half = quantile * stdev(values) / math.sqrt(len(values))
    return IntervalEstimate(mean, mean - half, mean + half)


def paired_difference(
    wins: Mapping[str, Sequence[bool]], other_wins: Mapping[str, Sequence[bool]]
) -> IntervalEstimate:
    """Returns the difference of two models' mean success over the tasks that both have, with a 95 %
    interval over tasks. Both map a task to the successes of its episodes.

    Two tasks are added to the differences: halves with 1/sqrt(k) and -1/sqrt(k), and one with 0,
    for k episodes a task. So the interval has a width even if all tasks are equal. With k = 1 it is
    that of Agresti and Min (2005).
    """
    both = [task for task in wins if task in other_wins]
    differences = [fmean(wins[task]) - fmean(other_wins[task]) for task in both]
    counts = (len(episodes[task]) for task in both for episodes in (wins, other_wins))
    return difference_of_shares(differences, min(counts, default=1))


def difference_of_shares(differences: Sequence[float], num_trials: float) -> IntervalEstimate:
    """Returns the mean of differences of shares, one a task, with the interval of
    `paired_difference`, for `num_trials` independent trials in each share."""
    if not differences:
        return IntervalEstimate(math.nan, -1.0, 1.0)
    num = len(differences) + 2
    centre = sum(differences) / num
    # The added half tasks contribute 2 * (1/2) * (1/sqrt(k))^2 = 1/k to the sum of squares.
    variance = (sum(difference**2 for difference in differences) + 1 / num_trials) / num - centre**2
    half = Z_95 * math.sqrt(variance / num)
    return IntervalEstimate(fmean(differences), max(-1.0, centre - half), min(1.0, centre + half))


def pass_at_k(num_episodes: int, num_successes: int, k: int) -> float:
    """Returns the probability that at least one of k episodes, drawn without replacement,
    succeeds (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1)."""
    if not 1 <= k <= num_episodes:
        raise ValueError(f"pass@{k} needs 1 <= k <= {num_episodes} episodes a task")
    return 1.0 - math.comb(num_episodes - num_successes, k) / math.comb(num_episodes, k)


def pass_hat_k(num_episodes: int, num_successes: int, k: int) -> float:
    """Returns the probability that all of k episodes, drawn without replacement, succeed:
    C(c, k) / C(n, k) (Yao et al. 2024, tau-bench, arXiv 2406.12045)."""
    return 1.0 - pass_at_k(num_episodes, num_episodes - num_successes, k)


def ks_up_to(num_episodes: int) -> list[int]:
    """Returns the k of pass@k: 1, 2, 4, … and the number of episodes."""
    ks = [2**i for i in range(num_episodes.bit_length()) if 2**i < num_episodes]
    return [*ks, num_episodes] if num_episodes else []


def success_by_task(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the share of each task's episodes that succeeded."""
    return {
        group.trajectories[0].workflow_task.task_id: _num_successful(group)
        / len(group.trajectories)
        for group in groups
    }


def _num_successful(group: Group) -> int:
    return sum(bool(t.is_success) and t.is_valid for t in group.trajectories)


def evaluate(groups: Sequence[Group]) -> Evaluation:
    """Computes the figures of one evaluation; every group has the same number of episodes."""
    num_repeat = max((len(g.trajectories) for g in groups), default=0)
    wins = [_num_successful(group) for group in groups]
    rewards = [fmean(t.reward or 0.0 for t in g.trajectories) for g in groups]
    shares_by_tag: defaultdict[str, list[float]] = defaultdict(list)
    for group, num_wins in zip(groups, wins, strict=True):
        if tag := group.trajectories[0].workflow_task.task.metadata.get("tag"):
            shares_by_tag[str(tag)].append(num_wins / num_repeat)
    return Evaluation(
        num_tasks=len(groups),
        num_repeat=num_repeat,
        success=share_over_tasks([w / num_repeat for w in wins], num_repeat),
        mean_at_k=mean_over_tasks(rewards),
        pass_at_k={
            k: share_over_tasks([pass_at_k(num_repeat, w, k) for w in wins], num_repeat)
            for k in ks_up_to(num_repeat)
        },
        pass_hat_k={
            k: share_over_tasks([pass_hat_k(num_repeat, w, k) for w in wins], num_repeat)
            for k in ks_up_to(num_repeat)
        },
        statuses=dict(Counter(str(t.outcome) for g in groups for t in g.trajectories)),
        success_by_tag={
            tag: share_over_tasks(shares, num_repeat) for tag, shares in shares_by_tag.items()
        },
    )
