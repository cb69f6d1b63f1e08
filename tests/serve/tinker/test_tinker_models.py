"""Gradients and steps of Tinker's losses against a reference in float64, and what is refused."""

import copy

import numpy as np
import pytest
import torch

from ajet.core.model.precision import to_float64
from ajet.core.record.run_folder import RunFolder
from ajet.core.update.settings import UpdateSettings
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker.losses import LOSSES, settings_of
from ajet.serve.tinker.messages import AdamParams, LoraConfig, parse
from ajet.serve.tinker.models import BaseModel, TrainedModel
from ajet.serve.tinker.store import StepRecord
from ajet.serve.tinker.wire import Datum, LossRequest
from tests.core.update.update_fixtures import tiny_model
from tests.serve.tinker.reference import logprobs_of, loss_of, only, sampled_data

CONFIGS = {
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
}
ADAM = AdamParams(learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-9, weight_decay=0.1)


def make_base(dtype=torch.float64, **changes):
    model = tiny_model(**changes).requires_grad_(False)
    if dtype == torch.float64:
        to_float64(model)
    # Small micro-batches: a request must be divided without a change of its gradient.
    settings = UpdateSettings(max_tokens_per_micro_batch=30)
    return BaseModel("tiny", model, settings, max_context=64)


def make_model(base, lora=None, name="model"):
    return TrainedModel(base, name, None if lora is None else base.lora_settings(lora, 7))


def forward_backward(model, data, loss="cross_entropy", config=None, forward_only=False):
    config = CONFIGS.get(loss, {}) if config is None else config
    request = LossRequest(data, loss, config)
    return model.forward_backward(lambda: request, forward_only=forward_only)


def gradients(model):
    return {n: p.grad.clone() for n, p in model.policy.trainable().items() if p.grad is not None}


def weights(model):
    return {n: p.detach().clone() for n, p in model.policy.trainable().items()}


