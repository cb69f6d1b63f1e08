import numpy as np
import pytest

from ajet.core.advantage.kl_controller import AdaptiveKLController, FixedKLController
from ajet.core.advantage.kl_in_reward import penalise_kl
from ajet.core.config import load_config
from ajet.core.learning.credit import make_kl_controller
from tests.core.advantage.advantage_fixtures import credited


def array(*numbers):
    return np.array(numbers, np.float32)


def test_the_penalty_is_the_coefficient_times_the_difference():
    own = {"a": (array(-1, -2), array(-1)), "b": (array(-1),)}
    reference = {"a": (array(-2, -2), array(-3)), "b": (array(-0.5),)}
    groups = [(credited("a", [0, 1], [2, 1]), credited("b", [1], [1]))]
    found = penalise_kl(groups, own, reference, coef=0.5)
    one, two = found.groups[0]
    assert [each.tolist() for each in one.penalties] == [[0.5, 0.0], [1.0]]
    assert one.score == 1 - 1.5
    assert two.score == 1 + 0.25
    assert found.kl == pytest.approx((1.0 - 0.5) / 2)  # means of episodes: 3/3 and -.5


def test_an_episode_without_trained_tokens_has_no_part_in_the_mean():
    none = (array(),)
    groups = [(credited("a", [1], [0]), credited("b", [1], [1]))]
    own, reference = {"a": none, "b": (array(-1),)}, {"a": none, "b": (array(-3),)}
    assert penalise_kl(groups, own, reference, coef=0.5).kl == 2.0
    assert penalise_kl([()], {}, {}, coef=0.5).kl == 0.0


def test_log_probabilities_of_another_number_of_tokens_are_refused():
    with pytest.raises(AssertionError, match="episode a"):
        penalise_kl([(credited("a", [1], [2]),)], {"a": (array(1),)}, {"a": (array(1),)}, 0.1)


def control_of(kind, coef):
    section = "ajet.trainer_common.algorithm.kl_ctrl"
    settings = f"{{type: {kind}, kl_coef: {coef}, target_kl: 0.1, horizon: 100}}"
    config = load_config("tutorial/example_math_agent/demo.yaml", [f"{section}={settings}"])
    return make_kl_controller(config.ajet.trainer_common.algorithm.kl_ctrl)


def test_the_fixed_coefficient_stays():
    control = control_of("fixed", 0.3)
    control.update(kl=50.0, num_episodes=1000)
    assert isinstance(control, FixedKLController) and control.coef == 0.3


def test_the_adaptive_coefficient_moves_towards_the_target():
    control = control_of("adaptive", 1.0)
    control.update(kl=0.11, num_episodes=50)  # error .1, half a horizon
    assert control.coef == pytest.approx(1.05)
    control.update(kl=9.0, num_episodes=100)  # the error is cut to .2
    assert control.coef == pytest.approx(1.05 * 1.2)
    control.update(kl=0.0, num_episodes=100)
    assert control.coef == pytest.approx(1.05 * 1.2 * 0.8)


@pytest.mark.parametrize("kl", [0.0, 9.0])
def test_a_step_of_many_horizons_moves_the_coefficient_by_a_fifth_and_never_below_zero(kl):
    control = AdaptiveKLController(coef=0.2, target=0.1, horizon=100)
    control.update(kl=kl, num_episodes=600)
    assert control.coef == pytest.approx(0.2 * (1.2 if kl else 0.8))
    for _ in range(100):
        control.update(kl=0.0, num_episodes=600)
        assert control.coef > 0


def test_a_resumed_run_goes_on_with_the_coefficient_it_had():
    before = AdaptiveKLController(1.0, 0.1, 100)
    before.update(kl=9.0, num_episodes=100)
    after = AdaptiveKLController(1.0, 0.1, 100)
    after.load_state_dict(before.state_dict())
    assert after.coef == before.coef == 1.2
