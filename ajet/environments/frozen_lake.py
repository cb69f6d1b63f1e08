"""FrozenLake: cross the ice to the goal, around the holes.

Gymnasium's `FrozenLakeEnv.step` decides what an action does, including slips, from the same seed.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ajet.core.environment.environment import Environment, Frame, Info, Observation
from ajet.core.errors import ConfigError, SettingError
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.environments.randomness import belongs_to
from ajet.environments.tiles import Tile, draw_grid

Rows = tuple[str, ...]
View = Literal["grid", "letters", "image", "none"]

ACTIONS = ("Left", "Down", "Right", "Up")
"""The actions in the order of Gymnasium's numbers 0 to 3."""
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
NUMBERS = {name.lower(): number for number, name in enumerate(ACTIONS)}
NAMES = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
SYMBOLS = {"S": "_", "F": "_", "H": "O", "G": "G"}
PLAYER_ON = {"S": "P", "F": "P", "H": "X", "G": "√"}
FIXED_MAPS = ("4x4", "8x8")
MAX_DRAWS = 10_000
DISCOUNT = 0.999
"""The oracle's discount, so near 1 that the chance of arriving decides; among equal chances the
shorter way wins."""

INVALID_ACTION_TEXT = "That is no action. Answer with one of: Left, Down, Right, Up."
LEGENDS: dict[View, str] = {
    "grid": "In the grid P is you, _ is ice, O is a hole, G is the goal. ",
    "letters": "In the grid P is you, S (the start) and F are ice, H is a hole, G is the goal. ",
    "image": "In the image the red disc is you, light squares are ice, dark discs are holes, the "
    "green square is the goal. ",
    "none": "",
}
ICE, WATER, AGENT, GOAL = (222, 238, 248), (30, 60, 110), (214, 70, 60), (70, 160, 90)
TILES = {
    "_": Tile(ICE),
    "P": Tile(ICE, AGENT),
    "O": Tile(ICE, WATER),
    "G": Tile(ICE, GOAL, "square"),
    "X": Tile(ICE, WATER, over=AGENT),
    "√": Tile(ICE, GOAL, "square", over=AGENT),
}


@dataclass(frozen=True, slots=True)
class _TileView:
    """What is shown when the player is on one tile, computed once for each tile."""

    shown: tuple[Frame, ...]
    state_key: str
    letter: str


