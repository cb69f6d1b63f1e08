"""Group-relative advantage: how much better an episode did than its siblings.

    rewards_G     1    0    0    1       mean 0.5, std 0.577 (unbiased, as torch.std and verl)
    advantage_G   .87 -.87 -.87  .87     (R - mean) / (std + 1e-6), the same on all its tokens

The mean is over valid episodes, each counted once however many turns or timelines it has. A group
with one valid episode, or with equal rewards, says nothing: its advantages are exactly 0. (verl
gives a lone episode its raw reward.)

Not covered: credit for single turns; baselines across groups.
"""

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.trajectory import Group, Trajectory

EPSILON = 1e-6


def grpo(group: Group, *, normalize_std: bool = True) -> dict[str, tuple[NDArray[np.float32], ...]]:
    """``normalize_std=False`` leaves out the division, as Dr. GRPO does."""
    valid = group.valid
    rewards_G = np.array([t.reward for t in valid], dtype=np.float64)
    advantages_G = _relative(rewards_G, normalize_std)
    return {
        t.episode_id: _per_turn(t, advantage)
        for t, advantage in zip(valid, advantages_G, strict=True)
    }


def _relative(rewards_G: NDArray[np.float64], normalize_std: bool) -> NDArray[np.float64]:
    # Compared, not subtracted: rounding in the mean over 1e-6 would leave a trace of signal.
    if len(rewards_G) < 2 or (rewards_G == rewards_G[0]).all():
        return np.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (rewards_G.std(ddof=1) + EPSILON) if normalize_std else centred_G


def _per_turn(trajectory: Trajectory, advantage: float) -> tuple[NDArray[np.float32], ...]:
    return tuple(
        np.full(len(turn.completion.token_ids) if turn.trainable else 0, advantage, np.float32)
        for turn in trajectory.turns
    )
