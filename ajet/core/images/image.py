"""One encoded image, checked before it is decoded."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.images.image_ids import image_key

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds what a prompt may show: the bytes and pixels of an image, the images of a prompt, and
    whether a message may name files and addresses on the web."""

    max_bytes: int = 20 << 20
    max_pixels: int = 1 << 24
    max_images: int = 64
    files: bool = False
    addresses: bool = False


NO_LIMITS = ImageLimits(sys.maxsize, sys.maxsize, sys.maxsize)
"""For images that the run's store checks later, by the config's limits, or has checked."""


@dataclass(frozen=True)
class Image:
    """Holds an encoded image as it arrived."""

    data: bytes
    format: str
    width: int
    height: int

    @classmethod
    def read(cls, data: bytes, limits: ImageLimits) -> Image:
        """Reads the header; raises `DataError` for anything but an image within the limits."""
        from PIL import Image as pillow

        if len(data) > limits.max_bytes:
            raise refused(
                f"it has {len(data):,} bytes, and ajet.model.images.max_bytes is "
                f"{limits.max_bytes:,}"
            )
        try:
            # Only the header is read here: a small file may hold gigapixels.
            with pillow.open(io.BytesIO(data), formats=FORMATS) as picture:
                kind, (width, height) = str(picture.format), picture.size
        except (pillow.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
            raise refused(f"it is not one of {', '.join(FORMATS)}, or damaged") from error
        if width * height > limits.max_pixels:
            raise refused(
                f"it has {width} x {height} pixels, and ajet.model.images.max_pixels is "
                f"{limits.max_pixels:,}"
            )
        return cls(data, kind, width, height)

    @classmethod
    def from_picture(cls, picture: Any, limits: ImageLimits) -> Image:
        """Encodes an image of PIL, or an array ``[height, width]`` or ``[height, width, 3 or 4]``
        of uint8, as PNG."""
        from PIL import Image as pillow

        try:
            converted = picture if isinstance(picture, pillow.Image) else pillow.fromarray(picture)
            file = io.BytesIO()
            converted.save(file, "PNG", compress_level=1)  # bytes matter less than time
        except (TypeError, ValueError, AttributeError, OSError) as error:
            raise refused(f"an array must be uint8, [height, width, 3]: {error}") from error
        return cls.read(file.getvalue(), limits)

    @cached_property
    def key(self) -> int:
        return image_key(self.data)

    def picture(self) -> Picture:
        """Returns the decoded image in RGB."""
        from PIL import Image as pillow

        try:
            with pillow.open(io.BytesIO(self.data), formats=FORMATS) as picture:
                return picture.convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise refused("its pixels are damaged") from error


def refused(reason: str) -> DataError:
    """Returns the error for an image that is not taken."""
    return DataError(f"an image is refused: {reason}", code=Code.IMAGE)
