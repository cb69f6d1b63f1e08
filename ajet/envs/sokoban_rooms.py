"""Rooms of Sokoban: their form as text, and how new ones are made by playing backwards.

    ######       # wall     _ floor   O target
    #P_###       X box      √ box on a target
    #_X_O#       P player   S player on a target
    ######

A tile's number is its place in the layout's text, line ends counted: one down is a line further,
and nothing but floor and targets can be walked on, so that no move leaves the room.

A room begins as its own solution: all boxes on targets. The player then pulls boxes about, and each
pull is a push played backwards, so whatever comes out can be solved, in as many moves as were
played. The state in which the boxes are furthest from where they began, and none on a target, is
the room. Not covered: rooms of equal difficulty; see sokoban_solver.py for the shortest solution.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

KEEP_PULLING_PROBABILITY = 0.6
"""The chance that the box pulled last is pulled again in the same direction, so that boxes move
far."""
KEEP_DIRECTION_PROBABILITY = 0.65
"""The chance that digging continues in the same direction."""

SYMBOLS = "#_OX√PS"
PLAYER_AT = {"_": "P", "O": "S"}
BOX_AT = {"_": "X", "O": "√"}
EMPTIED = {"P": "_", "X": "_", "S": "O", "√": "O"}


@dataclass(frozen=True)
class Room:
    """A room. The layout holds walls, floor and targets; `boxes` and `player` are tile numbers."""

    layout: str
    boxes: frozenset[int]
    player: int

    @cached_property
    def moves(self) -> Mapping[str, int]:
        """The offset of each action: what it adds to the number of the player's tile."""
        stride = self.layout.index("\n") + 1
        return {"Up": -stride, "Down": stride, "Left": -1, "Right": 1}

    @cached_property
    def floor(self) -> frozenset[int]:
        return frozenset(tile for tile, symbol in enumerate(self.layout) if symbol in "_O")

    @cached_property
    def targets(self) -> frozenset[int]:
        return frozenset(tile for tile, symbol in enumerate(self.layout) if symbol == "O")


def text_of(layout: str, boxes: Iterable[int], player: int) -> str:
    """Returns the room as it is shown."""
    symbols = list(layout)
    for box in boxes:
        symbols[box] = BOX_AT[layout[box]]
    symbols[player] = PLAYER_AT[layout[player]]
    return "".join(symbols)


def read_room(rows: Sequence[str]) -> Room:
    """Returns the room that rows of symbols show; raises `ValueError` if they show none."""
    text = "\n".join(rows)
    odd = next((symbol for symbol in text if symbol not in SYMBOLS + "\n"), None)
    if odd is not None:
        raise ValueError(f"{odd!r} is none of {' '.join(SYMBOLS)}")
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("the rows are not of one length, or fewer than two")
    players = [tile for tile, symbol in enumerate(text) if symbol in "PS"]
    boxes = frozenset(tile for tile, symbol in enumerate(text) if symbol in "X√")
    layout = "".join(EMPTIED.get(symbol, symbol) for symbol in text)
    if len(players) != 1 or len(boxes) != layout.count("O") or not text.count("X"):
        raise ValueError(
            "there must be one player, as many boxes as targets, and a box off its target"
        )
    return Room(layout, boxes, players[0])


def walking_distances(player: int, free: frozenset[int], steps: Iterable[int]) -> dict[int, int]:
    """Returns the tiles that the player reaches without moving a box, with their numbers of
    moves."""
    offsets = tuple(steps)
    distances, queue = {player: 0}, [player]
    for tile in queue:
        for offset in offsets:
            if (beside := tile + offset) in free and beside not in distances:
                distances[beside] = distances[tile] + 1
                queue.append(beside)
    return distances


def solved_room(height: int, width: int, num_boxes: int, rng: random.Random) -> Room | None:
    """Digs a random room with all boxes on targets; returns None if it is too small for them."""
    floor = sorted(_dig(height, width, rng))
    if len(floor) <= 2 * num_boxes:
        return None
    *targets, player = rng.sample(floor, num_boxes + 1)
    symbols = dict.fromkeys(floor, "_") | dict.fromkeys(targets, "O")
    rows = ["".join(symbols.get((y, x), "#") for x in range(width)) for y in range(height)]
    numbers = [y * (width + 1) + x for y, x in (*targets, player)]
    return Room("\n".join(rows), frozenset(numbers[:-1]), numbers[-1])


