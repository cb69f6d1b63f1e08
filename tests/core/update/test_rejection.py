"""Rejection by measures of a distance, worked out by hand, and what a rejected token still does."""

from dataclasses import replace

import pytest
from test_correction import SAMPLES, episode
from test_policy import gradient
from test_policy_losses import assert_same_gradient, near
from update_fixtures import forked_groups, tiny_model

from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.update.correction import apply_correction
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CorrectionSettings, UpdateSettings

# Two turns of the log-ratios (ln 2, ln 2) and (-ln 2), and another episode of one turn, (ln 4).
TURNS = [
    episode("a", "0110010", [2, 2, 1 / 2], (1, 3), (5, 6)),
    episode("b", "01", [4], (1, 2)),
]


def rejected(samples, **reject):
    settings = CorrectionSettings(reject=reject, count_rejected=False)
    kept, metrics = apply_correction(samples, settings)
    mask = [
        (before.loss_mask & ~after.loss_mask)[before.loss_mask].tolist()
        for before, after in zip(samples, kept, strict=True)
    ]
    return [int(flag) for row in mask for flag in row], metrics


@pytest.mark.parametrize(
    ("measure", "bounds", "expected"),
    [
        ("token_k1", (-1.0, 1.0), [0, 0, 0, 1]),  # -d is -ln 2, -ln 2, ln 2, -ln 4
        ("token_k1", (-1.0, 0.5), [0, 0, 1, 1]),
        ("token_k2", (-0.5, 0.5), [0, 0, 0, 1]),  # d^2 / 2 is .24 .24 .24 .96
        ("token_k3", (-0.2, 0.2), [1, 1, 0, 1]),  # 2 - 1 - .69, .5 - 1 + .69 = .19, 4 - 1 - 1.39
        ("turn_sum_k1", (-1.0, 1.0), [1, 1, 0, 1]),  # -2 ln 2 | ln 2 | -2 ln 2
        ("turn_mean_k1", (-1.0, 1.0), [0, 0, 0, 1]),
        ("turn_sum_k2", (-0.3, 0.3), [1, 1, 0, 1]),
        ("turn_max_k3", (-0.25, 0.25), [1, 1, 0, 1]),
        ("seq_sum_k1", (-1.0, 1.0), [0, 0, 0, 1]),  # -ln 2 | -2 ln 2
        ("seq_mean_k3", (-0.3, 0.3), [0, 0, 0, 1]),  # (.307 + .307 + .193) / 3 = .269
        ("seq_max_k2", (-0.2, 0.2), [1, 1, 1, 1]),
    ],
)
def test_measures_are_of_a_token_a_turn_or_an_episode(measure, bounds, expected):
    found, metrics = rejected(TURNS, **{measure: bounds})
    assert found == expected
    assert metrics["rejected_tokens"] == sum(expected)
    assert metrics["rejected_share"] == pytest.approx(sum(expected) / 4)


def test_an_episode_is_measured_over_all_its_timelines():
    # episode a: (ln 2, ln 2) on one timeline and -ln 2 on another; b: -ln 4
    found, _ = rejected(SAMPLES, seq_sum_k1=(-0.5, 2.0))
    assert found == [1, 1, 0, 1]


def test_tokens_beyond_the_bounds_of_weights_are_rejected_too():
    settings = CorrectionSettings(
        level="token", mode="reject", lower=0.6, upper=3.0, reject={"token_k2": (-0.5, 0.5)}
    )
    weighted, metrics = apply_correction(TURNS, settings)
    assert [w for s in weighted for w in s.weights[s.loss_mask].tolist()] == [2, 2, 0, 0]
    assert (metrics["rejected_tokens"], metrics["rejected_share"]) == (2, 0.5)
    assert metrics["rejected_share_token_k2"] == 0.25


def without_first_episode(samples):
    first = samples[0].episode_id
    return [s for s in samples if s.episode_id != first]


def far_first(samples):
    """The samples, of which the first episode alone is far from the sampler."""
    first = samples[0].episode_id
    scores = Policy(tiny_model(), UpdateSettings()).score(samples)
    return [
        replace(s, logprobs=(score - 3 * s.loss_mask * (s.episode_id == first)).astype("f4"))
        for s, score in zip(samples, scores, strict=True)
    ]


REJECT = CorrectionSettings(reject={"seq_mean_k1": (-1.0, 1.0)})


def test_a_rejected_token_counts_in_the_mean_or_leaves_the_loss_with_its_kl():
    samples = far_first(forked_groups())
    kept = without_first_episode(samples)
    left_out = replace(REJECT, count_rejected=False)
    for terms in ({}, {"kl_loss_coef": 0.5, "entropy_coef": 0.1}):
        found, metrics = gradient(samples, correction=left_out, **terms)
        assert_same_gradient(found, gradient(kept, **terms)[0])
        assert metrics["rejected_share"] > 0
    counted, _ = gradient(samples, correction=REJECT)
    alone, _ = gradient(kept)
    share = sum(s.num_trained for s in kept) / sum(s.num_trained for s in samples)
    assert_same_gradient(counted, {name: share * grad for name, grad in alone.items()})


def test_with_rejection_alone_the_old_policy_stays_the_samplers_unless_it_is_set():
    samples = [replace(s, old_logprobs=None) for s in near(forked_groups())]
    wide = CorrectionSettings(reject={"token_k2": (-1e6, 1e6)})  # it rejects nothing
    plain = dict(clip_low=0.9, clip_high=9.0)
    assert_same_gradient(
        gradient(samples, correction=wide, **plain)[0], gradient(samples, **plain)[0]
    )
    ours, _ = gradient(samples, correction=wide, old_logprobs="trainer", **plain)
    assert_same_gradient(ours, gradient(samples, old_logprobs="trainer", **plain)[0])


def test_normalised_weights_have_a_mean_of_one_over_their_units():
    settings = CorrectionSettings(level="turn", upper=3.0, normalize=True)
    weighted, metrics = apply_correction(TURNS, settings)
    # the turns' weights are 3 (4 cut), 1/2 and 3, of which the mean is 6.5 / 3
    found = [w for s in weighted for w in s.weights[s.loss_mask].tolist()]
    assert found == pytest.approx([w * 3 / 6.5 for w in (3, 3, 0.5, 3)])
    assert metrics["truncated_tokens"] == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{seq_mean_k4: 0.1}", "seq_mean_k4"),
        ("{token_k3: [0.1, 0.2]}", "reject.token_k3: it is never negative; give its upper bound"),
        ("{token_k1: -0.1}", "reject.token_k1: give a number above 0, or [low, high]"),
        ("{token_k1: [0.2, 0.1]}", "reject.token_k1: give a number above 0, or [low, high]"),
    ],
)
def test_a_wrong_measure_or_bound_is_one_line(tmp_path, given, message):
    path = tmp_path / "run.yaml"
    path.write_text("ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}")
    key = "ajet.trainer_common.algorithm.rollout_correction.reject"
    with pytest.raises(ConfigError) as error:
        load_config(path, [f"{key}={given}"])
    assert message in str(error.value) and "\n" not in str(error.value)
