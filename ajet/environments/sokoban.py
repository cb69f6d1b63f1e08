"""The game Sokoban: push every box onto a target; boxes cannot be pulled. sokoban_rooms.py has the
form of a room."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from ajet.core.environment.environment import Environment, Frame, Info, Observation
from ajet.core.errors import ConfigError, SettingError
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.environments.randomness import belongs_to
from ajet.environments.sokoban_rooms import (
    Room,
    read_room,
    scrambled_room,
    solve,
    solved_room,
    text_of,
)
from ajet.environments.tiles import Tile, draw_grid

View = Literal["grid", "image"]
ACTIONS = ("Up", "Down", "Left", "Right")
NAMES = {name.lower(): name for name in ACTIONS}
STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0
MAX_DRAWS = 1_000
MAX_ORACLE_STATES = 20_000
INVALID_ACTION_TEXT = "That is no action. Answer with one of: Up, Down, Left, Right."
AGG_MODES = {"boxes_on_target": "last"}

DRAWN = {
    "#": "a wall", "_": "the floor", "O": "a target", "√": "a box on a target", "X": "a box",
    "P": "you", "S": "you on a target",
}  # fmt: skip
"""The symbols and their meanings, in the order of ROLL's numbers."""
RULES = (
    "You push a box by walking into it, and only if the tile behind it is free; you cannot pull. "
    "Answer with one action: Up, Down, Left or Right."
)
LEGEND = (
    "In the image dark squares are walls, a red ring is a target, a brown square a box, a green "
    "square a box on a target, and the blue disc is you."
)

WALL, FLOOR, TARGET = (90, 84, 82), (240, 230, 210), (214, 70, 60)
BOX, DONE, AGENT = (176, 120, 60), (70, 160, 90), (50, 90, 190)
TILES = {
    "#": Tile(WALL),
    "_": Tile(FLOOR),
    "O": Tile(FLOOR, TARGET, "ring"),
    "X": Tile(FLOOR, BOX, "square"),
    "√": Tile(FLOOR, DONE, "square"),
    "P": Tile(FLOOR, AGENT),
    "S": Tile(FLOOR, TARGET, "ring", over=AGENT),
}


