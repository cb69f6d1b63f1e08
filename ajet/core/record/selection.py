"""Measures what each selection does to a step's batch.

    selection/redundancy/kept             24     episodes that it kept
    selection/redundancy/left_out          8     episodes that it left out
    selection/redundancy/turns_kept      3.1     mean number of calls in those that it kept
    selection/redundancy/turns_left_out  5.2     the same in those that it left out
    selection/redundancy/turns_bias     -2.1     the difference: short episodes are preferred

The same for `tokens_…`, sampled for training, and `reward_…` of episodes that have one. Selections
act in the order of `LEAVE_OUT`: an episode that a later one left out was kept by those before.
"""

from collections.abc import Sequence
from statistics import fmean

from ajet.core.config import AjetConfig
from ajet.core.trajectory.trajectory import LEAVE_OUT, Group, SelectionName, Trajectory


def selections(config: AjetConfig) -> list[SelectionName]:
    """Returns the selections that the config enables. Their metrics are logged in every step, so
    that curves have no gaps."""
    rollout, algorithm = config.ajet.rollout, config.ajet.trainer_common.algorithm
    enabled: dict[SelectionName, bool] = {
        SelectionName.REDUNDANCY: rollout.group_size_redundancy > 0,
        SelectionName.DROP_GROUP: rollout.failure_policy == "drop_group",
        SelectionName.DYNAMIC_SAMPLING: algorithm.dynamic_sampling.enable,
        SelectionName.OVERSAMPLING: rollout.enable_oversample,
        SelectionName.OVERLONG: algorithm.overlong.mask_truncated,
    }
    return [name for name, is_enabled in enabled.items() if is_enabled]


def selection_metrics(
    groups: Sequence[Group], selections: Sequence[SelectionName]
) -> dict[str, float]:
    """Returns the metrics of these selections, and of any other that left an episode out."""
    trajectories = [t for group in groups for t in group.trajectories]
    names = {*selections, *(t.left_out for t in trajectories)}
    metrics: dict[str, float] = {}
    for name in (name for name in LEAVE_OUT if name in names):
        left_out = [t for t in trajectories if t.left_out is name]
        later = LEAVE_OUT[LEAVE_OUT.index(name) + 1 :]
        kept = [t for t in trajectories if t.is_valid or t.left_out in later]
        compared = _compare(kept, left_out)
        metrics |= {f"selection/{name}/{key}": value for key, value in compared.items()}
    return metrics


def _compare(kept: Sequence[Trajectory], left_out: Sequence[Trajectory]) -> dict[str, float]:
    # Means of nothing do not exist: a selection that left no episode out has only its two counts.
    metrics = {"kept": float(len(kept)), "left_out": float(len(left_out))}
    kept_means, left_out_means = _means(kept), _means(left_out)
    for name in (name for name in kept_means if name in left_out_means):
        metrics[f"{name}_kept"] = kept_means[name]
        metrics[f"{name}_left_out"] = left_out_means[name]
        metrics[f"{name}_bias"] = kept_means[name] - left_out_means[name]
    return metrics


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    values = {
        "reward": [t.reward for t in trajectories if t.reward is not None],
        "tokens": [float(t.num_sampled) for t in trajectories],
        "turns": [float(len(t.turns)) for t in trajectories],
    }
    return {name: fmean(numbers) for name, numbers in values.items() if numbers}
