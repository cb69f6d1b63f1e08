"""Task families of reasoning-gym: one question, one answer, the family's own score."""

import random
from importlib.util import find_spec

import pytest

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="no reasoning_gym")

FAMILIES = ["spell_backward", "basic_arithmetic", "leg_counting", "n_queens", "countdown"]


def made(name="spell_backward", **config):
    return environment_maker(f"reasoning_gym:{name}", config, [], "custom_envs.x.env_type")()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_answer_scores_one_and_ends_the_episode(name):
    env = made(name)
    for seed in range(3):
        question, info = env.reset(seed=seed)
        assert info == {}
        observation, reward, terminated, truncated, info = env.step(env.oracle_action())
        assert (observation, reward, terminated, truncated) == ("The score is 1.", 1.0, True, False)
        assert info == {
            "metrics": {"success": True, "action_is_valid": True, "answer_is_scored": True}
        }
        assert question == env.render()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_wrong_answer_scores_as_the_family_scores_it(name):
    env = made(name)
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("quite wrong")
    expected = env._dataset.score_answer("quite wrong", env._entry)
    assert reward == expected < 1 and terminated and not info["metrics"]["success"]


def test_a_scorer_that_stumbles_is_counted_and_worth_nothing():
    env = made()
    env.reset(seed=0)
    env._dataset = FailingScorer()
    _, reward, terminated, _, info = env.step("x")
    assert reward == 0.0 and terminated
    assert info["metrics"]["answer_is_scored"] is False


class FailingScorer:
    def score_answer(self, answer, entry):
        raise ZeroDivisionError(answer)


def test_the_familys_settings_are_env_config():
    env = made(min_word_len=3, max_word_len=3)
    assert all(len(answers(env, seed)) == 3 for seed in range(5))


def answers(env, seed):
    env.reset(seed=seed)
    return env.oracle_action()


def test_the_splits_share_no_question_and_the_seed_decides():
    sums = {"max_terms": 2, "max_digits": 1}
    env = made("basic_arithmetic", **sums)
    seen = {
        split: {env.reset(seed=seed, options={"split": split})[0] for seed in range(150)}
        for split in ("train", "validation")
    }
    assert len(seen["train"]) > 50 and len(seen["validation"]) > 20
    assert not seen["train"] & seen["validation"]
    assert env.reset(seed=8)[0] == made("basic_arithmetic", **sums).reset(seed=8)[0]


def test_sampled_answers_are_answers():
    env = made()
    env.reset(seed=0)
    assert env.sample_action(random.Random(0)).isalpha()


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("nothing", {}, "Dataset 'nothing' not registered"),
        ("spell_backward", {"foo": 1}, "unexpected keyword argument 'foo'"),
        ("spell_backward", {"min_word_len": 0}, "reasoning_gym:spell_backward: "),
        ("spell_backward", {"seed": 1}, "env_config.seed: the episode's seed"),
    ],
)
def test_a_mistake_is_one_line(name, config, message):
    with pytest.raises(ConfigError, match=message) as told:
        made(name, **config)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["list_functions", "pool_matrix"])
def test_families_that_draw_globally_follow_from_the_seed_and_disturb_nobody(name):
    random.seed(1)
    expected = random.Random(1).random()
    first = made(name).reset(seed=8)[0]
    random.random()
    assert made(name).reset(seed=8)[0] == first
    random.seed(1)
    made(name).reset(seed=9)
    assert random.random() == expected
