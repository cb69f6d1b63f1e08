import copy

import numpy as np
import pytest
import torch
from update_fixtures import (
    assert_same_gradient,
    forked_groups,
    load_newest,
    sample,
    save_checkpoint,
    tiny_model,
)

from ajet.core.errors import CheckpointError
from ajet.core.model.precision import to_float64
from ajet.core.update.critic import Critic, value_loss
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CriticSettings, UpdateSettings


def targets(samples, seed=0):
    """A return for each trained token."""
    rng = np.random.default_rng(seed)
    return [np.where(s.loss_mask, rng.normal(0, 1, len(s)), 0).astype(np.float32) for s in samples]


def zeros(samples):
    return [np.zeros(len(s), np.float32) for s in samples]


def bent(critic, seed=0):
    """With a head that is not zero, so that the gradient reaches the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head = critic.model.head
        head.weight.copy_(0.1 * torch.randn(head.weight.shape, generator=generator))
    return critic


def critic_with(model=None, **settings):
    return Critic(model or tiny_model(), CriticSettings(**{"lr": 1e-2} | settings))


def gradient(samples, **settings):
    critic = bent(critic_with(lr=0.0, grad_clip=0.0, cliprange_value=9.0, **settings))
    metrics = critic.update(samples, targets(samples), zeros(samples))
    tensors = critic.optimizer.tensors()
    return {n: 10 * t for n, t in tensors.items() if n.endswith(".exp_avg")}, metrics


def test_a_new_critic_expects_nothing():
    samples = forked_groups()
    for value, each in zip(critic_with().values(samples), samples, strict=True):
        assert value.dtype == np.float32 and len(value) == len(each) and not value.any()


def test_a_value_is_read_before_its_token():
    """Of the hidden state of the token before: what is sampled does not show in its own value."""
    model = tiny_model()
    critic = bent(critic_with(model))
    one, other = sample([1, 2, 3, 4], "0011"), sample([1, 2, 9, 4], "0011")
    first, second = critic.values([one, other])
    assert first[2] == pytest.approx(second[2], abs=1e-6) and abs(first[3] - second[3]) > 1e-4
    with torch.no_grad():
        hidden = model.model(torch.tensor([[1, 2, 3]])).last_hidden_state[0]
        expected = (hidden @ critic.model.head.weight[0])[[1, 2]]
    np.testing.assert_allclose(first[2:], expected.numpy(), atol=1e-5)
    assert not first[:2].any()


def test_a_model_in_float64_has_a_head_in_float64():
    samples = forked_groups()
    found, expected = (
        gradient(samples, model=to_float64(tiny_model()), batch_layout=layout)[0]
        for layout in ("tree", "padded")
    )
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-12, msg=name)
    assert {grad.dtype for grad in found.values()} == {torch.float64}


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
@pytest.mark.parametrize("budget", [60, 100_000])
def test_layouts_and_micro_batches_give_the_same_values_and_gradient(layout, budget):
    samples = forked_groups()
    settings = dict(batch_layout=layout, max_tokens_per_micro_batch=budget)
    expected, whole = gradient(samples, batch_layout="padded")
    found, metrics = gradient(samples, **settings)
    assert_same_gradient(found, expected)
    assert metrics["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    values = bent(critic_with(**settings)).values(samples)
    reference = bent(critic_with(batch_layout="padded")).values(samples)
    np.testing.assert_allclose(np.concatenate(values), np.concatenate(reference), atol=1e-5)


def test_the_loss_is_the_mean_over_the_tokens_of_the_mini_batch():
    samples = [sample([1, 2, 3], "011"), sample([1, 2, 4], "001", episode="b")]
    returns = [np.array([0, 1, 2], np.float32), np.array([0, 0, 3], np.float32)]
    metrics = critic_with(cliprange_value=9.0).update(samples, returns, zeros(samples))
    assert metrics["loss"] == pytest.approx(0.5 * (1 + 4 + 9) / 3)
    assert metrics["trained_tokens"] == 3
    assert (metrics["value_mean"], metrics["return_mean"]) == (0, pytest.approx(2))
    assert metrics["explained_variance"] == pytest.approx(0)


def test_a_value_beyond_the_clip_has_no_gradient_and_is_counted():
    values = torch.tensor([0.9, 0.1, -0.9], requires_grad=True)
    old, returns = torch.zeros(3), torch.ones(3)
    loss, is_cut = value_loss(values, returns, old, 0.5)
    # 0.9 is past the clip, towards the return: the clipped 0.5 costs more; -0.9 is past it, away
    assert loss.tolist() == pytest.approx([0.5 * 0.25, 0.5 * 0.81, 0.5 * 1.9**2])
    assert is_cut.tolist() == [True, False, False]
    assert torch.autograd.grad(loss.sum(), values)[0].tolist() == pytest.approx([0, -0.9, -1.9])


def test_it_learns_a_constant():
    samples = forked_groups()
    returns = [np.where(s.loss_mask, 0.7, 0).astype(np.float32) for s in samples]
    critic = critic_with()
    for _ in range(30):
        metrics = critic.update(samples, returns, critic.values(samples))
    assert metrics["loss"] < 1e-3
    assert "explained_variance" not in metrics  # nothing varies


def test_it_learns_what_distinguishes_states():
    """The return is given by the token before the sampled one."""
    samples = [sample([1, t, 5], "001", episode=f"e{t}", group=f"g{t}") for t in range(2, 18)]
    returns = [np.array([0, 0, (-1.0) ** t], np.float32) for t in range(2, 18)]
    critic = critic_with(mini_batch_num=2, ppo_epochs=2)
    for _ in range(15):
        metrics = critic.update(samples, returns, critic.values(samples))
    assert metrics["explained_variance"] > 0.9
    assert metrics["optimizer_steps"] == 4


def test_the_policy_of_which_it_is_a_copy_stays_as_it_is():
    model = tiny_model()
    critic = critic_with(copy.deepcopy(model))
    samples = forked_groups()
    critic.update(samples, targets(samples), zeros(samples))
    for found, fresh in zip(model.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(found, fresh)


def test_an_output_layer_of_its_own_is_neither_trained_nor_decayed():
    critic = critic_with(tiny_model(tie_word_embeddings=False), weight_decay=0.5)
    before = critic.model.model.lm_head.weight.clone()
    samples = forked_groups()
    critic.update(samples, targets(samples), zeros(samples))
    assert torch.equal(critic.model.model.lm_head.weight, before)
    assert not any("lm_head" in name for name in critic.state_dict().tensors)


def test_a_model_without_flat_forward_has_values_too():
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = dict(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    critic = bent(critic_with(GPT2LMHeadModel(GPT2Config(**shape))))
    samples = forked_groups()
    assert critic.layout.name == "padded"
    assert np.abs(np.concatenate(critic.values(samples))).max() > 1e-3
    assert critic.update(samples, targets(samples), zeros(samples))["optimizer_steps"] == 1


def test_a_batch_without_trained_tokens_changes_nothing():
    critic = critic_with()
    assert critic.values([]) == []
    for samples in ([], [sample([1, 2], "00")]):
        metrics = critic.update(samples, zeros(samples), critic.values(samples))
        assert metrics["optimizer_steps"] == 0 and np.isfinite(list(metrics.values())).all()


def test_a_return_that_is_not_finite_changes_no_weight():
    critic = critic_with()
    samples = forked_groups()
    returns = targets(samples)
    returns[0][-1] = np.inf
    before = {n: t.clone() for n, t in critic.state_dict().tensors.items()}
    metrics = critic.update(samples, returns, zeros(samples))
    assert (metrics["nonfinite_steps"], metrics["optimizer_steps"]) == (1, 0)
    for name, tensor in before.items():
        assert torch.equal(critic.state_dict().tensors[name], tensor)


def test_a_loaded_critic_goes_on_bit_for_bit():
    torch.set_num_threads(1)
    samples = forked_groups()
    critic = critic_with(mini_batch_num=2)
    critic.update(samples, targets(samples), zeros(samples))
    saved = {n: t.clone() for n, t in critic.state_dict().tensors.items()}
    counters = dict(critic.state_dict().state)
    resumed = critic_with(tiny_model(seed=9), mini_batch_num=2)
    resumed.load_state_dict(saved, counters)
    for each in (critic, resumed):
        each.update(samples, targets(samples, seed=1), each.values(samples))
    for name, tensor in critic.state_dict().tensors.items():
        assert torch.equal(resumed.state_dict().tensors[name], tensor), name


def test_a_checkpoint_holds_both_and_its_model_file_the_policy_alone(tmp_path):
    from safetensors.torch import load_file

    samples = forked_groups()
    policy, critic = Policy(tiny_model(), UpdateSettings(lr=1e-3)), critic_with()
    critic.update(samples, targets(samples), zeros(samples))
    policy.update(samples)
    tensors = policy.state_dict().tensors | critic.state_dict().tensors
    state = {"policy": policy.state_dict().state, "critic": critic.state_dict().state}
    path = save_checkpoint(tmp_path, 1, tensors, state)
    assert set(load_file(path / "model.safetensors")) == {
        name for name, _ in tiny_model().named_parameters()
    }
    found = load_newest(tmp_path)
    other_policy = Policy(tiny_model(seed=3), UpdateSettings(lr=1e-3))
    other_critic = critic_with(tiny_model(seed=4))
    other_policy.load_state_dict(found.tensors, found.state["policy"])
    other_critic.load_state_dict(found.tensors, found.state["critic"])
    for one, other in ((policy, other_policy), (critic, other_critic)):
        for name, tensor in one.state_dict().tensors.items():
            assert torch.equal(other.state_dict().tensors[name], tensor), name


def test_a_checkpoint_without_a_critic_is_refused_in_one_line():
    tensors, state = Policy(tiny_model(), UpdateSettings()).state_dict()
    with pytest.raises(CheckpointError, match="does not fit the model") as caught:
        critic_with().load_state_dict(tensors, state)
    assert "\n" not in str(caught.value)