class Sokoban(Environment):
    """The game Sokoban. A move costs 0.1; a box that comes onto a target gives 1, and takes 1 when
    it leaves; the last one gives 10 more and ends the game, as do `max_steps` moves.

    `dim_room` is height and width with the outer walls; `search_depth` is the number of pulls that
    make a room, so fewer make easier rooms; `room` is None, or the rows of a room that every
    episode uses; `view` shows the room in symbols or as an image. As in ROLL, `grid_lookup` draws
    the numbers of DRAWN in other symbols, and `grid_vocab` says in the instruction what they mean.
    """

    is_quick = True
    instruction = (
        "You play Sokoban: push every box onto a target. "
        "# is a wall, _ the floor, O a target, X a box, √ a box on a target, P is you, S is you on "
        f"a target. {RULES}"
    )

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        max_steps: int = 100,
        search_depth: int = 30,
        room: Sequence[str] | None = None,
        grid_lookup: Mapping[int | str, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        view: View = "grid",
    ) -> None:
        if view not in get_args(View):
            raise SettingError(f"sokoban: view {view!r}: choose {', '.join(get_args(View))}")
        self._view = view
        self._symbols = _symbols(grid_lookup or {})
        if grid_lookup or grid_vocab:
            meanings = {self._symbols[symbol]: text for symbol, text in DRAWN.items()}
            legend = [f"{symbol} is {text}" for symbol, text in (grid_vocab or meanings).items()]
            self.instruction = (
                "You play Sokoban: push every box onto a target. In the grid "
                f"{', '.join(legend)}. {RULES}"
            )
        if view == "image":
            self.instruction = f"You play Sokoban: push every box onto a target. {LEGEND} {RULES}"
        if len(dim_room) != 2 or min(dim_room) < 3:
            raise SettingError(
                f"sokoban: dim_room {list(dim_room)}: write height and width, each at least 3"
            )
        if min(num_boxes, max_steps, search_depth) < 1:
            raise SettingError("sokoban: num_boxes, max_steps and search_depth are at least 1")
        self._height, self._width = dim_room
        self._num_boxes = num_boxes
        self._max_steps, self._search_depth = max_steps, search_depth
        try:
            self._fixed_room = None if room is None else read_room(room)
        except ValueError as error:
            raise SettingError(f"sokoban: room: {error}") from None

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        seed = secrets.randbits(63) if seed is None else seed
        split = (options or {}).get("split")
        self.room = self._fixed_room or self._generate_room(seed, split)
        self._boxes, self._player = set(self.room.boxes), self.room.player
        self._num_steps, self._plan = 0, ()
        self._show()
        return self._shown, {"state_key": self._text}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        name = NAMES.get(action.strip().lower())
        if self._is_solved or self._num_steps >= self._max_steps:  # it is over
            return self._returned(self._shown, 0.0, name is not None, False)
        if name is None:
            told = (INVALID_ACTION_TEXT, self._shown)
            if isinstance(self._shown, str):
                told = f"{INVALID_ACTION_TEXT}\n{self._shown}"
            return self._returned(told, 0.0, False, False)
        on_target = self._num_on_target
        is_effective = self._move(name)
        self._num_steps += 1
        reward = STEP_REWARD + BOX_REWARD * (self._num_on_target - on_target)
        reward += SOLVED_REWARD * self._is_solved
        return self._returned(self._shown, reward, True, is_effective)

    def render(self) -> Frame:
        return draw_grid(self._text.splitlines(), TILES)

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice(ACTIONS)

    def oracle_action(self) -> str | None:
        """Returns the next move of a shortest solution, or None if none is found within
        MAX_ORACLE_STATES states."""
        if not self._plan:
            current_room = Room(self.room.layout, frozenset(self._boxes), self._player)
            self._plan = solve(current_room, MAX_ORACLE_STATES) or ()
        return self._plan[0] if self._plan else None

    def _move(self, name: str) -> bool:
        room, boxes, offset = self.room, self._boxes, self.room.moves[name]
        ahead, beyond = self._player + offset, self._player + 2 * offset
        if ahead not in room.floor:
            return False
        if ahead in boxes:
            if beyond not in room.floor or beyond in boxes:
                return False
            boxes.remove(ahead)
            boxes.add(beyond)
        self._player = ahead
        # A move along the oracle's plan keeps the rest of it; any other needs a new plan.
        self._plan = self._plan[1:] if self._plan[:1] == (name,) else ()
        self._show()
        return True

    def _show(self) -> None:
        self._text = text_of(self.room.layout, self._boxes, self._player)
        self._shown: Frame = "".join(self._symbols.get(symbol, symbol) for symbol in self._text)
        if self._view == "image":
            self._shown = self.render()
        self._num_on_target = len(self.room.targets & self._boxes)
        self._is_solved = self._num_on_target == len(self._boxes)

    def _returned(
        self, observation: Observation, reward: float, is_valid: bool, is_effective: bool
    ) -> tuple[Observation, float, bool, bool, Info]:
        metrics = {
            "success": self._is_solved,
            "action_is_valid": is_valid,
            "action_is_effective": is_effective,
            "boxes_on_target": self._num_on_target,
        }
        info = {"metrics": metrics, "metrics_agg_mode": AGG_MODES, "state_key": self._text}
        is_truncated = not self._is_solved and self._num_steps >= self._max_steps
        return observation, reward, self._is_solved, is_truncated, info

    def _generate_room(self, seed: int, split: str | None) -> Room:
        """Returns the first room drawn from the seed that belongs to the split, has no box on a
        target and can be solved in `max_steps` moves. The splits never share walls and targets, so
        they share no state either."""
        rng = random.Random(derive(seed, "room"))
        for _ in range(MAX_DRAWS):
            solved = solved_room(self._height, self._width, self._num_boxes, rng)
            if solved is None or not belongs_to(split, solved.layout):
                continue
            room = scrambled_room(solved, self._search_depth, self._max_steps, rng)
            if room is not None:
                return room
        raise ConfigError(
            f"sokoban: {MAX_DRAWS} draws gave no room with dim_room "
            f"[{self._height}, {self._width}], num_boxes {self._num_boxes}, search_depth "
            f"{self._search_depth} and max_steps {self._max_steps}; take a larger room, fewer "
            "boxes or more of the last two",
            code=Code.NO_INSTANCE,
        )


def _symbols(grid_lookup: Mapping[int | str, str]) -> dict[str, str]:
    numbers = {str(number): symbol for number, symbol in enumerate(DRAWN)}
    changed = {numbers.get(str(key), ""): str(symbol) for key, symbol in grid_lookup.items()}
    drawn = {symbol: symbol for symbol in DRAWN} | changed
    if "" in changed or len(set(drawn.values())) < len(drawn):
        raise SettingError(
            f"sokoban: grid_lookup {dict(grid_lookup)}: give numbers from 0 to 6, each another "
            "symbol"
        )
    return drawn
