"""GDPO, pass@k and the batch's deviation: by hand, by enumeration, and against verl."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from ajet.core.advantage import ESTIMATORS, AdvantageOptions, EstimatorSettings, estimate
from ajet.core.advantage.grpo import EPSILON
from ajet.core.advantage.pass_at_k import gains
from tests.core.advantage.advantage_fixtures import credited, per_turn, random_groups
from tests.core.advantage.test_parity_with_verl import Rows

WEIGHTS = {"correct": 1.0, "format": 0.5}


def with_rewards(name, correct, format_, group="g"):
    return credited(
        name, [correct], group=group, log_metrics={"correct": correct, "format": format_}
    )


def advantages_of(name, *groups, **options):
    return per_turn(ESTIMATORS[name].compute(list(groups), AdvantageOptions(**options)))


def test_gdpo_normalises_each_reward_by_itself():
    # the mean of each is 1/2, its deviation sqrt(4 * 1/4 / 3) = .57735; 0.5 / .57735 = .86603
    group = [with_rewards(*each) for each in (("a", 1, 1), ("b", 1, 0), ("c", 0, 1), ("d", 0, 0))]
    found = advantages_of("gdpo", tuple(group), reward_weights=WEIGHTS)
    assert found["a"] == pytest.approx([0.86603 * 1.5], abs=1e-4)
    assert found["b"] == pytest.approx([0.86603 * 0.5], abs=1e-4)
    assert found["c"] == pytest.approx([-0.86603 * 0.5], abs=1e-4)
    assert found["d"] == pytest.approx([-0.86603 * 1.5], abs=1e-4)


def test_a_reward_that_is_equal_in_a_group_adds_nothing():
    group = tuple(with_rewards(name, 0.1, value) for name, value in (("a", 1.0), ("b", 0.0)))
    found = advantages_of("gdpo", group, reward_weights=WEIGHTS)
    assert found["a"] == pytest.approx([0.5 * 0.5 / (np.sqrt(0.5) + EPSILON)])


def test_an_episode_that_ajet_has_rewarded_itself_has_that_for_each():
    malformed = credited("b", [-1.0])
    group = (with_rewards("a", 1.0, 1.0), malformed)
    found = advantages_of("gdpo", group, reward_weights=WEIGHTS, normalize_std=False)
    assert found == {"a": [1.5], "b": [-1.5]}  # 1 * (1 - 0) + .5 * (1 - 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_std", [True, False])
def test_gdpo_is_verls(verl_core_algos, seed, with_std):
    rng = np.random.default_rng(seed)
    groups = [
        tuple(
            credited(
                e.episode_id, e.turn_rewards_T.tolist(), e.lengths_T, group=e.group_id,
                log_metrics={name: float(rng.normal()) for name in WEIGHTS},
            )
            for e in group
        )
        for group in random_groups(seed)
    ]  # fmt: skip
    rows = Rows(groups)
    torch, length = rows.torch, rows.mask.shape[1]
    of_each = {n: np.array([e.log_metrics[n] for e in rows.episodes]) for n in WEIGHTS}
    config = SimpleNamespace(
        get={"gdpo_reward_keys": list(WEIGHTS), "gdpo_reward_weights": [*WEIGHTS.values()]}.get
    )
    theirs, _ = verl_core_algos.compute_gdpo_outcome_advantage(
        rows.rewards, rows.mask, rows.index, norm_adv_by_std_in_grpo=with_std, config=config,
        non_tensor_batch=of_each,
        batch={
            "prompts": torch.zeros(len(rows.mask), 1),
            "attention_mask": torch.ones(len(rows.mask), 1 + length, dtype=torch.int64),
        },
    )  # fmt: skip
    options = AdvantageOptions(reward_weights=WEIGHTS, normalize_std=with_std)
    rows.check(estimate(groups, EstimatorSettings("gdpo", options)).advantages, theirs)


def test_pass_at_k_by_hand():
    # k = 2: sets of 3 with another one add 3 - 1 and 3 - 0, of which the mean is 2.5
    found = gains(np.array([3.0, 1.0, 0.0]), 2)
    assert found.tolist() == [2.5, 0.5, 0.0]
    assert gains(np.array([3.0, 1.0, 0.0]), 3).tolist() == [2.0, 0.0, 0.0]
    assert gains(np.array([3.0, 1.0, 0.0]), None).tolist() == [2.0, 0.0, 0.0]


@pytest.mark.parametrize("k", [2, 3, 5, 7])
@pytest.mark.parametrize("seed", range(3))
def test_pass_at_k_is_the_mean_over_all_sets(k, seed):
    rewards = np.random.default_rng(seed).integers(0, 4, 7).astype(np.float64)  # some are equal
    expected = []
    for i in range(len(rewards)):
        others = [j for j in range(len(rewards)) if j != i]
        adds = [
            max(rewards[i], *rewards[list(chosen)]) - max(rewards[list(chosen)])
            for chosen in combinations(others, k - 1)
        ]
        expected.append(np.mean(adds))
    np.testing.assert_allclose(gains(rewards, k), expected, atol=1e-12)


@pytest.mark.parametrize("with_std", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_pass_at_k_of_a_whole_group_is_verls(verl_core_algos, seed, with_std):
    groups = random_groups(seed)
    rows = Rows(groups)
    theirs, _ = verl_core_algos.compute_grpo_passk_outcome_advantage(
        rows.rewards, rows.mask, rows.index,
        config=SimpleNamespace(get={"norm_adv_by_std_in_grpo": with_std}.get),
    )  # fmt: skip
    options = AdvantageOptions(normalize_std=with_std)
    rows.check(estimate(groups, EstimatorSettings("pass_at_k", options)).advantages, theirs)


@pytest.mark.parametrize("name", ["grpo", "gigpo", "gdpo"])
def test_the_batchs_deviation_scales_all_groups_alike(name):
    # rewards 1 0 | 4 2: group means .5 and 3, the deviation of all four is 1.7078
    groups = [
        tuple(with_rewards(n, r, 0.0, group=g) for n, r in members)
        for g, members in (("g", (("a", 1.0), ("b", 0.0))), ("h", (("c", 4.0), ("d", 2.0))))
    ]
    found = advantages_of(
        name, *groups, normalize_std="batch", reward_weights={"correct": 1.0}
    )  # fmt: skip
    scale = np.std([1.0, 0.0, 4.0, 2.0], ddof=1)
    assert scale == pytest.approx(1.7078, abs=1e-4)
    expected = {"a": 0.5, "b": -0.5, "c": 1.0, "d": -1.0}
    assert found == {n: pytest.approx([value / scale], rel=1e-5) for n, value in expected.items()}
