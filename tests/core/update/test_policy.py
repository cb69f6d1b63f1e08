import os
from pathlib import Path

import numpy as np
import pytest
import torch
from update_fixtures import forked_groups, sample, tiny_model

from ajet.core.errors import CheckpointError, ConfigError
from ajet.core.model.precision import to_float64
from ajet.core.update.mini_batches import split_by_group
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.warm_start import warm_run

ALL_TERMS = dict(kl_loss_coef=0.1, kl_loss_type="k1", entropy_coef=0.01, temperature=0.8)
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def gradient(samples, model=None, *, loss=None, **settings):
    """Of one update, read from AdamW's first moment, which is 0.1 * gradient after one step."""
    settings = UpdateSettings(lr=0.0, grad_clip=0.0, **settings)
    policy = Policy(model or tiny_model(), settings, loss=loss)
    metrics = policy.update(samples)
    tensors = policy.optimizer.tensors()
    return {n: 10 * t for n, t in tensors.items() if n.endswith(".exp_avg")}, metrics


def assert_same_gradient(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [60, 100_000])
@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_layouts_and_micro_batches_give_the_same_gradient(layout, budget, seed):
    samples = forked_groups(seed)
    expected, whole = gradient(samples, batch_layout="padded", **ALL_TERMS)
    found, metrics = gradient(
        samples, batch_layout=layout, max_tokens_per_micro_batch=budget, **ALL_TERMS
    )
    assert_same_gradient(found, expected)
    for key in ("loss", "pg_loss", "kl", "entropy", "logprob_diff_max", "grad_norm"):
        assert metrics[key] == pytest.approx(whole[key], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_a_model_in_float64_is_nowhere_computed_in_less(layout):
    settings = dict(entropy_coef=0.01, temperature=0.8)
    expected, _ = gradient(
        forked_groups(), to_float64(tiny_model()), batch_layout="padded", **settings
    )
    found, _ = gradient(forked_groups(), to_float64(tiny_model()), batch_layout=layout, **settings)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-12, msg=name)
    assert {grad.dtype for grad in found.values()} == {torch.float64}


def qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False}


@pytest.mark.parametrize("family", [qwen3, llama])
def test_the_tree_gives_the_padded_gradient_for_other_families(family):
    model_class, config_class, extra = family()

    def build():
        torch.manual_seed(0)
        shape = dict(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
        )  # fmt: skip
        return model_class(config_class(**shape, **extra)).eval()

    expected, _ = gradient(forked_groups(), build(), batch_layout="padded")
    found, _ = gradient(forked_groups(), build(), batch_layout="tree")
    assert_same_gradient(found, expected)


def test_the_tree_follows_padded_in_bfloat16_with_float32_masters():
    samples = forked_groups()
    found, expected = (
        gradient(samples, tiny_model().bfloat16(), batch_layout=layout)[0]
        for layout in ("tree", "padded")
    )
    for name, grad in expected.items():
        assert found[name].dtype == torch.float32
        cosine = torch.cosine_similarity(found[name].flatten(), grad.flatten(), dim=0)
        assert cosine > 0.99, name


def test_the_tree_computes_each_distinct_prefix_once():
    samples = [
        sample([1, 2, 3, 4, 5], "00111", episode="a"),
        sample([1, 2, 3, 6, 7], "00011", episode="b"),
    ]
    _, metrics = gradient(samples, batch_layout="tree")
    assert metrics["tree_tokens"] == 5  # 1 2 3 4 | 6: what is read, each once
    assert metrics["padded_tokens"] == 8
    assert metrics["trained_tokens"] == 5


@pytest.mark.parametrize("mode", MODES)
def test_splitting_an_episode_into_timelines_leaves_the_gradient_unchanged(mode):
    ids = [1, 2, 3, 4, 5, 6, 7]
    other = sample([1, 2, 9, 8], "0011", episode="b", advantage=-0.7)
    whole = [sample(ids, "0011011", logprobs=[-3, -4, -2, -5]), other]
    split = [
        sample(ids[:4], "0011", logprobs=[-3, -4]),
        other,
        sample(ids, "0000010", logprobs=[-2]),
        sample(ids, "0000001", logprobs=[-5]),
    ]
    expected, _ = gradient(whole, loss_agg_mode=mode)
    found, _ = gradient(split, loss_agg_mode=mode)
    assert_same_gradient(found, expected)


