"""Countdown: every instance has a solution, and only arithmetic on its numbers is a solution."""

import random
from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest

from ajet.environments.countdown import Countdown, NotAnExpression, expression, value_of


def instance(numbers=(7, 3), target=21, **config):
    game = Countdown(num_numbers=len(numbers), **config)
    game.reset(seed=0)
    game.numbers, game.target = tuple(numbers), target
    return game


def can_reach(numbers, target):
    """Independent search: combine any two until one is left."""
    if len(numbers) == 1:
        return numbers[0] == target
    for a, b, *rest in permutations(numbers):
        made = [a + b, a - b, a * b] + ([a / b] if b else [])
        if any(can_reach([value, *rest], target) for value in made if value.denominator == 1):
            return True
    return False


@pytest.mark.parametrize("config", [{}, {"num_numbers": 3}, {"num_numbers": 4, "max_number": 25}])
def test_every_instance_has_a_solution(config):
    game = Countdown(**config)
    for seed in range(200 if game.num_numbers < 4 else 20):
        game.reset(seed=seed)
        assert can_reach([Fraction(number) for number in game.numbers], game.target)
        _, reward, terminated, _, info = game.step(game.oracle_action())
        assert (reward, terminated) == (1.0, True)
        assert info["metrics"]["success"]


def test_the_operators_are_balanced():
    game = Countdown()
    used = Counter()
    for seed in range(2000):
        game.reset(seed=seed, options={"split": "train"})
        used.update(set("+-*/") & set(game.solution))
    assert all(400 < used[each] < 600 for each in "+-*/"), used


@pytest.mark.parametrize("action", ["7*3", "3*7", " (7) * 3 ", "7 × 3", "7*3 = 21", "7*3=20"])
def test_the_target_by_every_number_once_is_right(action):
    _, reward, terminated, _, info = instance().step(action)
    assert (reward, terminated) == (1.0, True)
    assert info["metrics"] == {"success": True, "action_is_valid": True, "uses_all_numbers": True}


@pytest.mark.parametrize(
    ("action", "uses_all"), [("7+3", True), ("21", False), ("7*3*1", False), ("7/3", True)]
)
def test_a_miss_earns_nothing_and_ends_the_game(action, uses_all):
    _, reward, terminated, _, info = instance().step(action)
    assert (reward, terminated) == (0.0, True)
    assert info["metrics"]["uses_all_numbers"] is uses_all and info["metrics"]["action_is_valid"]


def test_the_format_reward_is_for_every_number_once_and_whole_steps():
    def earned(action):
        return instance(format_reward=0.1).step(action)[1]

    assert [earned(each) for each in ("7+3", "7+7", "7/3", "7*3")] == [0.1, 0.0, 0.0, 1.0]


NOT_ARITHMETIC = ["", "seven", "7**3", "7//3", "__import__('os')", "7(3)", "7 3", "7*3.0", "(7*3"]
NOT_ARITHMETIC += ["-+7*3", "7;3", "(" * 199, "7*3" + "+0" * 200, "7*\x003", "٧*٣", "7*3\n#"]


@pytest.mark.parametrize("action", NOT_ARITHMETIC)
def test_text_that_is_no_arithmetic_changes_nothing(action):
    game = instance()
    observation, reward, terminated, _, info = game.step(action)
    assert observation == "Write an expression such as 7*3. Numbers: 7 3. Target: 21."
    assert (reward, terminated) == (0.0, False)
    assert info["metrics"]["action_is_valid"] is False
    assert game.step("7*3")[1] == 1.0


def test_several_tries_are_counted():
    game = instance(max_tries=2)
    observation, _, terminated, _, _ = game.step("7-3")
    assert observation == "That is 4. Numbers: 7 3. Target: 21. 1 try left." and not terminated
    assert game.step("7/3")[:3] == ("That divides with a rest. No tries left.", 0.0, True)
    assert game.step("7*3")[1] == 0.0


def test_the_splits_are_disjoint_and_the_order_of_numbers_does_not_matter():
    seen = {}
    for split in ("train", "validation"):
        game = Countdown()
        for seed in range(1000):
            game.reset(seed=seed, options={"split": split})
            seen.setdefault(split, set()).add((tuple(sorted(game.numbers)), game.target))
    assert len(seen["train"]) > 100 and len(seen["validation"]) > 20
    assert not seen["train"] & seen["validation"]


def test_the_seed_decides_everything():
    shown = {Countdown(num_numbers=3).reset(seed=3)[0] for _ in range(3)}
    assert len(shown) == 1
    assert len({Countdown().reset(seed=seed)[0] for seed in range(50)}) > 30


def test_sampled_actions_use_every_number():
    game, rng = Countdown(num_numbers=3), random.Random(0)
    for seed in range(50):
        game.reset(seed=seed)
        metrics = game.step(game.sample_action(rng))[4]["metrics"]
        assert metrics["action_is_valid"] and metrics["uses_all_numbers"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("2+3*4", 14), ("(2+3)*4", 20), ("8/2/2", 2), ("7/2*2", None), ("1/0", None), ("-3+5", 2)],
)
def test_arithmetic(text, value):
    assert value_of(expression(text)) == value


def test_a_huge_number_is_arithmetic_and_no_crash():
    assert value_of(expression("*".join(["9" * 30] * 6))) == (10**30 - 1) ** 6
    with pytest.raises(NotAnExpression):
        expression("9" * 5000)


@pytest.mark.parametrize(
    "config", [{"num_numbers": 1}, {"num_numbers": 7}, {"min_number": 0}, {"max_tries": 0}]
)
def test_an_instance_that_cannot_be_drawn_is_refused(config):
    with pytest.raises(ValueError, match="countdown: "):
        Countdown(**config)
