"""Activations that are computed again in the backward pass: less is kept, and no number changes."""

import pytest
import torch
from update_fixtures import forked_groups, tiny_model

from ajet.core.model.attention.trie import trie_of_rows
from ajet.core.update.critic import Critic
from ajet.core.update.layouts import make_layout, tree
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.policy import Policy
from ajet.core.update.settings import CriticSettings, LoraSettings, UpdateSettings

WIDE = dict(hidden_size=256, intermediate_size=256)  # as wide_layer.py computes it
LORA = LoraSettings(rank=4, alpha=8, targets=("q_proj", "down_proj"))


def weights_after_updates(recompute, model, **settings):
    policy = Policy(
        tiny_model(**model),
        UpdateSettings(
            lr=1e-2,
            kl_loss_coef=0.1,
            max_tokens_per_micro_batch=100,
            activation_checkpointing=recompute,
            **settings,
        ),
    )
    for seed in range(2):
        policy.update(forked_groups(seed, num_groups=2, group_size=3))
    return {name: weight.detach() for name, weight in policy.model.named_parameters()}


def num_layer_passes(recompute, layout="tree", **model_changes):
    """The passes through each layer's output projection, of one forward and backward pass."""
    model = tiny_model(**model_changes)
    model.get_input_embeddings().weight.requires_grad_(False)
    passes = [0] * len(model.model.layers)

    def count(index):
        passes[index] += 1

    rows = rows_of(forked_groups(0, num_groups=1, group_size=2))
    output = make_layout(model, layout, recompute=recompute)
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.o_proj.register_forward_hook(lambda *_, index=index: count(index))
    output.forward(rows).features_UD.sum().backward()
    return passes


@pytest.mark.parametrize("layout", ["tree", "packed", "padded"])
@pytest.mark.parametrize(
    "model, settings", [({}, {}), (WIDE, {}), ({}, {"lora": LORA})], ids=["narrow", "wide", "lora"]
)
def test_weights_are_the_same_bits_with_recomputation(layout, model, settings):
    kept = weights_after_updates(False, model, batch_layout=layout, **settings)
    recomputed = weights_after_updates(True, model, batch_layout=layout, **settings)
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


def test_a_critic_is_the_same_with_recomputation():
    samples = forked_groups(0, num_groups=2, group_size=3)
    returns = [sample.advantages for sample in samples]

    def weights(recompute):
        critic = Critic(tiny_model(), CriticSettings(lr=1e-2, activation_checkpointing=recompute))
        for _ in range(2):
            critic.update(samples, returns, critic.values(samples))
        return dict(critic.model.named_parameters())

    kept, recomputed = weights(False), weights(True)
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


@pytest.mark.parametrize("layout", ["tree", "packed", "padded"])
def test_each_layer_is_computed_again_in_the_backward_pass(layout):
    assert num_layer_passes(False, layout) == [1, 1]
    assert num_layer_passes(True, layout) == [2, 2]


def test_auto_recomputes_a_model_of_33_million_weights_and_no_smaller_one():
    assert num_layer_passes("auto") == [1, 1]
    assert num_layer_passes("auto", vocab_size=1 << 20) == [2, 2]


@pytest.mark.parametrize(("missing", "passes"), [(0, 1), (1, 2)])
def test_on_a_gpu_auto_keeps_what_takes_half_of_the_free_memory(missing, passes, monkeypatch):
    model, rows = tiny_model(), rows_of(forked_groups(0, num_groups=1, group_size=2))
    num_tokens = len(trie_of_rows([row.input_ids for row in rows]))
    # 2 layers, and of each token there 4 x 32 + 2 x 32 + 2 x 16 + 4 x 48 values of 4 bytes.
    num_bytes = num_tokens * 2 * 416 * 4
    monkeypatch.setattr(tree, "free_bytes", lambda device: 2 * num_bytes - missing)
    counted, layers = [], list(model.model.layers)
    for layer in layers:
        layer.self_attn.o_proj.register_forward_hook(lambda *_: counted.append(1))
    layout = tree.TreeLayout(model, torch.device("cpu"), None, "auto")
    layout.forward(rows).features_UD.sum().backward()
    assert len(counted) == 2 * passes


def test_on_a_gpu_auto_always_recomputes_with_adapters_which_keep_more(monkeypatch):
    monkeypatch.setattr(tree, "free_bytes", lambda device: 1 << 60)
    rows = rows_of(forked_groups(0, num_groups=1, group_size=2))
    for lora, recomputes in ((None, False), (LORA, True)):
        model = Policy(tiny_model(), UpdateSettings(lora=lora)).model
        layout = tree.TreeLayout(model, torch.device("cpu"), None, "auto")
        layout.forward(rows)
        assert layout.decoder.recompute is recomputes
        with torch.no_grad():  # nothing is kept
            layout.forward(rows)
        assert layout.decoder.recompute is False
