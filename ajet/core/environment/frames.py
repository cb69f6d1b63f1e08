"""Draws the frames that an environment rendered, as two picture files: a GIF of one frame after the
other, and a PNG with all of them on one sheet. Text is drawn with Pillow's default font.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.core.environment.environment import Frame

if TYPE_CHECKING:
    from PIL.Image import Image

FRAME_MS, LAST_FRAME_MS = 400, 1600
MARGIN, GAP = 8, 4
SHEET_COLUMNS = 5
MAX_SHEET_FRAMES = 40
MAX_TEXT_LENGTH = 4000
COLUMNS = 80
CELL_WIDTH, CELL_HEIGHT = 8, 14
WHITE = (255, 255, 255)
_wrap = TextWrapper(COLUMNS, drop_whitespace=False, break_on_hyphens=False).wrap
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def frame_problem(frame: Any) -> str | None:
    """Says why this is not a frame; None where it is one."""
    if isinstance(frame, str):
        return None
    if not isinstance(frame, np.ndarray):
        return f"is a {type(frame).__name__}, neither text nor an array"
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        return f"is an array {list(frame.shape)} of {frame.dtype}, not [height, width, 3] of uint8"
    return None


def gif_file(root: Path, step: int, task_id: str) -> Path:
    """Returns the file for an episode of a validation, step_000020/FrozenLake4-0003.gif below
    `root`, which is `render_save_dir`."""
    name = re.sub(r"[^\w.-]", "_", task_id)
    return root / f"step_{step:06d}" / f"{name}.gif"


def save_frames(frames: Sequence[Frame], gif: Path) -> None:
    """Writes a GIF of the frames, and next to it a PNG with all of them on one sheet."""
    pictures = _pad_to_one_size([frame_to_image(frame) for frame in frames])
    gif.parent.mkdir(parents=True, exist_ok=True)
    durations = [FRAME_MS] * (len(pictures) - 1) + [LAST_FRAME_MS]
    first, *rest = pictures
    first.save(gif, save_all=True, append_images=rest, duration=durations, loop=0)
    contact_sheet(pictures).save(gif.with_suffix(".png"))


def frame_to_image(frame: Frame) -> Image:
    from PIL import Image, ImageDraw, ImageFont

    if not isinstance(frame, str):
        return Image.fromarray(frame)
    text = _TERMINAL_CODE.sub("", frame[:MAX_TEXT_LENGTH]).expandtabs(4)
    lines = [part for line in text.splitlines() for part in _wrap(line) or [""]]
    if not any(lines):
        lines = [" "]  # a picture must not be empty
    font = ImageFont.load_default()
    width = max(map(len, lines)) * CELL_WIDTH + 2 * MARGIN
    picture = Image.new("RGB", (width, len(lines) * CELL_HEIGHT + 2 * MARGIN), WHITE)
    draw = ImageDraw.Draw(picture)
    for row, line in enumerate(lines):
        for column, letter in enumerate(line):
            # The font is proportional; cells of one size keep a board's columns aligned.
            offset = (CELL_WIDTH - font.getlength(letter)) / 2
            position = (MARGIN + column * CELL_WIDTH + offset, MARGIN + row * CELL_HEIGHT)
            draw.text(position, letter, fill=(0, 0, 0), font=font)
    return picture


def contact_sheet(pictures: Sequence[Image]) -> Image:
    """Arranges the last `MAX_SHEET_FRAMES` pictures in rows."""
    from PIL import Image

    newest = pictures[-MAX_SHEET_FRAMES:]
    width, height = newest[0].width + GAP, newest[0].height + GAP
    num_columns = min(SHEET_COLUMNS, len(newest))
    num_rows = -(-len(newest) // SHEET_COLUMNS)
    sheet = Image.new("RGB", (num_columns * width - GAP, num_rows * height - GAP), WHITE)
    for number, picture in enumerate(newest):
        row, column = divmod(number, SHEET_COLUMNS)
        sheet.paste(picture, (column * width, row * height))
    return sheet


def _pad_to_one_size(pictures: Sequence[Image]) -> list[Image]:
    """Adds white at the right and bottom of smaller pictures, so that all have the same size."""
    from PIL import Image

    size = max(image.width for image in pictures), max(image.height for image in pictures)
    padded = []
    for picture in pictures:
        whole = Image.new("RGB", size, WHITE)
        whole.paste(picture)
        padded.append(whole)
    return padded