class FrozenLake(Environment):
    """The game FrozenLake. `p` is the chance that a generated tile is ice; `map` is None, "4x4",
    "8x8" or rows such as ``["SFF", "FHF", "FFG"]``, which both splits play; `view` shows the grid
    in symbols, in Gymnasium's letters, as an image or not at all."""

    is_quick = True

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        map: str | Sequence[str] | None = None,
        show_neighbours: bool = True,
        show_position: bool = False,
        view: View = "grid",
        hole_reward: float = 0.0,
        step_reward: float = 0.0,
    ) -> None:
        if size < 2:
            raise SettingError(f"frozen_lake: size {size}: a map has at least 2 rows")
        if not 0 < p <= 1:
            raise SettingError(f"frozen_lake: p {p}: the chance of ice is above 0 and at most 1")
        if view not in get_args(View):
            raise SettingError(f"frozen_lake: view {view!r}: choose {', '.join(get_args(View))}")
        if view == "none" and not (show_neighbours or show_position):
            raise SettingError(
                "frozen_lake: view none shows nothing; set show_neighbours or show_position"
            )
        self.instruction = _instruction(is_slippery, view, show_neighbours, show_position)
        self._size, self._p, self._is_slippery = size, p, is_slippery
        self._fixed_map = None if map is None else _fixed_map(map)
        self._shows = (view, show_neighbours, show_position)
        ice = float(step_reward)
        self._rewards = {"S": ice, "F": ice, "H": float(hole_reward), "G": 1.0}

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        seed = secrets.randbits(63) if seed is None else seed
        split = (options or {}).get("split")
        self.map = self._fixed_map or _generated_map(self._size, self._p, seed, split)
        self._lake = FrozenLakeEnv(desc=list(self.map), is_slippery=self._is_slippery)
        self._tile_views: dict[int, _TileView] = {}
        self._policy: NDArray[np.intp] | None = None
        self.position, _ = self._lake.reset(seed=seed)
        view = self._tile_view()
        return _observation(view), {"state_key": view.state_key}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        before = self._tile_view()
        if before.letter in "GH":  # the episode is over; Gymnasium's lake does not change, either
            return _observation(before), 0.0, True, False, _info(before, True, False)
        number = NUMBERS.get(action.strip().lower())
        if number is None:
            told = _observation(before, INVALID_ACTION_TEXT)
            return told, 0.0, False, False, _info(before, False, False)
        self.position, _, terminated, _, _ = self._lake.step(number)
        view = self._tile_view()
        info = _info(view, True, view is not before)
        return _observation(view), self._rewards[view.letter], terminated, False, info

    def render(self) -> Frame:
        return draw_grid(_with_player(self.map, self.position, SYMBOLS), TILES)

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice(ACTIONS)

    def oracle_action(self) -> str:
        if self._policy is None:
            self._policy = _best_actions(self._lake.P)
        return ACTIONS[self._policy[self.position]]

    def _tile_view(self) -> _TileView:
        view = self._tile_views.get(self.position)
        if view is None:
            view = self._tile_views[self.position] = _TileView(
                shown=_shown(self.map, self.position, *self._shows),
                state_key=f"{'/'.join(self.map)}@{self.position}",
                letter="".join(self.map)[self.position],
            )
        return view


def _observation(view: _TileView, notice: str | None = None) -> Observation:
    """Returns what is shown on a tile, below a notice: text, or text and an image."""
    shown = view.shown if notice is None else (notice, *view.shown)
    texts = [piece for piece in shown if isinstance(piece, str)]
    return "\n".join(texts) if len(texts) == len(shown) else shown


def _info(view: _TileView, is_valid: bool, is_effective: bool) -> Info:
    metrics = {
        "success": view.letter == "G",
        "action_is_valid": is_valid,
        "action_is_effective": is_effective,
    }
    return {"metrics": metrics, "state_key": view.state_key}


def _fixed_map(source: str | Sequence[str]) -> Rows:
    if isinstance(source, str):
        from gymnasium.envs.toy_text.frozen_lake import MAPS

        if source not in FIXED_MAPS:
            raise SettingError(f"frozen_lake: map {source!r}: write 4x4, 8x8 or a list of rows")
        return tuple(MAPS[source])
    rows = tuple(source)
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise SettingError("frozen_lake: map: the rows differ in length")
    for letter in "".join(rows):
        if letter not in NAMES:
            raise SettingError(f"frozen_lake: map: {letter!r} is not one of S, F, H and G")
    if not _can_be_crossed(rows):
        raise SettingError("frozen_lake: map: no way over the ice leads from S to G")
    return rows


def _generated_map(size: int, p: float, seed: int, split: str | None) -> Rows:
    """Returns the first map drawn from the seed that can be crossed and belongs to the split."""
    # Rejection sampling: within a split, maps keep their relative chances.
    rng = np.random.default_rng(derive(seed, "map"))
    for _ in range(MAX_DRAWS):
        letters = np.where(rng.random((size, size)) < p, "F", "H")
        letters[0, 0], letters[-1, -1] = "S", "G"
        rows = tuple("".join(row) for row in letters.tolist())
        if belongs_to(split, "/".join(rows)) and _can_be_crossed(rows):
            return rows
    raise ConfigError(
        f"frozen_lake: none of {MAX_DRAWS} maps with size {size} and p {p} can be crossed and "
        f"belongs to split {split}; take a larger size or a p nearer to 0.8",
        code=Code.NO_INSTANCE,
    )


