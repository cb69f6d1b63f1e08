"""Writes a GGUF file with a model of a few thousand weights."""

from pathlib import Path

import pytest
import torch


def write_gguf(path: Path, *, layers: int = 1, seed: int = 0) -> Path:
    """Writes a Llama with random float32 weights and a byte-level tokenizer; skips the test where
    the package gguf is missing."""
    gguf = pytest.importorskip("gguf")
    vocab = ["<|end|>", "a", "b", "ab", *"cdefghijklmn"]
    d, ff, heads = 32, 32, 2
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(d)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocab)
    writer.add_token_types([3] + [1] * (len(vocab) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "token_embd": (len(vocab), d),
        "output": (len(vocab), d),
        "output_norm": (d,),
    }
    for layer in range(layers):
        of_layer = {
            "attn_norm": (d,),
            "ffn_norm": (d,),
            **{f"attn_{name}": (d, d) for name in ("q", "k", "v", "output")},
            "ffn_gate": (ff, d),
            "ffn_up": (ff, d),
            "ffn_down": (d, ff),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
