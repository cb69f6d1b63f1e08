import numpy as np
import pytest
import torch
from update_fixtures import forked_groups, tiny_model

from ajet.core.errors import CheckpointError, ConfigError
from ajet.core.update.lora import tokens_not_learnable, with_lora
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings

LORA = LoraSettings(rank=4, alpha=8, targets=("q_proj", "v_proj", "down_proj"))


def policy_with(layout, **settings):
    return Policy(tiny_model(), UpdateSettings(lr=1e-2, lora=LORA, batch_layout=layout, **settings))


def test_only_adapters_learn_and_only_they_are_saved():
    policy = policy_with("tree")
    names = [n for n in policy.state_dict().tensors if n.startswith("model.")]
    assert names and all("lora_" in n for n in names)
    base = {n: p.detach().clone() for n, p in policy.model.named_parameters() if "lora_" not in n}
    policy.update(forked_groups())
    for name, weight in policy.model.named_parameters():
        assert "lora_" in name or torch.equal(weight, base[name])


def test_the_tree_trains_adapters_as_padded_does():
    gradients = []
    for layout in ("padded", "tree"):
        policy = policy_with(layout, kl_loss_coef=0.1, kl_loss_type="k1")
        policy.update(forked_groups())
        policy.update(forked_groups(1))
        tensors = policy.state_dict().tensors
        gradients.append({n: t for n, t in tensors.items() if n.endswith(".exp_avg")})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_the_reference_is_the_model_without_adapters():
    policy = policy_with("tree", kl_loss_coef=0.1)
    assert policy.update(forked_groups())["kl"] == pytest.approx(0.0, abs=1e-6)
    assert policy.update(forked_groups())["kl"] > 1e-5


def test_the_model_given_samples_with_the_adapters():
    model = tiny_model()
    policy = Policy(model, UpdateSettings(lr=1e-2, lora=LORA))
    ids = torch.tensor([[1, 2, 3]])
    before = model(ids).logits
    policy.update(forked_groups())
    assert not torch.allclose(model(ids).logits, before)


def test_a_token_that_no_adapter_could_learn_is_found():
    """<tool_call> has the weights of a token that pretraining never saw, <end> its own."""

    class Tokenizer:
        chat_template = "... <tool_call> ... <end>"

        def get_added_vocab(self):
            return {"<tool_call>": 7, "<end>": 8, "<unused>": 9, "<beyond>": 64}

    model = tiny_model()
    with torch.no_grad():
        for token_id in (9, 50):
            model.lm_head.weight[token_id] = 1.001 * model.lm_head.weight[7]
    assert tokens_not_learnable(model, Tokenizer()) == ["<tool_call>"]


def test_adapters_start_the_same_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = policy_with("tree")
    assert torch.equal(torch.rand(3), expected)
    second = policy_with("tree")
    for name, tensor in first.state_dict().tensors.items():
        assert torch.equal(tensor, second.state_dict().tensors[name])


def test_a_target_that_does_not_exist_is_one_line():
    lora = LoraSettings(targets=("no_such_proj",))
    with pytest.raises(ConfigError, match="no_such_proj") as caught:
        Policy(tiny_model(), UpdateSettings(lora=lora))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layer", ["lm_head", "embed_tokens"])
def test_an_adapter_of_an_output_layer_that_is_the_embedding_is_refused(layer):
    lora = LoraSettings(rank=2, targets=("q_proj", layer))
    with pytest.raises(ConfigError, match="output layer's weights are the embedding's"):
        with_lora(tiny_model(), lora)
    with_lora(tiny_model(tie_word_embeddings=False), lora)  # a weight of its own in an engine


@pytest.mark.parametrize("layout", ["padded", "tree"])
def test_scores_are_with_the_adapters_and_reference_scores_without(layout):
    samples = forked_groups()
    policy = policy_with(layout, keep_reference=True)
    start = np.concatenate(policy.score(samples))
    policy.update(samples)
    reference = np.concatenate(policy.reference_scores(samples))
    np.testing.assert_allclose(reference, start, atol=1e-5)
    assert np.abs(np.concatenate(policy.score(samples)) - start).max() > 1e-2


def test_a_checkpoint_with_adapters_on_more_layers_is_refused():
    few, more = (
        Policy(tiny_model(), UpdateSettings(lora=LoraSettings(rank=2, targets=targets)))
        for targets in (("q_proj",), ("q_proj", "v_proj"))
    )
    with pytest.raises(CheckpointError, match="use the model and lora settings") as caught:
        few.load_state_dict(*more.state_dict())
    assert "v_proj" in str(caught.value) and "\n" not in str(caught.value)
