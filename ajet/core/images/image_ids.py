"""The token ids of images, which no vocabulary has, one for each place in an image: two prompts
have a prefix in common exactly if they show the same images, so tries, caches and comparisons of
ids need to know nothing about images. Such an id is never sampled: logits end at the vocabulary.

    bit 62 | 48 bits: the image's key, the beginning of its SHA-256 | 14 bits: place in the image
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

PLACE_BITS = 14
MAX_PLACES = 1 << PLACE_BITS
"""The most tokens that one image may become."""
FIRST_ID = 1 << 62
"""All ids from here on are those of images."""
_KEY_MASK = (1 << 48) - 1


def image_key(data: bytes) -> int:
    """Returns the key of an encoded image."""
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big")


def is_image_of(data: object, key: int) -> bool:
    """Tells whether a database's value is the image with this key."""
    return isinstance(data, bytes) and image_key(data) == key


def key_text(key: int) -> str:
    """Returns a key as messages and file names have it."""
    return f"{key:012x}"


def image_name(key: int) -> str:
    """Returns what stands for an image where ids are shown as text."""
    return f"<image {key_text(key)}>"


def image_ids(key: int, num_tokens: int) -> NDArray[np.int64]:
    """Returns the ids of an image's tokens."""
    import numpy as np

    if not 0 < num_tokens <= MAX_PLACES:
        raise ValueError(f"an image became {num_tokens} tokens; {MAX_PLACES} is the most")
    return (FIRST_ID | key << PLACE_BITS) + np.arange(num_tokens, dtype=np.int64)


def has_images(ids: Sequence[int]) -> bool:
    return any(token_id >= FIRST_ID for token_id in ids)


def keys_and_places(ids: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the keys of image ids, and their places in the images."""
    import numpy as np

    array = np.asarray(ids, np.int64)
    return (array >> PLACE_BITS) & _KEY_MASK, array & (MAX_PLACES - 1)


def image_starts(ids: Sequence[int]) -> list[int]:
    """Returns where the images of a prompt begin."""
    return [n for n, i in enumerate(ids) if i >= FIRST_ID and i & (MAX_PLACES - 1) == 0]


def keys_in_order(ids: Sequence[int]) -> list[int]:
    """Returns the key of each image of a prompt, in order; an image shown twice is there twice."""
    first = [ids[start] for start in image_starts(ids)]
    return [int(key) for key in keys_and_places(first)[0]]


def image_spans(ids: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Returns the start and the stop of each image, or part of one, in a sequence."""
    import numpy as np

    is_image = ids >= FIRST_ID
    follows = is_image[1:] & (ids[1:] == ids[:-1] + 1)
    starts = np.flatnonzero(is_image & ~np.concatenate(([False], follows)))
    stops = np.flatnonzero(is_image & ~np.concatenate((follows, [False]))) + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def with_placeholders(ids: Sequence[int], placeholder: int) -> list[int]:
    """Returns the ids as a tokenizer of the model would have them."""
    return [placeholder if token_id >= FIRST_ID else token_id for token_id in ids]
