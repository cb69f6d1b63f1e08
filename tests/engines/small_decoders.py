"""Small random models of the families that `Decoder` computes."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def small_decoder(kind: str, **fields: Any) -> Any:
    """Returns a model of this family in float32 with two layers. Biases are not 0, as transformers
    begins them."""
    sizes = {"num_hidden_layers": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}
    sizes |= {"tie_word_embeddings": False} if kind == "qwen2" else {}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**sizes | fields))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()
