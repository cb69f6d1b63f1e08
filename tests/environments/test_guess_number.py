"""Guess-the-number: what it shows, what a guess costs, and how well the best policy does."""

import random

import pytest

from ajet.environments.guess_number import GuessNumber


def played(game, seed, guesses):
    shown = [game.reset(seed=seed)[0]]
    rewards = []
    for guess in guesses:
        observation, reward, terminated, truncated, info = game.step(guess)
        shown.append(observation)
        rewards.append(reward)
        assert not truncated
    return shown, rewards, terminated, info


def game_with(number, **config):
    """A game and a seed that hides `number`."""
    game = GuessNumber(**config)
    for seed in range(500):
        game.reset(seed=seed)
        if game.number == number:
            return game, seed
    raise AssertionError(number)


def test_a_guess_narrows_what_is_shown():
    game, seed = game_with(12)
    shown, rewards, terminated, info = played(game, seed, ["8", "14", "12"])
    assert shown == [
        "Between 1 and 16. 4 guesses left.",
        "Between 9 and 16. 3 guesses left.",
        "Between 9 and 13. 2 guesses left.",
        "12 is right.",
    ]
    assert rewards == [0.0, 0.0, 1.0] and terminated
    assert info["metrics"] == {"success": True, "action_is_valid": True}


def test_without_bounds_only_the_hint_is_shown():
    game, seed = game_with(12, show_bounds=False)
    shown, *_ = played(game, seed, ["8", "14"])
    assert shown[1:] == ["8 is too low. 3 guesses left.", "14 is too high. 2 guesses left."]


def test_the_last_miss_ends_the_game():
    game, seed = game_with(12, max_guesses=2)
    shown, rewards, terminated, info = played(game, seed, ["1", "2"])
    assert shown[-1] == "No guesses left. It was 12." and terminated
    assert sum(rewards) == 0 and info["metrics"]["success"] is False
    assert game.step("12")[1:3] == (0.0, True)  # nothing is won after the end


@pytest.mark.parametrize("action", ["", "middle", "17", "-3", "2.5", "99999999999999999999", "²"])
def test_text_without_a_number_of_the_game_costs_nothing(action):
    game, seed = game_with(12)
    _, before = game.reset(seed=seed)
    observation, reward, terminated, _, info = game.step(action)
    assert observation == "Write one number from 1 to 16. Between 1 and 16. 4 guesses left."
    assert (reward, terminated) == (0.0, False)
    assert info["metrics"] == {"success": False, "action_is_valid": False}
    assert info["state_key"] == before["state_key"]


def test_the_last_number_of_a_text_is_the_guess():
    game, seed = game_with(12)
    assert played(game, seed, ["Not 3, I take 12."])[1] == [1.0]


@pytest.mark.parametrize(
    ("high", "max_guesses", "optimal"), [(16, 4, 15 / 16), (15, 4, 1.0), (100, 3, 0.07)]
)
def test_halving_is_as_good_as_the_best_policy(high, max_guesses, optimal):
    game = GuessNumber(high=high, max_guesses=max_guesses)
    assert game.optimal_success() == pytest.approx(optimal)
    found = 0
    for number in range(1, high + 1):
        game.reset(seed=0)
        game.number = number
        terminated = False
        while not terminated:
            _, reward, terminated, _, _ = game.step(game.oracle_action())
        found += reward
    assert found == pytest.approx(optimal * high)


def test_the_seed_decides_the_number_and_hides_each_about_as_often():
    game = GuessNumber()
    numbers = []
    for seed in range(1600):
        game.reset(seed=seed, options={"split": "train"})
        numbers.append(game.number)
    again = GuessNumber()
    again.reset(seed=7)
    assert again.number == numbers[7]
    assert all(60 < numbers.count(number) < 140 for number in range(1, 17))  # 100 +- 4 sigma


def test_equal_states_of_a_task_have_one_key():
    game, seed = game_with(12)
    keys = {played(game, seed, guesses)[3]["state_key"] for guesses in (["8", "7"], ["5", "8"])}
    assert keys == {"9-16, 2 left"}


def test_sampled_actions_are_valid():
    game, rng = GuessNumber(), random.Random(0)
    for seed in range(50):
        game.reset(seed=seed)
        assert game.step(game.sample_action(rng))[4]["metrics"]["action_is_valid"]


@pytest.mark.parametrize("config", [{"low": 5, "high": 4}, {"max_guesses": 0}])
def test_a_game_that_cannot_be_played_is_refused(config):
    with pytest.raises(ValueError, match="guess_number: "):
        GuessNumber(**config)