def test_samples_without_signal_are_not_computed_and_still_count_in_the_denominator():
    live = sample([1, 2, 3], "001", episode="a", group="a")
    silent = sample([1, 2, 4, 5, 6], "00111", episode="b", group="b", advantage=0.0)
    alone, _ = gradient([live])
    both, metrics = gradient([live, silent])
    assert_same_gradient(both, {n: g / 4 for n, g in alone.items()})
    assert (metrics["skipped_samples"], metrics["groups_without_signal"]) == (1, 1)
    assert metrics["trained_tokens"] == 4
    computed, _ = gradient([live, silent], entropy_coef=1e-12)  # a term that makes it computed
    assert_same_gradient(both, computed)


def test_the_gradient_matches_a_loss_written_out_by_hand():
    model = tiny_model()
    logits = model(torch.tensor([[1, 2, 3, 4]])).logits[0]
    logprobs = (logits / 0.8).log_softmax(-1)[[1, 2], [3, 4]]
    old = (logprobs.detach() - torch.tensor([0.05, -0.1])).numpy()
    ratio = (logprobs - torch.from_numpy(old)).exp()
    loss = -(1.5 * ratio).sum() / 2  # within the clip
    expected = torch.autograd.grad(loss, list(model.parameters()))
    found, metrics = gradient(
        [sample([1, 2, 3, 4], "0011", advantage=1.5, logprobs=old)], temperature=0.8
    )
    for grad, (name, _) in zip(expected, tiny_model().named_parameters(), strict=True):
        torch.testing.assert_close(found[f"{name}.exp_avg"], grad, rtol=1e-5, atol=5e-6)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["logprob_diff_max"] == pytest.approx(0.1, abs=1e-5)
    assert metrics["logprob_diff_mean"] == pytest.approx(0.075, abs=1e-5)


def test_an_update_makes_rewarded_tokens_likelier():
    good, bad = [1, 2, 3, 4], [1, 2, 5, 6]
    samples = [sample(good, "0011", advantage=1.0), sample(bad, "0011", advantage=-1.0)]
    model = tiny_model()

    def logprob(ids):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        return logits.log_softmax(-1)[[1, 2], ids[2:]].sum().item()

    before = logprob(good), logprob(bad)
    Policy(model, UpdateSettings(lr=1e-3, clip_high=9, clip_low=1)).update(samples)
    assert logprob(good) > before[0] and logprob(bad) < before[1]


def test_mini_batches_are_whole_groups_in_order():
    samples = [sample([1, 2], "01", episode=e, group=e[0]) for e in ("a0", "b0", "a1", "c0", "b1")]
    names = [[samples[i].episode_id for i in part] for part in split_by_group(samples, 2)]
    assert names == [["a0", "a1", "b0", "b1"], ["c0"]]
    assert len(split_by_group(samples, 7)) == 3


def test_each_mini_batch_is_one_optimizer_step_and_progress_reaches_one():
    seen = []
    policy = Policy(tiny_model(), UpdateSettings(lr=1e-3, mini_batch_num=3, warmup_steps=2))
    metrics = policy.update(forked_groups(), on_progress=seen.append)
    assert metrics["optimizer_steps"] == 3 and policy.optimizer.num_steps == 3
    assert seen == sorted(seen) and seen[-1] == 1.0


def test_progress_counts_micro_batches_and_the_optimizers_step():
    seen = []
    pair = [sample([1, 2, 3, 4], "0011", episode=e, advantage=a) for e, a in (("a", 1), ("b", -1))]
    settings = UpdateSettings(batch_layout="padded", max_tokens_per_micro_batch=3)
    Policy(tiny_model(), settings).update(pair, on_progress=seen.append)
    assert seen == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]


def test_no_trained_token_means_no_step():
    policy = Policy(tiny_model(), UpdateSettings(lr=0.1))
    metrics = policy.update([sample([1, 2, 3], "000")])
    assert (metrics["optimizer_steps"], metrics["empty_mini_batches"]) == (0, 1)
    assert policy.update([])["optimizer_steps"] == 0


