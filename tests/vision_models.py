"""Tiny multimodal checkpoints with random weights, in the shapes of families that see images."""

import json
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.core.model.families import AXES
from tests.fakes import chat_tokenizer

TEMPLATE = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
{% if p.type == 'image' %}IMAGE{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TEXT = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 257,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "initializer_range": 0.2,
}
QWEN_VISION = VISION | {"depth": 2, "out_hidden_size": 32, "spatial_merge_size": 2}
QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "size": {"shortest_edge": 64, "longest_edge": 1024},
}
QWEN_TOKENS = {"image_token": "<|image_pad|>", "block": "<|vision_start|>{}<|vision_end|>"}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "text": TEXT | {"rope_parameters": AXES},
        "vision": QWEN_VISION | {"window_size": 16, "fullatt_block_indexes": [1]},
        "pixels": QWEN_PIXELS,
        **QWEN_TOKENS,
    },
    "qwen3_vl": {
        "text": TEXT | {"rope_parameters": AXES | {"mrope_interleaved": True}},
        "vision": QWEN_VISION | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        "pixels": QWEN_PIXELS,
        **QWEN_TOKENS,
    },
    "glm4v": {
        "text": TEXT | {"rope_parameters": AXES | {"partial_rotary_factor": 1.0}},
        "vision": QWEN_VISION | {"image_size": 16, "out_hidden_size": 32},
        "pixels": QWEN_PIXELS | {"image_processor_type": "Glm4vImageProcessor"},
        "image_token": "<|image|>",
        "block": "<|begin_of_image|>{}<|end_of_image|>",
    },
    "smolvlm": {
        "text": TEXT | {"model_type": "llama"},
        "vision": VISION | {"num_hidden_layers": 2, "image_size": 16},
        "whole": {"scale_factor": 2},
        "pixels": {
            "image_processor_type": "SmolVLMImageProcessor",
            "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 16},
            "do_image_splitting": True,
        },
        "processor": {"image_seq_len": 4},
        "image_token": "<image>",
        "block": "{}",
    },
    "llava": {
        "text": TEXT | {"model_type": "qwen2"},
        "vision": VISION
        | {"num_hidden_layers": 2, "image_size": 16, "model_type": "siglip_vision_model"},
        "whole": {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        "pixels": {
            "image_processor_type": "SiglipImageProcessor",
            "size": {"height": 16, "width": 16},
        },
        "processor": {"patch_size": 4, "vision_feature_select_strategy": "full"},
        "image_token": "<image>",
        "block": "{}",
    },
    "gemma3": {
        "text": TEXT
        | {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "vision": VISION
        | {"num_hidden_layers": 2, "image_size": 16, "model_type": "siglip_vision_model"},
        "whole": {"mm_tokens_per_image": 4},
        "pixels": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 16, "width": 16},
        },
        "processor": {"image_seq_length": 4},
        "image_token": "<image_soft_token>",
        "block": "<start_of_image>",
    },
}
MORE_TOKENS = (
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|image|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<image>", "<fake_token_around_image>"),
    *("<global-img>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
)


def save_vision_model(name, folder, dtype=torch.float32, **changes):
    """Saves a checkpoint as transformers does; returns the whole model. `changes` of "text",
    "vision" and "pixels" are added to the family's."""
    family = FAMILIES[name]
    family = family | {part: family[part] | changed for part, changed in changes.items()}
    tokenizer = chat_tokenizer("qwen2_5")
    tokenizer.add_special_tokens({"additional_special_tokens": list(MORE_TOKENS)})
    token = family["image_token"]
    block = family["block"].format(token)
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", block)
    if name == "gemma3":
        names = {"image_token": token, "boi_token": block, "eoi_token": "<end_of_image>"}
        tokenizer._set_model_specific_special_tokens(names)
    image_token_id = tokenizer.convert_tokens_to_ids(token)
    config = AutoConfig.for_model(
        name,
        text_config=family["text"],
        vision_config=family["vision"],
        image_token_id=image_token_id,
        tie_word_embeddings=False,
        **family.get("whole", {}),
    )
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config).to(dtype).eval()
    for weight in whole.parameters():
        if weight.ndim == 2 and not weight.any():  # Gemma 3's projection: no image would differ
            torch.nn.init.normal_(weight, std=0.2)
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(family["pixels"]))
    if "processor" in family:
        (folder / "processor_config.json").write_text(json.dumps(family["processor"]))
    return whole


def picture(seed, height=16, width=24):
    """An array of random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
