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
            if isinstance(picture, pillow.Image):
                converted = picture if _is_plain(picture) else _plain(picture)
            elif picture.dtype in ("uint8", "bool"):
                converted = pillow.fromarray(picture)
            else:
                raise TypeError(f"it has {picture.dtype}")
            file = io.BytesIO()
            converted.save(file, "PNG", compress_level=1)  # bytes matter less than time
        except (TypeError, ValueError, AttributeError, OSError) as error:
            raise refused(f"an array must be uint8, [height, width, 3]: {error}") from error
        return cls.read(file.getvalue(), limits)

    @cached_property
    def key(self) -> int:
        return image_key(self.data)

    @cached_property
    def plain(self) -> Image:
        """The image in a form of which every server decodes the same pixels, those of `picture`."""
        from PIL import Image as pillow

        with pillow.open(io.BytesIO(self.data), formats=FORMATS) as picture:
            is_plain = _is_plain(picture)
        return self if is_plain else Image.from_picture(self.picture(), NO_LIMITS)

    def picture(self) -> Picture:
        """Returns the decoded image in RGB, upright, on white where it is transparent."""
        from PIL import Image as pillow

        try:
            with pillow.open(io.BytesIO(self.data), formats=FORMATS) as picture:
                return _plain(picture)
        except (OSError, ValueError, SyntaxError) as error:
            raise refused("its pixels are damaged") from error


def _is_plain(picture: Picture) -> bool:
    return picture.mode in ("RGB", "L") and not picture.info.keys() & {"exif", "transparency"}


def _plain(picture: Picture) -> Picture:
    """Returns the picture as a browser shows it, in RGB; transformers and vLLM turn it and fill it
    with white, too."""
    from PIL import Image as pillow
    from PIL import ImageOps

    if picture.mode in ("I", "F"):
        raise ValueError(f"its values (mode {picture.mode}) have more than 8 bits")
    upright = ImageOps.exif_transpose(picture)
    if upright.mode == "I;16":  # `convert` takes all above 255 as white
        upright = upright.point(lambda value: value / 257)
    if not upright.has_transparency_data:
        return upright.convert("RGB")
    whole = upright.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", whole.size, "white"), whole).convert("RGB")


def refused(reason: str) -> DataError:
    """Returns the error for an image that is not taken."""
    return DataError(f"an image is refused: {reason}", code=Code.IMAGE)