def _can_be_crossed(rows: Rows) -> bool:
    """Returns whether every start reaches a goal over ice."""
    starts = {tile for tile, letter in _tiles_of(rows) if letter == "S"}
    queue = [tile for tile, letter in _tiles_of(rows) if letter == "G"]
    reached = set(queue)
    for row, column in queue:  # searches from the goals; the queue grows while it is read
        for down, right in MOVES:
            tile = (row + down, column + right)
            if tile not in reached and _letter(rows, *tile) not in (None, "H"):
                reached.add(tile)
                queue.append(tile)
    return bool(starts) and starts <= reached


def _tiles_of(rows: Rows) -> list[tuple[tuple[int, int], str]]:
    return [((y, x), letter) for y, row in enumerate(rows) for x, letter in enumerate(row)]


def _letter(rows: Rows, row: int, column: int) -> str | None:
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return rows[row][column] if inside else None


def _best_actions(transitions: Mapping[int, Mapping[int, Any]]) -> NDArray[np.intp]:
    """Computes the best action of each state by value iteration over Gymnasium's table of (chance,
    next state, reward, terminated)."""
    # P(s' | s, a) and R(s, a). States after the end need no case: they earn nothing.
    num_states = len(transitions)
    chances = np.zeros((num_states, len(ACTIONS), num_states))
    rewards = np.zeros((num_states, len(ACTIONS)))
    for state, actions in transitions.items():
        for action, outcomes in actions.items():
            for chance, following, reward, _ in outcomes:
                chances[state, action, following] += chance
                rewards[state, action] += chance * reward
    values = np.zeros(num_states)
    while True:
        returns = rewards + DISCOUNT * (chances @ values)
        next_values = returns.max(axis=1)
        if np.abs(next_values - values).max() < 1e-9:
            return returns.argmax(axis=1)
        values = next_values


def _shown(
    rows: Rows, position: int, view: View, neighbours: bool, show_position: bool
) -> tuple[Frame, ...]:
    """Returns the grid (``P___``, ``_O_O``, …), "You 0 0 Goal 3 3", and what is around the player:
    "Left wall Down ice Right ice Up wall"."""
    symbols = {letter: letter for letter in NAMES} if view == "letters" else SYMBOLS
    grid = () if view == "none" else _with_player(rows, position, symbols)
    lines: list[Frame] = [draw_grid(grid, TILES)] if view == "image" else list(grid)
    row, column = divmod(position, len(rows[0]))
    if show_position:
        goal = next(tile for tile, letter in _tiles_of(rows) if letter == "G")
        lines.append(f"You {row} {column} Goal {goal[0]} {goal[1]}")
    if neighbours:
        letters = [_letter(rows, row + down, column + right) for down, right in MOVES]
        names = ["wall" if letter is None else NAMES[letter] for letter in letters]
        pairs = zip(ACTIONS, names, strict=True)
        lines.append(" ".join(f"{action} {name}" for action, name in pairs))
    return tuple(lines)


def _with_player(rows: Rows, position: int, symbols: Mapping[str, str]) -> Rows:
    drawn = [symbols[letter] for _, letter in _tiles_of(rows)]
    drawn[position] = PLAYER_ON["".join(rows)[position]]
    width = len(rows[0])
    return tuple("".join(drawn[i : i + width]) for i in range(0, len(drawn), width))


def _instruction(is_slippery: bool, view: View, neighbours: bool, position: bool) -> str:
    slips = (
        "The ice is slippery: two times in three you slide to the left or right of your direction. "
    )
    return (
        "You are on a frozen lake. Walk over the ice to the goal and do not fall into a hole. "
        + LEGENDS[view]
        + ("You and Goal are given as row and column from the top left, from 0. " * position)
        + ("A line names what is on each side of you. " * neighbours)
        + (slips * is_slippery)
        + "Answer with one action: Left, Down, Right or Up."
    )
