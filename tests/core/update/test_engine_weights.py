import pytest
import torch
from update_fixtures import forked_groups, tiny_model

from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from ajet.core.weight_sync.load import BaseWeights, LiveSource, load_weights
from tests.core.model.families import family_model

LORA = LoraSettings(rank=4, alpha=8, targets=("q_proj", "down_proj"))
NAMES = [name for name, _ in tiny_model().named_parameters()]


def test_weights_are_the_models_own_by_name_and_in_order():
    policy = Policy(tiny_model(), UpdateSettings(lr=1e-2))
    policy.update(forked_groups())
    published = list(policy.weights())
    assert [name for name, _ in published] == NAMES
    for (name, found), weight in zip(published, policy.model.parameters(), strict=True):
        assert torch.equal(found, weight) and not found.requires_grad, name


def test_adapters_are_added_in_so_that_a_model_without_them_gives_the_same():
    policy = Policy(tiny_model(), UpdateSettings(lr=1e-2, lora=LORA))
    policy.update(forked_groups())
    published = dict(policy.weights())
    assert list(published) == NAMES
    engine = tiny_model(seed=9)
    engine.load_state_dict(published, strict=False)  # the tied output layer comes by itself
    ids = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(engine(ids).logits, policy.model(ids).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(engine(ids).logits, tiny_model()(ids).logits, atol=1e-3)


@pytest.mark.parametrize("lora", [None, LORA])
def test_what_a_model_keeps_beside_its_weights_comes_with_them(lora):
    """Gemma 4 multiplies what each layer adds by a number that is no weight."""
    model, engine = family_model("gemma4_text"), family_model("gemma4_text")
    with torch.no_grad():
        for number, layer in enumerate(model.model.layers):
            layer.layer_scalar.fill_(1.0 + number)
    policy = Policy(model, UpdateSettings(lr=1e-2, lora=lora))
    policy.update(forked_groups(num_groups=1))
    load_weights(engine, LiveSource(1, policy.weights))
    assert [float(layer.layer_scalar) for layer in engine.model.layers] == [1.0, 2.0, 3.0, 4.0]
    ids = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(engine(ids).logits, policy.model(ids).logits, rtol=1e-4, atol=1e-4)
    assert policy.weight_shapes() == {n: tuple(w.shape) for n, w in policy.weights()}


def test_memory_of_the_update_is_given_back_to_the_gpu_with_the_last_weight(monkeypatch):
    given_back = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    policy = Policy(tiny_model(), UpdateSettings())
    list(policy.weights())
    assert given_back == []  # on a CPU there is nothing to give
    policy.device = torch.device("cuda")
    weights = policy.weights()
    for _ in NAMES:
        next(weights)
    assert given_back == []
    assert next(weights, None) is None and given_back == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_adapters_alone_give_an_engine_the_bits_of_all_weights_version_by_version(dtype):
    policy = Policy(tiny_model().to(dtype), UpdateSettings(lr=1e-2, lora=LORA))
    adapters = policy.describe_adapters()
    assert adapters.scalings.keys() == {
        f"model.layers.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in ("self_attn.q_proj", "mlp.down_proj")
    }
    engine, base = tiny_model().to(dtype), BaseWeights()
    for version in range(3):
        source = LiveSource(version, policy.adapter_weights, adapters)
        report = load_weights(engine, source, base=base)
        # q_proj: 4 x 32 and 32 x 4; down_proj: 4 x 48 and 32 x 4; two layers
        numbers = 2 * (4 * 32 + 32 * 4 + 4 * 48 + 32 * 4)
        assert report.num_bytes == numbers * (8 if dtype == torch.float64 else 4)
        for name, expected in policy.weights():
            assert torch.equal(engine.get_parameter(name), expected), name
        policy.update(forked_groups(version))


def test_the_shapes_are_known_before_anything_is_gathered():
    policy = Policy(tiny_model(), UpdateSettings(lora=LORA))
    assert policy.weight_shapes() == {n: tuple(t.shape) for n, t in policy.weights()}


def test_the_base_is_published_without_its_adapters():
    policy = Policy(tiny_model(), UpdateSettings(lr=1e-2, lora=LORA))
    policy.update(forked_groups())
    expected = dict(tiny_model().named_parameters())
    found = dict(policy.weights(is_base=True))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_adapters_of_other_layers_than_linear_ones_do_not_travel_alone():
    lora = LoraSettings(rank=2, targets=("q_proj", "embed_tokens"))
    policy = Policy(tiny_model(tie_word_embeddings=False), UpdateSettings(lora=lora))
    assert policy.describe_adapters() == "some adapters are not on plain linear layers"