def with_random_adapter(model):
    """An adapter's second factor is 0 at first, and the first one then has no gradient."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.policy.trainable().values():
            weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return model


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_of_each_loss_is_that_of_the_documentation(loss, is_lora):
    data = [only(datum, *LOSSES[loss].inputs) for datum in sampled_data()]
    model = make_model(make_base(), LoraConfig(rank=4, seed=1) if is_lora else None)
    with_random_adapter(model)
    # The same modules, through transformers and without micro-batches.
    trained, config = model.policy.trainable(), settings_of(loss, CONFIGS.get(loss, {}))
    expected, expected_logprobs = torch.zeros((), dtype=torch.float64), []
    for datum in data:
        logprobs = logprobs_of(model.policy.model, datum)
        expected_logprobs.append(logprobs.detach())
        expected = expected + loss_of(loss, logprobs, datum.inputs, config)
    wanted = torch.autograd.grad(expected, list(trained.values()))
    result = forward_backward(model, data, loss)
    assert result.loss == pytest.approx(float(expected.detach()), abs=1e-9)
    for computed, logprobs in zip(result.logprobs, expected_logprobs, strict=True):
        np.testing.assert_allclose(computed, logprobs, atol=1e-6)  # float32 on the wire
    for (name, computed), gradient in zip(gradients(model).items(), wanted, strict=True):
        torch.testing.assert_close(computed, gradient, atol=1e-9, rtol=1e-9, msg=name)


def test_several_targets_at_a_position_are_weighted_each():
    rng = np.random.default_rng(3)
    inputs = {
        "target_tokens": rng.integers(0, 64, (7, 3)),
        "weights": rng.random((7, 3)).astype(np.float32),
    }
    datum = Datum(rng.integers(0, 64, 7), inputs)
    model = make_model(make_base())
    expected = loss_of("cross_entropy", logprobs_of(model.policy.model, datum), inputs, {})
    result = forward_backward(model, [datum])
    assert result.logprobs[0].shape == (7, 3)
    assert result.loss == pytest.approx(float(expected.detach()), abs=1e-9)


def test_gradients_of_several_requests_add_up_until_a_step():
    base, data = make_base(), sampled_data()
    parts, whole = make_model(base), make_model(base)
    for datum in data:
        forward_backward(parts, [only(datum, "weights")])
    forward_backward(whole, [only(datum, "weights") for datum in data])
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, atol=1e-9, rtol=1e-9)
    whole.optim_step(ADAM)
    assert not gradients(whole)


def test_a_step_is_that_of_torch_with_the_requests_numbers():
    data = [only(datum, "weights") for datum in sampled_data()]
    model = make_model(make_base())
    twin = copy.deepcopy(model.policy.model)
    first, second = ADAM, AdamParams(learning_rate=0.003, beta1=0.7, eps=1e-6)
    adamw = torch.optim.AdamW(twin.parameters())
    for adam in (first, second):
        forward_backward(model, data)
        model.optim_step(adam)
        sum(loss_of("cross_entropy", logprobs_of(twin, d), d.inputs, {}) for d in data).backward()
        adamw.param_groups[0] |= dict(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        adamw.step()
        adamw.zero_grad()
    for name, weight in twin.named_parameters():
        torch.testing.assert_close(weights(model)[name], weight.detach(), atol=1e-9, rtol=0)


def test_a_gradient_is_clipped_to_the_requests_norm():
    data = [only(datum, "weights") for datum in sampled_data()]
    base = make_base()
    model, clipped = make_model(base), make_model(base)
    # With such an eps a step is nearly lr / eps times the gradient.
    plain = {"learning_rate": 1e9, "beta1": 0.0, "beta2": 0.0, "eps": 1e9}
    before = weights(model)
    for trained, limit in ((model, 0.0), (clipped, 0.5)):
        forward_backward(trained, data)
        norm = trained.optim_step(AdamParams(**plain, grad_clip_norm=limit))["grad_norm"]
    moves = [
        torch.cat([(weights(m)[n] - before[n]).flatten() for n in before]) for m in (model, clipped)
    ]
    torch.testing.assert_close(moves[1], moves[0] * 0.5 / norm, rtol=1e-5, atol=1e-8)


def test_a_forward_pass_leaves_no_gradient():
    model = make_model(make_base())
    forward_backward(model, [only(sampled_data()[0], "weights")], forward_only=True)
    assert not gradients(model)


def test_clients_with_adapters_do_not_change_a_bit_of_each_other():
    base = make_base(torch.float32)
    before = {n: p.clone() for n, p in base.model.named_parameters()}
    data = [only(datum, "weights") for datum in sampled_data()]
    alone = make_model(base, LoraConfig(rank=4, seed=7))
    for _ in range(3):
        forward_backward(alone, data)
        alone.optim_step(ADAM)
    first, second = (
        make_model(base, LoraConfig(rank=4, seed=7)),
        make_model(base, LoraConfig(rank=8, seed=9)),
    )
    whole = make_model(base)
    for step in range(3):
        forward_backward(second, data[step:])
        forward_backward(first, data)
        forward_backward(whole, data[:2])
        second.optim_step(ADAM)
        whole.optim_step(ADAM)
        first.optim_step(ADAM)
    assert all(torch.equal(weights(first)[n], w) for n, w in weights(alone).items())
    assert all(torch.equal(p, before[n]) for n, p in base.model.named_parameters())


@pytest.mark.parametrize("is_lora", [False, True])
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_checkpoint_continues_with_the_same_bits(tmp_path, is_lora, with_optimizer):
    base = make_base(torch.float32)
    data = [only(datum, "weights") for datum in sampled_data()]
    model = make_model(base, LoraConfig(rank=4, seed=7) if is_lora else None)
    forward_backward(model, data)
    model.optim_step(ADAM)
    model.save(tmp_path)
    loaded = make_model(base, LoraConfig(rank=4, seed=8) if is_lora else None)
    loaded.load(tmp_path, with_optimizer=with_optimizer)
    assert all(torch.equal(weights(loaded)[n], w) for n, w in weights(model).items())
    for trained in (model, loaded):
        forward_backward(trained, data)
        trained.optim_step(ADAM)
    same = all(torch.equal(weights(loaded)[n], w) for n, w in weights(model).items())
    assert same == with_optimizer


def test_parts_of_an_adapter_are_those_of_the_request():
    base = make_base(tie_word_embeddings=False)

    def parts(**wish):
        names = base.lora_settings(LoraConfig(rank=4, **wish), 1).targets
        return {name.split(".")[-1] for name in names}

    attention, mlp = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert parts() == attention | mlp | {"lm_head"}
    assert parts(train_unembed=False, train_mlp=False) == attention
    assert parts(train_unembed=False, train_attn=False) == mlp
    assert make_base().lora_settings(LoraConfig(rank=4), 1).targets  # without the tied output layer
    with pytest.raises(RequestError, match="no layer"):
        parts(train_mlp=False, train_attn=False, train_unembed=False)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, seed=1)])
def test_trained_weights_are_counted_before_there_are_any(lora):
    base = make_base(tie_word_embeddings=False)
    model = make_model(base, lora)
    assert base.num_trained(model.lora) == sum(w.numel() for w in weights(model).values())


GOOD = sampled_data()[0]
IDS = GOOD.tokens_N


@pytest.mark.parametrize(
    ("datum", "loss", "config", "message"),
    [
        (only(GOOD, "weights"), "stable_reinforce", {}, "not served.*importance_sampling"),
        (only(GOOD, "weights", "logprobs"), "cross_entropy", {}, "does not read logprobs"),
        (only(GOOD, "advantages"), "ppo", {}, "logprobs is missing"),
        (only(GOOD, "weights"), "cross_entropy", {"beta": 1.0}, "has no beta"),
        (only(GOOD, "logprobs", "advantages"), "dro", {}, "give beta"),
        (Datum(IDS, {}), "cross_entropy", {}, "target_tokens must be there"),
        (Datum(IDS, {"target_tokens": IDS[1:]}), "cross_entropy", {}, "shape"),
        (Datum(IDS, {"target_tokens": IDS + 64}), "cross_entropy", {}, "token ids"),
        (Datum(IDS - 64, {"target_tokens": IDS}), "cross_entropy", {}, "token ids"),
        (Datum(np.zeros(65, np.int64), {}), "cross_entropy", {}, "1 to 64"),
        (Datum(IDS[:0], {"target_tokens": IDS[:0]}), "cross_entropy", {}, "1 to 64"),
    ],
)
def test_what_a_loss_cannot_read_is_refused_and_no_step_is_made(datum, loss, config, message):
    model = make_model(make_base())
    before = weights(model)
    forward_backward(model, [only(GOOD, "weights")])
    with pytest.raises(RequestError, match=message):
        forward_backward(model, [datum], loss, config)
    with pytest.raises(RequestError, match="no step was made"):
        model.optim_step(ADAM)
    assert all(torch.equal(w, before[n]) for n, w in weights(model).items())
    forward_backward(model, [only(GOOD, "weights")])  # the next gradients are whole again
    model.optim_step(ADAM)


def test_gradients_of_requests_after_a_failure_go_with_the_refused_step():
    model, data = make_model(make_base()), [only(GOOD, "weights")]
    with pytest.raises(RequestError):
        forward_backward(model, data, "ppo")
    forward_backward(model, data)
    with pytest.raises(RequestError, match="no step was made"):
        model.optim_step(ADAM)
    assert not gradients(model)


def test_the_record_does_not_change_a_bit(tmp_path):
    base, data = make_base(torch.float32), sampled_data()
    recorded, plain = (make_model(base, LoraConfig(rank=4, seed=7)) for _ in range(2))
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    recorded.record = StepRecord(folder, lambda ids: "text")
    for _ in range(3):
        for model in (recorded, plain):
            for loss in ("cross_entropy", "ppo", "gspo"):
                forward_backward(model, [only(d, *LOSSES[loss].inputs) for d in data], loss)
            model.optim_step(ADAM)
    recorded.record.close()
    assert all(torch.equal(weights(recorded)[n], w) for n, w in weights(plain).items())


def test_numbers_that_are_not_finite_change_nothing():
    model = make_model(make_base())
    before = weights(model)
    infinite = {"target_tokens": GOOD.targets, "weights": np.full(len(IDS), np.inf, np.float32)}
    with pytest.raises(RequestError, match="not finite"):
        forward_backward(model, [Datum(IDS, infinite)], forward_only=True)
    # A ratio that overflows has no finite gradient.
    far = GOOD.inputs | {"logprobs": np.full(len(IDS), -1e30, np.float32)}
    datum = only(Datum(IDS, far), "logprobs", "advantages")
    forward_backward(model, [datum], "importance_sampling")
    with pytest.raises(RequestError, match="norm is"):
        model.optim_step(ADAM)
    assert all(torch.equal(w, before[n]) for n, w in weights(model).items())


@pytest.mark.parametrize("numbers", [{"beta1": 1.0}, {"eps": 0.0}, {"learning_rate": float("nan")}])
def test_numbers_that_adam_cannot_use_are_refused(numbers):
    with pytest.raises(RequestError, match=next(iter(numbers))):
        parse(AdamParams, numbers)
