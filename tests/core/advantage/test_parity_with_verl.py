"""Every estimator that verl has gives the same numbers here, on random batches of several turns.

Each episode is laid out as verl has it: one row, its turns after each other with tool results
between them, which the mask leaves out; a turn's reward on its last token.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from ajet.core.advantage import ESTIMATORS, AdvantageOptions, EstimatorSettings, estimate
from ajet.core.advantage.estimation import whiten
from ajet.core.advantage.kl_controller import AdaptiveKLController
from ajet.core.advantage.kl_in_reward import penalise_kl
from tests.core.advantage.advantage_fixtures import random_groups

TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
SEEDS = range(5)
OBSERVATION = 3  # tokens of a tool result between two turns


class Rows:
    """A batch in verl's form."""

    def __init__(self, groups):
        import torch

        self.torch = torch
        self.episodes = [episode for group in groups for episode in group]
        self.index = np.array([episode.group_id for episode in self.episodes], dtype=object)
        self.width = max(
            int(e.lengths_T.sum()) + OBSERVATION * len(e.lengths_T) for e in self.episodes
        )
        self.mask = self.laid_out(lambda e: [np.ones(n) for n in e.lengths_T])
        self.rewards = self.laid_out(_token_rewards)

    def laid_out(self, arrays):
        rows = np.zeros((len(self.episodes), self.width))
        for row, episode in zip(rows, self.episodes, strict=True):
            start = 0
            for turn in arrays(episode):
                row[start : start + len(turn)] = turn
                start += len(turn) + OBSERVATION
        return self.torch.tensor(rows, dtype=self.torch.float64)

    def check(self, advantages, theirs):
        ours = self.laid_out(lambda e: advantages[e.episode_id])
        np.testing.assert_allclose(ours.numpy(), (theirs * self.mask).numpy(), **TOLERANCE)
        assert ours.abs().sum() > 1


def _token_rewards(episode):
    turns = [np.zeros(length) for length in episode.lengths_T]
    for turn, reward in zip(turns, episode.turn_rewards_T, strict=True):
        turn[-1] += reward
    if episode.penalties is not None:
        turns = [turn - each for turn, each in zip(turns, episode.penalties, strict=True)]
    return turns


def ours(name, groups, **settings):
    options = AdvantageOptions(**settings.pop("options", {}))
    return estimate(groups, EstimatorSettings(name, options, **settings))


@pytest.fixture(params=SEEDS, ids="seed{}".format)
def groups(request):
    return random_groups(request.param, penalties=request.param % 2 == 1, values=True)


@pytest.mark.parametrize("with_std", [True, False])
def test_grpo(verl_core_algos, groups, with_std):
    rows = Rows(groups)
    theirs, _ = verl_core_algos.compute_grpo_outcome_advantage(
        rows.rewards, rows.mask, rows.index, norm_adv_by_std_in_grpo=with_std
    )
    rows.check(ours("grpo", groups, options={"normalize_std": with_std}).advantages, theirs)


@pytest.mark.parametrize("name", ["rloo", "opo", "reinforce_plus_plus_baseline"])
def test_comparisons_within_groups(verl_core_algos, groups, name):
    rows = Rows(groups)
    estimator = verl_core_algos.get_adv_estimator_fn(name)
    theirs, _ = estimator(
        token_level_rewards=rows.rewards, response_mask=rows.mask, index=rows.index
    )
    rows.check(ours(name, groups).advantages, theirs)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_plus_plus(verl_core_algos, groups, gamma):
    rows = Rows(groups)
    theirs, returns = verl_core_algos.compute_reinforce_plus_plus_outcome_advantage(
        rows.rewards, rows.mask, SimpleNamespace(gamma=gamma)
    )
    rows.check(ours("reinforce_plus_plus", groups, options={"gamma": gamma}).advantages, theirs)
    rows.check(ours("reinforce", groups, options={"gamma": gamma}).advantages, returns)


def test_remax(verl_core_algos, groups):
    rows = Rows(groups)
    baselines = rows.torch.tensor([e.baseline for e in rows.episodes], dtype=rows.mask.dtype)
    theirs, _ = verl_core_algos.compute_remax_outcome_advantage(rows.rewards, baselines, rows.mask)
    rows.check(ours("remax", groups).advantages, theirs)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.95, 1.0), (1.0, 0.9), (0.9, 0.7)])
def test_gae_over_turns_with_tool_results_between(verl_core_algos, groups, gamma, lam):
    rows = Rows(groups)
    values = rows.laid_out(lambda e: e.values)
    values = values + 100 * (1 - rows.mask)  # what a critic says of other tokens plays no part
    theirs, returns = verl_core_algos.compute_gae_advantage_return(
        rows.rewards, values, rows.mask, gamma, lam
    )
    found = ours("gae", groups, options={"gamma": gamma, "lam": lam})
    rows.check(found.advantages, theirs)
    rows.check(found.returns, returns)


def test_gae_without_whitening_is_returns_less_values(verl_core_algos, groups):
    rows = Rows(groups)
    values = rows.laid_out(lambda e: e.values)
    _, returns = verl_core_algos.compute_gae_advantage_return(
        rows.rewards, values, rows.mask, 0.9, 0.7
    )
    found = ours("gae", groups, options={"gamma": 0.9, "lam": 0.7}, whiten=False)
    rows.check(found.advantages, returns - values)


@pytest.mark.parametrize("seed", SEEDS)
def test_whitening(verl_core_algos, seed):
    groups = random_groups(seed)
    rows = Rows(groups)
    raw = ESTIMATORS["reinforce"].compute(groups, AdvantageOptions(gamma=0.9))
    theirs = verl_core_algos.verl_F.masked_whiten(
        rows.laid_out(lambda e: raw[e.episode_id]), rows.mask
    )
    rows.check(whiten(raw), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_in_the_reward(verl_core_algos, seed):
    groups = random_groups(seed)
    rng = np.random.default_rng(seed)
    logprobs, reference = ({}, {})
    for kind in (logprobs, reference):
        for episode in (e for group in groups for e in group):
            kind[episode.episode_id] = tuple(
                rng.normal(size=n).astype(np.float32) for n in episode.lengths_T
            )
    rows = Rows(groups)
    own, other = (
        rows.laid_out(lambda e, kind=kind: kind[e.episode_id]) for kind in (logprobs, reference)
    )
    difference = verl_core_algos.kl_penalty(own, other, "kl") * rows.mask
    penalised = penalise_kl(groups, logprobs, reference, coef=0.3)
    theirs = verl_core_algos.compute_rewards(rows.rewards, own, other, 0.3) * rows.mask
    np.testing.assert_allclose(Rows(penalised.groups).rewards, theirs, **TOLERANCE)
    their_kl = verl_core_algos.verl_F.masked_mean(difference, rows.mask, axis=-1).mean()
    assert penalised.kl == pytest.approx(their_kl.item(), abs=1e-6)


def test_adaptive_kl(verl_core_algos):
    theirs = verl_core_algos.AdaptiveKLController(0.2, target_kl=0.1, horizon=1000)
    control = AdaptiveKLController(0.2, target=0.1, horizon=1000)
    rng = np.random.default_rng(0)
    for _ in range(200):
        kl, episodes = float(rng.uniform(0, 0.3)), int(rng.integers(1, 64))
        theirs.update(kl, episodes)
        control.update(kl, episodes)
        assert control.coef == pytest.approx(theirs.value, rel=1e-12)
    assert control.coef != pytest.approx(0.2, rel=0.01)