def scrambled_room(solved: Room, num_pulls: int, max_moves: int, rng: random.Random) -> Room | None:
    """Returns a room that can be solved in `max_moves` moves, or None if not all boxes came off the
    targets."""
    starts, stride = sorted(solved.boxes), solved.moves["Down"]
    apart = [
        (_distance(starts, boxes, stride), boxes, player, spare_moves)
        for boxes, player, spare_moves in _pulled_states(solved, num_pulls, max_moves, rng)
        if solved.targets.isdisjoint(boxes)
    ]
    if not apart:
        return None
    _, boxes, player, spare_moves = max(apart, key=lambda state: state[0])
    return _with_random_player(solved, frozenset(boxes), player, spare_moves, rng)


def _pulled_states(
    solved: Room, num_pulls: int, max_moves: int, rng: random.Random
) -> Iterator[tuple[list[int], int, int]]:
    """Yields the state after each pull: the boxes in the order of their targets, the player, and
    the number of moves left."""
    boxes, player, last = sorted(solved.boxes), solved.player, None
    for _ in range(num_pulls):
        free = solved.floor.difference(boxes)
        reach = walking_distances(player, free, solved.moves.values())
        last = _chosen(_pulls(boxes, reach, free, solved.moves.values()), last, rng)
        if last is None:
            return
        number, way = last
        boxes[number] += way
        player = boxes[number] + way
        max_moves -= reach[boxes[number]] + 1
        if max_moves < 0:
            return
        yield list(boxes), player, max_moves


def _pulls(
    boxes: Sequence[int], reach: Iterable[int], free: frozenset[int], offsets: Iterable[int]
) -> list[tuple[int, int]]:
    """Returns all possible pulls as (box number, direction). The player stands next to the box and
    steps back."""
    ways = tuple(offsets)
    return [
        (number, way)
        for number, box in enumerate(boxes)
        for way in ways
        if box + way in reach and box + 2 * way in free
    ]


def _chosen(
    pulls: Sequence[tuple[int, int]], last: tuple[int, int] | None, rng: random.Random
) -> tuple[int, int] | None:
    if last in pulls and rng.random() < KEEP_PULLING_PROBABILITY:
        return last
    return rng.choice(pulls) if pulls else None


def _distance(starts: Sequence[int], boxes: Sequence[int], stride: int) -> int:
    """Returns the sum of the boxes' Manhattan distances from their starts."""
    total = 0
    for start, box in zip(starts, boxes, strict=True):
        (y, x), (to_y, to_x) = divmod(start, stride), divmod(box, stride)
        total += abs(y - to_y) + abs(x - to_x)
    return total


def _with_random_player(
    room: Room, boxes: frozenset[int], player: int, spare_moves: int, rng: random.Random
) -> Room:
    """Returns the room with the player on a random reachable tile; otherwise the player would
    always stand ready to push."""
    reach = walking_distances(player, room.floor - boxes, room.moves.values())
    near = sorted(tile for tile, distance in reach.items() if distance <= spare_moves)
    return Room(room.layout, boxes, rng.choice(near))


def _dig(height: int, width: int, rng: random.Random) -> set[tuple[int, int]]:
    """Returns the tiles that a random walk digs: one connected room within the outer wall."""
    y, x = rng.randrange(1, height - 1), rng.randrange(1, width - 1)
    directions = ((0, 1), (1, 0), (0, -1), (-1, 0))
    down, right = rng.choice(directions)
    dug = {(y, x)}
    for _ in range(2 * (height + width)):
        if rng.random() > KEEP_DIRECTION_PROBABILITY:
            down, right = rng.choice(directions)
        y, x = _within(y + down, height), _within(x + right, width)
        dug.add((y, x))
        aside = rng.choice((-1, 1))  # two tiles wide, or there is no room to push
        dug.add((_within(y + aside * right, height), _within(x + aside * down, width)))
    return dug


def _within(place: int, length: int) -> int:
    """Returns the nearest coordinate inside the outer wall."""
    return min(max(place, 1), length - 2)
