"""Draws grids of letters as RGB pictures, one square tile for each letter.

draw_grid(("P_", "OG"), {"P": Tile(ICE, AGENT, "disc"), ...})   ->   uint8 [48, 48, 3]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Picture = NDArray[np.uint8]
TILE_PIXELS = 24
EDGE = 0.88
"""The brightness of a tile's frame, relative to its ground."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one letter is drawn: the mark over the ground, and the second mark over both."""

    ground: Colour
    mark: Colour | None = None
    shape: Literal["disc", "ring", "square"] = "disc"
    over: Colour | None = None


def draw_grid(rows: Sequence[str], tiles: Mapping[str, Tile]) -> Picture:
    strips = [np.concatenate([_draw_tile(tiles[letter]) for letter in row], 1) for row in rows]
    return np.concatenate(strips, 0)


@cache
def _draw_tile(tile: Tile) -> Picture:
    picture = np.empty((TILE_PIXELS, TILE_PIXELS, 3), np.uint8)
    picture[:] = [round(part * EDGE) for part in tile.ground]
    picture[:-1, :-1] = tile.ground
    if tile.mark is not None:
        picture[_shape(tile.shape, 0.7)] = tile.mark
    if tile.over is not None:
        picture[_shape("disc", 0.4)] = tile.over
    picture.setflags(write=False)  # the cached picture is shared by all grids
    return picture


def _shape(shape: str, reach: float) -> NDArray[np.bool_]:
    """Returns the pixels of a mark; `reach` is its radius, where 1 is the tile's edge."""
    along = np.abs(np.linspace(-1, 1, TILE_PIXELS))
    y, x = along[:, None], along[None, :]
    distance = np.hypot(x, y)
    if shape == "square":
        return np.maximum(x, y) <= reach
    if shape == "ring":
        return (distance <= reach) & (distance >= reach - 0.3)
    return distance <= reach