def test_equal_rewards_leave_fresh_weights_as_they_are():
    model = tiny_model()
    policy = Policy(model, UpdateSettings(lr=0.1))
    metrics = policy.update([sample([1, 2, 3], "011", advantage=0.0)])
    assert metrics["groups_without_signal"] == 1
    for found, fresh in zip(model.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(found, fresh)


def test_a_gradient_of_nan_is_skipped_and_reported():
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    weights = [p.detach().clone() for p in model.parameters()]
    metrics = Policy(model, UpdateSettings(lr=0.1)).update(forked_groups())
    assert metrics["nonfinite_steps"] == 1 and metrics["optimizer_steps"] == 0
    for found, before in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(found, before, rtol=0, atol=0, equal_nan=True)


def test_a_padding_token_in_text_is_trained():
    # `s` ends in the pad id 0, whose embedding is read only as an input
    model = tiny_model(pad_token_id=0, tie_word_embeddings=False)
    found, _ = gradient([sample([1, 0, 3], "001")], model)
    assert found["model.embed_tokens.weight.exp_avg"][0].abs().sum() > 0


def test_the_kl_term_pulls_towards_the_initial_weights():
    samples = forked_groups()
    policy = Policy(tiny_model(), UpdateSettings(lr=0.02, kl_loss_coef=0.1))
    assert policy.update(samples)["kl"] == pytest.approx(0.0, abs=1e-6)
    assert policy.update(samples)["kl"] > 1e-3
    for weight in policy.reference.frozen_copy.model.parameters():
        assert not weight.requires_grad


def test_a_model_without_flat_forward_trains_padded():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    )
    policy = Policy(model, UpdateSettings(lr=1e-3))
    assert policy.layout.name == "padded"
    assert policy.update(forked_groups())["optimizer_steps"] == 1
    with pytest.raises(ConfigError, match="batch_layout=tree"):
        Policy(model, UpdateSettings(batch_layout="tree"))


def weights_after_two_steps():
    torch.set_num_threads(1)  # another number of threads adds in another order
    policy = Policy(tiny_model(), UpdateSettings(lr=1e-2, mini_batch_num=2, kl_loss_coef=0.1))
    for seed in (0, 1):
        policy.update(forked_groups(seed))
    return policy


def digest(policy):
    import hashlib

    joined = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().tensors.items()):
        joined.update(name.encode() + np.ascontiguousarray(tensor.numpy()).tobytes())
    return joined.hexdigest()


def test_two_processes_give_bit_identical_weights():
    here = Path(__file__).parent
    code = "import test_policy as t; print(t.digest(t.weights_after_two_steps()))"
    run = warm_run(["-c", code], cwd=here, env=os.environ)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == digest(weights_after_two_steps())


def test_a_loaded_policy_goes_on_bit_for_bit():
    settings = UpdateSettings(lr=1e-2, warmup_steps=3, mini_batch_num=2)
    policy = Policy(tiny_model(), settings)
    policy.update(forked_groups(0))
    saved = {n: t.clone() for n, t in policy.state_dict().tensors.items()}
    counters = dict(policy.state_dict().state)
    policy.update(forked_groups(1))

    resumed = Policy(tiny_model(seed=9), settings)
    resumed.load_state_dict(saved, counters)
    resumed.update(forked_groups(1))
    assert digest(resumed) == digest(policy)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda tensor: None, "missing"),
        (lambda tensor: tensor[None], "of shape"),
        (lambda tensor: tensor.int(), r"of type torch\.int32"),
    ],
)
@pytest.mark.parametrize("name", ["model.model.norm.weight", "optimizer.model.norm.weight.exp_avg"])
def test_a_tensor_that_is_not_as_it_was_saved_is_refused_in_one_line(name, change, found):
    policy = Policy(tiny_model(), UpdateSettings())
    policy.update(forked_groups(0))
    tensors, state = policy.state_dict()
    changed = change(tensors.pop(name))
    tensors |= {} if changed is None else {name: changed}
    with pytest.raises(CheckpointError, match=rf"norm\.weight.* is {found}"):
        Policy(tiny_model(), UpdateSettings()).load_state_dict(tensors, state)


def test_a_state_of_another_model_is_refused_in_one_line():
    tensors, state = Policy(tiny_model(), UpdateSettings()).state_dict()
    other = Policy(tiny_model(hidden_size=16, num_attention_heads=2), UpdateSettings())
    with pytest.raises(CheckpointError, match="does not fit the model"):
        other.load_state_dict(tensors, state)


def test_a_state_of_a_model_with_more_layers_is_refused_and_nothing_of_it_is_taken():
    policy = Policy(tiny_model(num_hidden_layers=1), UpdateSettings())
    before = digest(policy)
    other = Policy(tiny_model(seed=1, num_hidden_layers=2), UpdateSettings())
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\..* is not one of its weights"):
        policy.load_state_dict(*other.state_dict())
    assert digest(policy) == before
