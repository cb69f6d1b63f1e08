"""REINFORCE for each step: its return-to-go, compared with the others' at the same step.

    rewards of turns     0    1    2          returns-to-go    0    1    2
    episode 1            0    0    1          episode 1        1    1    1
    episode 2            0    1    -          episode 2        1    1    0   ended: 0
    episode 3            0    -    -          episode 3        0    0    0   ended: 0

    A(i, t) = G(i, t) - 1/(n-1) sum over the others j of G(j, t)

    episode 1           .5   .5    1          (1 + 0) / 2, (1 + 0) / 2, 0

Return-to-go: Sutton and Barto 2018, section 13.3. The baseline of episode i reads only other
episodes and the number of the turn. So it does not depend on the action, and the gradient is
unbiased (Williams 1992, Kool et al. 2019). A mean over the episodes that got as far, including
episode i, would shrink the gradient of late turns, and give a lone survivor none.

Turns are counted for each agent. Where all members got as far with equal returns, and for
a lone episode, advantages are exactly 0. `step_reward_gamma` discounts once for each turn. With
`step_baseline: none` the advantage is the return-to-go, as in ROLL without normalisation.
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.advantage.agent_steps import step_table
from ajet.core.advantage.comparison import Comparison
from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator


def step_reinforce(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Subtracts the others' mean return at the same step."""
    table = step_table(groups, options.step_reward_gamma)
    if options.step_baseline == "none":
        return table.spread(table.returns_N)
    numbers: dict[object, int] = {}
    sets_N = [
        numbers.setdefault((step.group, step.agent, step.agent_step), len(numbers))
        for step in table.steps_N
    ]
    same_turn = Comparison(table.returns_N, np.array(sets_N, np.int64))
    # Divided by the group's size, not by the number of episodes that got as far: an episode that
    # ended counts with a return of 0.
    sizes_N = np.array([len(groups[step.group]) for step in table.steps_N], np.int64)
    baselines_N = (same_turn.sums_N - table.returns_N) / np.maximum(sizes_N - 1, 1)
    has_no_signal_N = same_turn.are_equal_N & (same_turn.counts_N == sizes_N)
    return table.spread(np.where(has_no_signal_N, 0.0, table.returns_N - baselines_N))


STEP_REINFORCE = Estimator(
    step_reinforce,
    reads=("step_reward_gamma", "step_baseline"),
    compares_group=lambda options: options.step_baseline == "others",
    credits_by="reward",
)
