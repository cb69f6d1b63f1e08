"""The flat forward gives the numbers of transformers' own forward, in float32."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from ajet.core.model.decoder import Decoder

SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "qwen2, tied head": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2, own head, rope theta 1e6": Qwen2Config(
        **SMALL,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "qwen3, head_dim apart": Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True),
    "llama, biases": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama 3 rope": LlamaConfig(**SMALL, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True),
    "llama, no grouping": LlamaConfig(**{**SMALL, "num_key_value_heads": 6}),
}


def _causal(q, k, v):
    """Plain causal attention over one sequence, heads first."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


def _flat_logits(model, ids):
    decoder = Decoder(model)
    hidden = decoder(ids, torch.arange(len(ids)), lambda _layer, q, k, v: _causal(q, k, v))
    return decoder.logits(hidden)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_equal_transformers(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).float().eval()
    ids = torch.randint(96, (40,))
    own, theirs = _flat_logits(model, ids), model(ids[None]).logits[0]
    assert theirs.std() > 0.5  # weights large enough for a difference to show
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)
    grads = [
        torch.autograd.grad(x.log_softmax(-1)[:, 3].mean(), list(model.parameters()))
        for x in (own, theirs)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8),
        GPT2Config(vocab_size=96, n_embd=48, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0),
        LlamaConfig(
            **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
    ],
    ids=["sliding window", "another architecture", "rope that grows"],
)
def test_models_outside_the_family_are_refused(config):
    model = AutoModelForCausalLM.from_config(config)
    assert not Decoder.supports(model)
    with pytest.raises(ValueError, match="no flat forward"):
        Decoder(model)


def test_flat_forward_works_through_a_peft_wrapper():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["qwen2, tied head"]).float()
    wrapped = get_peft_model(
        model, LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "down_proj"])
    )
    wrapped.eval()
    ids = torch.randint(96, (20,))
    torch.testing.assert_close(
        _flat_logits(wrapped, ids), wrapped(ids[None]).logits[0], rtol=1e-4, atol=1e-5
    )
