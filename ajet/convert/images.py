"""Converts what all systems need for a model that sees images: a vision tower is loaded, and
trained unless the source freezes it.
"""

import re
from typing import Any

from ajet.convert.draft import Draft

ENABLED, MAX_IMAGES = "ajet.model.images.enabled", "ajet.model.images.max_images"
TRAIN_TOWER = "ajet.model.images.train_tower"
_NAME = re.compile(r"vlm?(?![a-z])|\dv(?![a-z])|vision|llava|pixtral|minicpm-[vo]|omni", re.I)
"""What names of models that see images have: Qwen2.5-VL, InternVL3, SmolVLM, GLM-4.1V, …"""
_TOWER = {"visual", "vision", "vision_model", "vision_tower"}
"""What families call the module."""


def sees_images(draft: Draft, path: str) -> bool:
    """Returns whether the model named by the source's key `path` is of a family that sees images,
    as far as its name tells."""
    name = draft.read.unresolved.get(path) or draft.take(path)
    return _NAME.search(str(name)) is not None


def is_tower(modules: Any) -> bool:
    """Returns whether these names or patterns of modules (".*visual.*") are those of a vision tower
    and of nothing else."""
    text = " ".join(map(str, modules)) if isinstance(modules, list) else str(modules or "")
    words = set(re.findall(r"\w+", text)) - {"model"}
    return bool(words) and words <= _TOWER


def take_tower(draft: Draft, key: str, *, has_adapters: bool) -> None:
    """Converts a vision tower that the source trains, because its `key` does not freeze it."""
    if has_adapters:
        draft.refuse(key, "adapters are those of the language model; here the tower has none")
    else:
        draft.set(TRAIN_TOWER, True, key)
