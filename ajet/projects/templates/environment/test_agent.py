"""Tests the environment, alone and played with given replies, so no model is loaded."""

from pathlib import Path

from game import Game

from ajet.testing import play

CONF = Path(__file__).parent / "train.yaml"


def test_the_same_seed_is_the_same_game() -> None:
    games = Game(), Game()
    assert games[0].reset(seed=3) == games[1].reset(seed=3)
    assert games[0].number == games[1].number


def test_a_right_guess_ends_the_game_and_is_rewarded() -> None:
    game = Game()
    game.reset(seed=3)
    _, reward, is_over, _, _ = game.step(str(game.number))
    assert (reward, is_over) == (1.0, True)


def test_a_wrong_guess_says_what_is_still_possible() -> None:
    game = Game()
    game.reset(seed=3)
    game.number = 7
    shown, reward, is_over, _, _ = game.step("10")
    assert (shown, reward, is_over) == ("Between 1 and 9. 4 guesses left.", 0.0, False)


def test_an_agent_that_names_no_number_loses() -> None:
    episode = play(CONF, ["Left", "?", "", "0", "21"])
    assert episode.reward == 0 and not episode.is_success
    assert "Between 1 and 20" in episode.turns[0].messages[-1]["content"]
