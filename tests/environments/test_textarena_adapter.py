"""Games of textarena: what is new is shown, and their global randomness stays their own."""

import random
from importlib.util import find_spec

import numpy as np
import pytest

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError

pytestmark = pytest.mark.skipif(find_spec("textarena") is None, reason="no textarena")


def made(env_id="textarena:GuessTheNumber-v0", **config):
    return environment_maker(env_id, config, [], "custom_envs.x.env_type")()


def test_halving_wins_and_only_what_is_new_is_shown():
    env = made()
    first, _ = env.reset(seed=5)
    assert "guess the number between 1 and 20" in first
    low, high, reward, terminated = 1, 20, 0.0, False
    while not terminated:
        guess = (low + high) // 2
        observation, reward, terminated, _, info = env.step(str(guess))  # the brackets are added
        if not terminated:
            word = observation.removeprefix("The target number is ")
            assert word in ("higher.", "lower.")
            low, high = (guess + 1, high) if word == "higher." else (low, guess - 1)
    assert reward == 1.0 and info["metrics"] == {"success": True, "action_is_valid": True}
    assert env.step("3")[1:3] == (0.0, True)


def test_the_games_arguments_are_env_config():
    assert "between 1 and 7 " in made(max_number=7).reset(seed=0)[0]


def test_a_refused_move_is_no_valid_action():
    env = made()
    env.reset(seed=5)
    observation, reward, terminated, _, info = env.step("[77]")
    assert "outside the range" in observation and not terminated and reward == 0.0
    assert info["metrics"] == {"success": False, "action_is_valid": False}
    *_, info = env.step("3")
    assert info["metrics"]["action_is_valid"]


def test_a_refusal_that_ends_the_game_is_worth_nothing_where_its_reason_stands_for_the_reward():
    env = made("textarena:ThreeCardMonte-v0")
    env.reset(seed=5)
    for _ in range(4):
        _, reward, terminated, _, info = env.step("no action")
        assert (reward, info["metrics"]["action_is_valid"]) == (0.0, False)
        if terminated:
            return
    pytest.fail("it never ended")


def played(env, seed, actions):
    return [env.reset(seed=seed)[0], *(env.step(action)[:3] for action in actions)]


def test_games_side_by_side_do_not_disturb_each_other_or_the_process():
    actions = ["[red]", "[blue]", "[green]", "[red]"]
    alone = played(made("textarena:Bandit-v0"), 1, actions)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    one, two = made("textarena:Bandit-v0"), made("textarena:Bandit-v0")
    mixed = [one.reset(seed=1)[0]]
    two.reset(seed=2)
    for action in actions:
        two.step("[blue]")
        mixed.append(one.step(action)[:3])
    assert mixed == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_seeds_differ():
    boards = {made("textarena:Minesweeper-v0").reset(seed=0)[0] for _ in range(2)}
    assert len(boards) == 1
    shown = {tuple(played(made(), seed, ["10"])[1]) for seed in range(12)}
    assert len(shown) > 1


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("textarena:TicTacToe-v0", "a game for several players"),
        ("textarena:Poker-v0", "a game for several players"),
        ("textarena:Nothing-v0", "textarena has no game of that id"),
    ],
)
def test_a_game_that_is_not_for_one_is_refused(env_id, message):
    with pytest.raises(ConfigError, match=message):
        made(env_id)


def test_an_unknown_argument_is_one_line():
    with pytest.raises(ConfigError, match="unexpected keyword argument 'foo'"):
        made(foo=1)
