"""A Qwen2 with random weights and a vocabulary for the byte tokenizer, and an engine over it."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from ajet.engines.in_process import InProcessEngine


def tiny_model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=288,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def tiny_engine(tokenizer, max_num_seqs):
    stops = (tokenizer.eos_token_id,)
    return InProcessEngine(tiny_model(), stop_token_ids=stops, max_num_seqs=max_num_seqs)
