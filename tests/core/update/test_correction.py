"""Importance weights, worked out by hand: log-ratios of ln 2 and the like."""

import math
from dataclasses import replace

import numpy as np
import pytest
from update_fixtures import sample

from ajet.core.trajectory.sample import TurnSpan
from ajet.core.update.correction import apply_correction, effective_sample_size
from ajet.core.update.settings import CorrectionSettings


def episode(name, mask, ratios, *turns):
    """`ratios` are the trainer's over the sampler's, of the trained tokens; `turns` their spans."""
    row = sample(range(len(mask)), mask, episode=name)
    old = row.logprobs.copy()
    old[row.loss_mask] += np.log(np.array(ratios, np.float32))
    spans = tuple(TurnSpan(start, stop, index) for index, (start, stop) in enumerate(turns))
    return replace(row, old_logprobs=old, spans=spans)


# Episode a: turns of ratios (2, 2) and (1/2), the first and the second on timelines of their own;
# episode b: one turn of (1/4).
SAMPLES = [
    episode("a", "0110", [2, 2], (1, 3)),
    episode("b", "01", [1 / 4], (1, 2)),
    episode("a", "0001", [1 / 2], (3, 4)),
]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [2, 2, 1 / 4, 1 / 2]),
        ("turn", [4, 4, 1 / 4, 1 / 2]),
        ("sequence", [2, 2, 1 / 4, 2]),  # 2 * 2 / 2, over both timelines
    ],
)
def test_a_weight_is_of_a_token_a_turn_or_an_episode(level, expected):
    weighted, metrics = apply_correction(SAMPLES, CorrectionSettings(level=level, upper=100.0))
    found = np.concatenate([s.weights[s.loss_mask] for s in weighted])
    assert found.tolist() == pytest.approx(expected)
    assert metrics["correction_ratio_max"] == pytest.approx(max(expected))
    assert metrics["truncated_tokens"] == metrics["rejected_tokens"] == 0


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [2, 2, 1 / 4, 1 / 2]),
        ("turn", [2, 2, 1 / 4, 1 / 2]),
        ("sequence", [2 ** (1 / 3), 2 ** (1 / 3), 1 / 4, 2 ** (1 / 3)]),  # of three tokens
    ],
)
def test_the_geometric_mean_is_that_of_the_units_tokens(level, expected):
    settings = CorrectionSettings(level=level, upper=100.0, combine="geometric_mean")
    weighted, metrics = apply_correction(SAMPLES, settings)
    found = np.concatenate([s.weights[s.loss_mask] for s in weighted])
    assert found.tolist() == pytest.approx(expected)
    assert metrics["correction_ratio_max"] == pytest.approx(max(expected))


def test_two_turns_of_one_timeline_have_weights_of_their_own():
    one = episode("a", "011011", [2, 2, 3, 1], (1, 3), (4, 6))
    weighted, metrics = apply_correction([one], CorrectionSettings(level="turn", upper=100.0))
    assert weighted[0].weights.tolist() == pytest.approx([1, 4, 4, 1, 3, 3])
    # two turns: (4 + 3)^2 / (2 * (16 + 9))
    assert metrics["correction_ess"] == pytest.approx(49 / 50)


def test_turns_at_the_same_place_of_two_episodes_have_weights_of_their_own():
    one, two = (episode(name, "011", [r, r], (1, 3)) for name, r in (("a", 2), ("b", 1 / 2)))
    weighted, _ = apply_correction([one, two], CorrectionSettings(level="turn", upper=100.0))
    assert [w.weights[1:].tolist() for w in weighted] == [
        pytest.approx([4, 4]),
        pytest.approx([1 / 4, 1 / 4]),
    ]


def test_truncating_cuts_large_weights_alone_and_is_counted_in_tokens():
    weighted, metrics = apply_correction(SAMPLES, CorrectionSettings(level="turn", upper=3.0))
    found = np.concatenate([s.weights[s.loss_mask] for s in weighted])
    assert found.tolist() == pytest.approx([3, 3, 1 / 4, 1 / 2])
    assert (metrics["truncated_tokens"], metrics["rejected_tokens"]) == (2, 0)
    assert metrics["correction_ratio_max"] == pytest.approx(4)


def test_rejecting_leaves_weights_within_the_bounds_and_zeros_without():
    reject = CorrectionSettings(level="token", mode="reject", lower=0.3, upper=1.0)
    weighted, metrics = apply_correction(SAMPLES, reject)
    found = np.concatenate([s.weights[s.loss_mask] for s in weighted])
    assert found.tolist() == pytest.approx([0, 0, 0, 1 / 2])
    assert (metrics["truncated_tokens"], metrics["rejected_tokens"]) == (0, 3)
    assert metrics["correction_ess"] == pytest.approx(1 / 4)


def test_an_astronomic_ratio_stays_finite():
    far = replace(SAMPLES[1], old_logprobs=np.array([0, 500], np.float32))
    for mode in ("truncate", "reject"):
        weighted, metrics = apply_correction([far], CorrectionSettings(level="sequence", mode=mode))
        assert np.isfinite(weighted[0].weights).all()
        assert np.isfinite(list(metrics.values())).all()


def test_the_effective_sample_size_is_a_fraction():
    assert effective_sample_size(np.array([3.0, 3.0])) == pytest.approx(1)
    assert effective_sample_size(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(1 / 4)
    assert effective_sample_size(np.zeros(3)) == 0
    assert math.isfinite(effective_sample_size(np.full(3, 1e-300)))
