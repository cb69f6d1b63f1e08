"""GiGPO: compares an episode with its group, and each step with the steps from the same state.

    state    episode 1   episode 2            step returns (gamma 1)
    "a"      right  .    right  .             a: 1, 0   mean .5  ->  +.5  -.5
    "b"      up     R=1  .                    b: 1      alone    ->   0
    "c"      .           left   R=0           c: 0      alone    ->   0

    A = w_E (R_i - mean(R)) / F  +  w_S (R_t - mean(R of the steps with this state key)) / F
    R_t = sum over k >= t of step_reward_gamma^(k-t) r_k;   F = std, or 1 without normalize_std

Feng et al. 2025 (GiGPO, arXiv 2505.10978), where w_E is 1, w_S is omega and F is F_norm.
An anchor group has the steps of one group, agent and state key, including an episode's second visit
to the state. A step alone in its state, a step without a key, and steps with equal returns get a
step advantage of exactly 0, as on the episode level (grpo.py).
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.agent_steps import StepTable, step_table
from ajet.core.advantage.comparison import Comparison, compare_scores
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.grpo import relative


def gigpo(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Adds the advantages of the two levels; `normalize_std` applies to both."""
    normalize_std = options.normalize_std
    episode_level = relative(compare_scores(groups), normalize_std)
    table = step_table(groups, options.step_reward_gamma)
    step_level_N = relative(anchor_groups(table), normalize_std)
    episode_level_N = episode_level[[step.episode for step in table.steps_N]]
    return table.spread(
        options.episode_reward_weight * episode_level_N + options.step_reward_weight * step_level_N
    )


def anchor_groups(table: StepTable) -> Comparison:
    """Compares the return of each step with those of the same group, agent and state."""
    # A step without a key has its index as the key: a set of one, which has no advantage.
    numbers: dict[object, int] = {}
    sets_N = [
        numbers.setdefault(
            (step.group, step.agent, step.state_key) if step.state_key is not None else index,
            len(numbers),
        )
        for index, step in enumerate(table.steps_N)
    ]
    return Comparison(table.returns_N, np.array(sets_N, np.int64))


def anchor_metrics(groups: Sequence[GroupCredit]) -> dict[str, float]:
    """Returns how many steps the step level compares with each other."""
    sets = np.bincount(anchor_groups(step_table(groups, 1.0)).sets_N)
    if not len(sets):
        return {}
    return {
        "gigpo/anchor_group_size": float(sets.mean()),
        "gigpo/singleton_steps": float((sets == 1).sum() / sets.sum()),
    }


GIGPO = Estimator(
    gigpo,
    reads=("normalize_std", "step_reward_gamma", "episode_reward_weight", "step_reward_weight"),
    compares_group=True,
    credits_by="state_key",
    metrics=anchor_metrics,
)
