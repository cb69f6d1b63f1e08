import pytest

from ajet.core.advantage.shaping import RewardShaping, shape_rewards
from ajet.core.errors import ConfigError
from tests.core.advantage.advantage_fixtures import credited


def rewards(shaped):
    return {e.episode_id: e.reward for group in shaped.groups for e in group}


def episodes(shaped):
    return {e.episode_id: e for group in shaped.groups for e in group}


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0), (80, 0), (85, 0.5), (90, 1.0), (100, 2.0), (120, 2.0)]
)
def test_the_overlong_penalty_grows_in_the_buffer(length, penalty):
    shaping = RewardShaping(overlong_buffer=20, overlong_factor=2.0, max_response_length=100)
    shaped = shape_rewards([(credited("a", [1.0], response_length=length),)], shaping)
    assert rewards(shaped) == {"a": pytest.approx(1 - penalty)}
    assert shaped.metrics == {
        "reward/overlong": float(penalty > 0),
        "reward/overlong_penalty": pytest.approx(penalty),
    }


def test_a_buffer_longer_than_an_episode_may_be_is_refused():
    with pytest.raises(ConfigError, match=r"overlong\.buffer_len: 101 is more than"):
        RewardShaping(overlong_buffer=101, max_response_length=100)


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ("group", {"a": 0.5, "b": -0.5, "c": 1.5, "d": -1.5}),
        ("tag", {"a": -1.0, "b": 0.0, "c": 1.0, "d": 0.0}),
        ("batch", {"a": 0.0, "b": -1.0, "c": 2.0, "d": -1.0}),
    ],
)
def test_the_mean_is_taken_over_the_group_the_tag_or_the_batch(grouping, expected):
    groups = [
        (credited("a", [2], tag="x"), credited("b", [1], tag="y")),
        (credited("c", [4], tag="x"), credited("d", [1], tag="z")),
    ]
    shaped = shape_rewards(groups, RewardShaping(grouping=grouping))
    assert rewards(shaped) == pytest.approx(expected)


def test_mean_std_divides_by_the_unbiased_deviation():
    group = (credited("a", [1]), credited("b", [0]))  # std sqrt(.5)
    shaped = shape_rewards([group], RewardShaping(grouping="batch", normalize_std=True))
    assert rewards(shaped)["a"] == pytest.approx(0.5 / (0.5**0.5 + 1e-6))


def test_turn_rewards_keep_adding_up_to_the_reward():
    group = (credited("a", [1, 2, 3], [2, 2, 0]), credited("b", [0, 0, 1]))
    shaping = RewardShaping(grouping="batch", normalize_std=True, clip=0.5)
    for episode in episodes(shape_rewards([group], shaping)).values():
        assert episode.turn_rewards_T.sum() == pytest.approx(episode.reward)
    shaped = episodes(shape_rewards([group], RewardShaping(clip=2.0)))
    assert shaped["a"].turn_rewards_T.tolist() == [1, -2, 3]  # 4 less, on the last trained turn


def test_cut_rewards_are_counted_and_the_greedy_one_is_cut_too():
    group = (credited("a", [5], baseline=-9.0), credited("b", [1], baseline=0.5))
    shaped = shape_rewards([group], RewardShaping(clip=2.0))
    assert rewards(shaped) == {"a": 2.0, "b": 1.0}
    assert [e.baseline for e in shaped.groups[0]] == [-2.0, 0.5]
    assert shaped.metrics == {"reward/clipped": 0.5}


def test_the_greedy_reward_is_normalised_by_the_same_numbers():
    group = (credited("a", [4], baseline=3.0), credited("b", [0], baseline=3.0))
    shaped = shape_rewards([group], RewardShaping(grouping="group", normalize_std=True))
    assert shaped.groups[0][0].baseline == pytest.approx(1 / (8**0.5 + 1e-6))


def test_an_episode_without_a_greedy_reward_gets_none():
    shaped = shape_rewards([(credited("a", [4]),)], RewardShaping(clip=1.0, grouping="batch"))
    assert shaped.groups[0][0].baseline is None
