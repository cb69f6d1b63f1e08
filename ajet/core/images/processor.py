"""What a model's processor makes of an image: text for the prompt (a placeholder becomes as many
tokens as there are features, with marks between tiles), and inputs of its vision tower.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.core.errors import UnsupportedModel
from ajet.core.images.image_ids import (
    image_starts,
    key_text,
    keys_in_order,
    with_placeholders,
)
from ajet.core.images.store import ImageStore

KEPT_INPUTS = 16
"""The images whose pixels are kept until the vision tower takes them."""
NOT_OF_THE_TOWER = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


@dataclass(frozen=True, slots=True)
class Expansion:
    """Holds what an image's placeholder becomes in the prompt, its ids where it stands alone, and
    the grid of its features (None: they have no rows and columns)."""

    text: str
    ids: tuple[int, ...]
    num_tokens: int
    grid: tuple[int, int] | None


def load_processor(name_or_path: str, config: Any, **options: Any) -> Any:
    """Loads transformers' processor of a model, for text and images alone: processors of videos
    need torchvision."""
    from transformers import PROCESSOR_MAPPING

    family: Any = PROCESSOR_MAPPING[type(config)]

    class ImagesOnly(family):
        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

        @classmethod
        def from_args_and_dict(cls, args: list[Any], *rest: Any, **options: Any) -> Any:
            takes_video = "video_processor" in inspect.signature(family).parameters
            return super().from_args_and_dict([*args, None][: 2 + takes_video], *rest, **options)

    ImagesOnly.__name__ = family.__name__  # files of the processor name it
    return ImagesOnly.from_pretrained(name_or_path, **options)


class ImageProcessor:
    """Runs the processor once for each image."""

    def __init__(self, processor: Any, image_token_id: int, store: ImageStore) -> None:
        """`image_token_id` is the model's placeholder for one feature of an image."""
        self.store = store
        self.image_token_id = image_token_id
        self.placeholder: str = processor.image_token
        """What the chat template writes for an image."""
        self._processor = processor
        self._expansions: dict[int, Expansion] = {}
        self._inputs: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def expansion(self, key: int) -> Expansion:
        """Returns what the image's placeholder becomes."""
        if key not in self._expansions:
            self._process(key)
        return self._expansions[key]

    def inputs(self, key: int) -> dict[str, Any]:
        """Returns the image as the vision tower takes it. These are many bytes and are not kept:
        asked again, they are made again."""
        if key not in self._inputs:
            self._process(key)
        return self._inputs.pop(key)

    def unexpanded(self, prompt_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns a prompt with one placeholder for each image, as inference servers take it, and
        the images' keys. Raises `ModelError` where a server could not find the images again."""
        plain = with_placeholders(prompt_ids, self.image_token_id)
        mark = self._processor.tokenizer.convert_tokens_to_ids(self.placeholder)
        ids: list[int] = []
        keys = keys_in_order(prompt_ids)
        done = 0
        for key, first in zip(keys, image_starts(prompt_ids), strict=True):
            written = self.expansion(key).ids
            # Text before the first feature belongs to it, too: names of tiles, a mark of its start.
            start = first - written.index(self.image_token_id)
            stop = start + len(written)
            if start < done or tuple(plain[start:stop]) != written:
                raise UnsupportedModel(
                    f"image {key_text(key)}: the text around it has merged with its own marks, so "
                    "an inference server would not find it; set ajet.rollout.name=in_process"
                )
            ids += [*plain[done:start], mark]
            done = stop
        ids += plain[done:]
        if ids.count(mark) > len(keys):
            raise UnsupportedModel(
                f"a prompt has {self.placeholder} as text, which an inference server would take "
                "for an image; set ajet.rollout.name=in_process"
            )
        return ids, keys

    def save(self, folder: Path) -> None:
        """Writes how images become pixels, with the values that a checkpoint's file may leave out:
        vLLM normalizes by what it reads there."""
        self._processor.image_processor.save_pretrained(folder)

    def _process(self, key: int) -> None:
        picture = self.store.get(key).picture()
        try:
            made = self._processor(text=[self.placeholder], images=[picture], return_tensors="pt")
        except (ValueError, TypeError, RuntimeError, LookupError) as error:
            raise UnsupportedModel(
                f"the model's processor refuses an image of {picture.width} x {picture.height} "
                f"pixels: {' '.join(str(error).split())[:200]}"
            ) from error
        tokenizer = self._processor.tokenizer
        # Text, not ids, because its first and last characters may merge with the prompt around it.
        ids: list[int] = made["input_ids"][0].tolist()
        if ids and ids[0] == tokenizer.bos_token_id:  # some tokenizers begin every text with it
            ids = ids[1:]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        grid = None
        if (grid_thw := made.get("image_grid_thw")) is not None:
            merge = self._processor.image_processor.merge_size
            _, height, width = grid_thw[0].tolist()
            grid = (height // merge, width // merge)
        num_tokens = ids.count(self.image_token_id)
        self._expansions[key] = Expansion(text, tuple(ids), num_tokens, grid)
        self._inputs[key] = {
            name: value for name, value in made.items() if name not in NOT_OF_THE_TOWER
        }
        if len(self._inputs) > KEPT_INPUTS:
            self._inputs.popitem(last=False)
