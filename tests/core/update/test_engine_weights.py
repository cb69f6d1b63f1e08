import torch
from update_fixtures import forked_groups, tiny_model

from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings

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
