"""What a model's processor makes of an image: text for the prompt, and inputs of its vision tower.

template      …<|vision_start|><|image_pad|><|vision_end|>…        `placeholder`
expansion     <|image_pad|> x 64     (SmolVLM: rows and columns of tiles, with marks between)
tokens        64 ids of `image_token_id`, which become the image's own (image_ids.py)
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.images.store import ImageStore

KEPT_INPUTS = 16
"""The images whose pixels are kept until the vision tower takes them."""
NOT_OF_THE_TOWER = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


@dataclass(frozen=True, slots=True)
class Expansion:
    """Holds what an image's placeholder becomes in the prompt, and the grid of its features
    (None: they have no rows and columns)."""

    text: str
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

    def _process(self, key: int) -> None:
        picture = self.store.get(key).picture()
        try:
            made = self._processor(text=[self.placeholder], images=[picture], return_tensors="pt")
        except (ValueError, TypeError, RuntimeError, LookupError) as error:
            raise ModelError(
                f"the model's processor refuses an image of {picture.width} x {picture.height} "
                f"pixels: {' '.join(str(error).split())[:200]}",
                code=Code.MODEL_UNSUPPORTED,
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
        self._expansions[key] = Expansion(text, ids.count(self.image_token_id), grid)
        self._inputs[key] = {
            name: value for name, value in made.items() if name not in NOT_OF_THE_TOWER
        }
        if len(self._inputs) > KEPT_INPUTS:
            self._inputs.popitem(last=False)
