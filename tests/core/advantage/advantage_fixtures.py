"""Credited episodes written by hand, and random ones."""

import numpy as np

from ajet.core.advantage.credit import EpisodeCredit


def credited(name, turn_rewards, lengths=None, *, group="g", agents=None, states=None, **more):
    """An episode whose reward is the sum of its turns'; two tokens a turn."""
    num = len(turn_rewards)
    return EpisodeCredit(
        episode_id=name,
        group_id=group,
        reward=float(sum(turn_rewards)),
        turn_rewards_T=np.array(turn_rewards, np.float64),
        state_keys_T=tuple(states or [None] * num),
        lengths_T=np.array(lengths if lengths is not None else [2] * num, np.int64),
        agents_T=tuple(agents or ["p"] * num),
        **more,
    )


def per_token(advantages):
    """``episode -> [[…one number a token…] a turn]``, as plain floats."""
    return {name: [turn.tolist() for turn in turns] for name, turns in advantages.items()}


def per_turn(advantages):
    """``episode -> one number a turn``; every token of a turn has it."""
    for turns in advantages.values():
        assert all((turn == turn[0]).all() for turn in turns)
    return {name: [float(turn[0]) for turn in turns] for name, turns in advantages.items()}


def random_groups(seed, *, num_groups=6, penalties=False, values=False, states=0):
    """Groups of 2 to 5 episodes of 1 to 4 turns with 1 to 6 tokens each."""
    rng = np.random.default_rng(seed)
    return [
        tuple(
            _random_episode(rng, f"{group}-{member}", f"{group}", penalties, values, states)
            for member in range(rng.integers(2, 6))
        )
        for group in range(num_groups)
    ]


def _random_episode(rng, name, group, penalties, values, states):
    num = int(rng.integers(1, 5))
    lengths = rng.integers(1, 7, num)
    arrays = [
        tuple(rng.normal(size=length).astype(np.float32) for length in lengths) for _ in range(2)
    ]
    return credited(
        name,
        rng.normal(size=num).tolist(),
        lengths,
        group=group,
        states=[str(rng.integers(states)) for _ in range(num)] if states else None,
        penalties=arrays[0] if penalties else None,
        values=arrays[1] if values else None,
        baseline=float(rng.normal()),
    )
