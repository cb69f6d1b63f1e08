"""An estimator and a reward shaping of the user's own, by file.py->function."""

import numpy as np
import pytest

from ajet.core.advantage import EstimatorSettings, estimate
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.learning.credit import estimator_settings
from tests.core.advantage.advantage_fixtures import credited, per_turn, random_groups

OWN = """
import numpy as np

def centred(groups, options):
    return [e.reward - sum(o.reward for o in g) / len(g) for g in groups for e in g]

def by_turn(groups, options):
    return {
        e.episode_id: [np.full(n, e.turn_rewards_T[i]) for i, n in enumerate(e.lengths_T)]
        for g in groups for e in g
    }

def doubled(groups):
    return [2 * e.reward for g in groups for e in g]

def short(groups, options=None):
    return [1.0]

def word(groups, options=None):
    return ["high" for g in groups for _ in g]

def infinite(groups, options=None):
    return [float("inf") for g in groups for _ in g]

def raises(groups, options=None):
    return groups[0][0].score_of_mine

def forgetful(groups, options):
    return {}

def one_turn(groups, options):
    return {e.episode_id: [[1.0]] for g in groups for e in g}

def not_finite(groups, options):
    return {e.episode_id: [[float("nan")] * n for n in e.lengths_T] for g in groups for e in g}
"""
ALGORITHM = "ajet.trainer_common.algorithm"


@pytest.fixture
def settings_of(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "run.yaml").write_text(
        "ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}"
    )

    def made(**given):
        overrides = [f"{ALGORITHM}.{key}={value}" for key, value in given.items()]
        return estimator_settings(load_config(tmp_path / "run.yaml", overrides))

    return made


def test_one_number_an_episode_is_that_of_all_its_tokens(settings_of):
    groups = random_groups(0)
    found = estimate(groups, settings_of(adv_estimator="own.py->centred"))
    expected = estimate(groups, EstimatorSettings("reinforce_plus_plus_baseline", whiten=False))
    for name, turns in expected.advantages.items():
        for ours, theirs in zip(turns, found.advantages[name], strict=True):
            np.testing.assert_allclose(theirs, ours, atol=1e-6)
    assert found.metrics["advantage/abs_mean"] > 0


def test_arrays_of_turns_are_taken_and_whitened_where_that_is_set(settings_of):
    groups = [(credited("a", [1.0, 3.0]), credited("b", [2.0]))]
    found = estimate(groups, settings_of(adv_estimator="own.py->by_turn"))
    assert per_turn(found.advantages) == {"a": [1.0, 3.0], "b": [2.0]}
    assert found.advantages["a"][0].dtype == np.float32
    whitened = estimate(
        groups, settings_of(adv_estimator="own.py->by_turn", whiten_advantages="true")
    )
    tokens = np.concatenate([turn for turns in whitened.advantages.values() for turn in turns])
    assert tokens.mean() == pytest.approx(0, abs=1e-6)


def test_shaped_rewards_are_what_the_estimator_reads(settings_of):
    groups = [(credited("a", [0.25, 0.75]), credited("b", [0.0]))]
    settings = settings_of(
        adv_estimator="rloo", reward_shaping="own.py->doubled", reward_clip="1.5"
    )
    found = estimate(groups, settings)  # 2 and 0, cut to 1.5 and 0
    assert per_turn(found.advantages) == {"a": [1.5, 1.5], "b": [-1.5]}
    assert found.metrics["reward/clipped"] == 0.5


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("adv_estimator", "centre", "no function 'centre'; did you mean 'centred'?"),
        ("adv_estimator", "short", "it returned 1 numbers for 2 episodes"),
        ("adv_estimator", "word", "return a list of 2 numbers, one for each episode"),
        ("adv_estimator", "infinite", "a number that it returned is not finite"),
        ("adv_estimator", "raises", "own.py:26: AttributeError: "),
        ("adv_estimator", "forgetful", "it returned nothing for episode a"),
        ("adv_estimator", "one_turn", "its turns have [2, 2] trained tokens, the arrays [(1,)]"),
        ("adv_estimator", "not_finite", "episode a: a number is not finite"),
        ("reward_shaping", "short", "it returned 1 numbers for 2 episodes"),
        ("reward_shaping", "infinite", "a number that it returned is not finite"),
        ("reward_shaping", "raises", "own.py:26: AttributeError: "),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(settings_of, key, name, message):
    groups = [(credited("a", [1.0, 3.0]), credited("b", [2.0]))]
    with pytest.raises(ConfigError) as error:
        estimate(groups, settings_of(**{key: f"own.py->{name}"}))
    text = str(error.value)
    assert text.startswith(f"{ALGORITHM}.{key}: ") and message in text and "\n" not in text
