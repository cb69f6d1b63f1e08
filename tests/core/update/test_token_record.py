"""What an update leaves of each token: the numbers of its first pass, of computed tokens alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from update_fixtures import sample, tiny_model

from ajet.core.trajectory.sample import TurnSpan
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings

IDS = [1, 2, 3, 4, 5, 6, 7]
MASK = "0011011"  # two turns of 2 sampled tokens
SPANS = (TurnSpan(2, 4, 0), TurnSpan(5, 7, 1))


def episode(advantage=1.0, name="e0", **more):
    return replace(sample(IDS, MASK, advantage=advantage, episode=name, **more), spans=SPANS)


def recorded(samples, **settings):
    """What one update recorded, and the log-probabilities just before it."""
    policy = Policy(tiny_model(), UpdateSettings(**{"lr": 0.1} | settings))
    scores, tokens = policy.score(samples), TrainedTokens()
    policy.update(samples, tokens=tokens)
    return tokens, [scores[0][2:4], scores[0][5:7]]


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_each_turn_has_the_numbers_of_the_first_pass(layout):
    tokens, scores = recorded([episode()], ppo_epochs=3, batch_layout=layout, kl_loss_coef=0.1)
    for turn, score in enumerate(scores):
        rows = tokens.rows["e0", turn]
        np.testing.assert_allclose(rows["policy_logprobs"], score, rtol=1e-5)
        np.testing.assert_allclose(rows["ratios"], np.exp(score + 2.0), rtol=1e-5)  # sampler: -2
        np.testing.assert_allclose(rows["reference_logprobs"], score, rtol=1e-5)  # as it began
        assert (rows["entropies"] > 0).all() and rows["entropies"].dtype == np.float32


def test_the_tokens_that_a_bound_acted_on_are_named_within_their_turn():
    high = [-9.0, -0.001, -0.001, -9.0]  # the sampler's: ratios far above 1 at the ends
    tokens, _ = recorded([episode(logprobs=high)])
    assert tokens.cuts == {("e0", 0): {"high": [0]}, ("e0", 1): {"high": [1]}}
    tokens, _ = recorded([episode(-1.0, logprobs=high)])
    assert tokens.cuts == {("e0", 0): {"low": [1]}, ("e0", 1): {"low": [0]}}


def test_an_episode_without_signal_is_not_computed_and_has_no_numbers():
    tokens, _ = recorded([episode(), episode(0.0, name="e1")])
    assert {name for name, _ in tokens.rows} == {"e0"}


def test_a_given_token_has_no_ratio_and_without_a_reference_none_has_its_number():
    given = np.array([c == "1" for c in "0011000"], np.float32)
    both = replace(
        episode(), streams={"policy_gradient": 1 - given, "cross_entropy": given}
    )  # turn 1 is given
    tokens, _ = recorded([both])
    assert np.isnan(tokens.rows["e0", 0]["ratios"]).all()
    assert np.isfinite(tokens.rows["e0", 1]["ratios"]).all()
    assert np.isfinite(tokens.rows["e0", 0]["policy_logprobs"]).all()
    assert "reference_logprobs" not in tokens.rows["e0", 0]


def test_recording_leaves_the_update_bit_for_bit_as_it_is():
    def trained(tokens):
        policy = Policy(tiny_model(), UpdateSettings(lr=0.1, kl_loss_coef=0.1, ppo_epochs=2))
        policy.update([episode(), episode(-0.5, name="e1")], tokens=tokens)
        return policy.state_dict().tensors

    without, with_record = trained(None), trained(TrainedTokens())
    assert all(torch.equal(without[name], with_record[name]) for name in without)


def test_parts_of_one_turn_are_put_together():
    one, other = TrainedTokens(), TrainedTokens()
    one.row("e", 0, "ratios", 3)[0] = 1.5
    other.row("e", 0, "ratios", 3)[2] = 0.5
    one.cut("e", 0, "high", [0])
    other.cut("e", 0, "high", [2])
    one.merge(other)
    assert one.rows["e", 0]["ratios"].tolist() == pytest.approx([1.5, np.nan, 0.5], nan_ok=True)
    assert one.cuts == {("e", 0): {"high": [0, 2]}}
