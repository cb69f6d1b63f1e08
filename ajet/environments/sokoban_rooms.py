"""Rooms of Sokoban: their text form, how new ones are generated, and their shortest solutions.

######       # wall     _ floor   O target
#P_###       X box      √ box on a target
#_X_O#       P player   S player on a target
"""

from __future__ import annotations

import heapq
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
State = tuple[frozenset[int], int]
Origins = dict[State, tuple[State, str, int]]
"""Maps a state to its predecessor: the state before, the push, and the tile from which the player
pushed."""


@dataclass(frozen=True)
class Room:
    """A room. The layout holds walls, floor and targets; `boxes` and `player` are tile numbers:
    indices in the layout's text, line ends included, so a step down adds the length of a line. Only
    floor and targets can be walked on, so no move leaves the room."""

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
    """Returns the tiles that the player reaches without moving a box, with their numbers of moves
    (breadth-first search)."""
    offsets = tuple(steps)
    distances, queue = {player: 0}, [player]
    for tile in queue:  # the queue grows while it is read
        for offset in offsets:
            neighbour = tile + offset
            if neighbour in free and neighbour not in distances:
                distances[neighbour] = distances[tile] + 1
                queue.append(neighbour)
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
    """Pulls boxes of a solved room at random, and returns the state in which no box is on a target
    and the boxes are furthest from where they began; None if not all came off the targets. A pull
    is a push played backwards, so the room can be solved in `max_moves` moves."""
    starts, stride = sorted(solved.boxes), solved.moves["Down"]

    def distance(boxes: Sequence[int]) -> int:
        """The sum of the boxes' Manhattan distances from their starts."""
        total = 0
        for start, box in zip(starts, boxes, strict=True):
            (y, x), (to_y, to_x) = divmod(start, stride), divmod(box, stride)
            total += abs(y - to_y) + abs(x - to_x)
        return total

    states = [
        state
        for state in _pulled_states(solved, num_pulls, max_moves, rng)
        if solved.targets.isdisjoint(state[0])
    ]
    if not states:
        return None
    boxes, player, spare_moves = max(states, key=lambda state: distance(state[0]))
    # After a pull the player stands ready to push back: a random tile hides where to push.
    reach = walking_distances(player, solved.floor.difference(boxes), solved.moves.values())
    near = sorted(tile for tile, steps in reach.items() if steps <= spare_moves)
    return Room(solved.layout, frozenset(boxes), rng.choice(near))


def _pulled_states(
    solved: Room, num_pulls: int, max_moves: int, rng: random.Random
) -> Iterator[tuple[list[int], int, int]]:
    """Yields the state after each pull: the boxes in the order of their targets, the player, and
    the number of moves left."""
    boxes, player, last = sorted(solved.boxes), solved.player, None
    for _ in range(num_pulls):
        free = solved.floor.difference(boxes)
        reach = walking_distances(player, free, solved.moves.values())
        pulls = [
            (number, direction)
            for number, box in enumerate(boxes)
            for direction in solved.moves.values()
            if box + direction in reach and box + 2 * direction in free
        ]
        if not pulls:
            return
        if last not in pulls or rng.random() >= KEEP_PULLING_PROBABILITY:
            last = rng.choice(pulls)
        # The player steps back by `direction`, and the box follows onto the player's tile.
        number, direction = last
        boxes[number] += direction
        player = boxes[number] + direction
        max_moves -= reach[boxes[number]] + 1
        if max_moves < 0:
            return
        yield list(boxes), player, max_moves


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
        # Corridors are two tiles wide, because boxes get stuck in narrower ones.
        aside = rng.choice((-1, 1))
        dug.add((_within(y + aside * right, height), _within(x + aside * down, width)))
    return dug


def _within(coordinate: int, length: int) -> int:
    """Returns the nearest coordinate inside the outer wall."""
    return min(max(coordinate, 1), length - 2)


def solve(room: Room, max_states: int) -> tuple[str, ...] | None:
    """Returns the moves of a shortest solution, or None if there is none or `max_states` states
    were visited. It is A* over pushes: a state is the boxes and the player directly after a push,
    and the player walks the shortest way to the next one. The heuristic is the sum of the pushes
    that each box needs to its nearest target if there were no other box."""
    needed = _pushes_needed(room)
    start = (room.boxes, room.player)
    if any(box not in needed for box in room.boxes):
        return None
    costs, origins, done = {start: 0}, Origins(), set[State]()
    queue = [(sum(needed[box] for box in room.boxes), 0, start)]
    while queue and len(done) < max_states:
        _, _, state = heapq.heappop(queue)
        # A state is queued again whenever a shorter way to it is found. The first pop has the
        # shortest, because the heuristic is consistent: a push lowers it by at most 1.
        if state in done:
            continue
        done.add(state)
        if state[0] == room.targets:
            return _actions(room, state, origins)
        for following, num_moves, action, pushed_from in _pushes(room, state, needed):
            cost = costs[state] + num_moves
            if cost < costs.get(following, cost + 1):
                costs[following] = cost
                origins[following] = (state, action, pushed_from)
                # The count orders equal estimates: comparing sets of boxes would mean nothing.
                estimate = cost + sum(needed[box] for box in following[0])
                heapq.heappush(queue, (estimate, len(costs), following))
    return None


def _pushes(
    room: Room, state: State, needed: Mapping[int, int]
) -> Iterator[tuple[State, int, str, int]]:
    """Yields every possible push: the state after it, the number of moves it takes, its action, and
    the tile from which it is done."""
    boxes, player = state
    free = room.floor - boxes
    reach = walking_distances(player, free, room.moves.values())
    for box in boxes:
        for action, offset in room.moves.items():
            behind, ahead = box - offset, box + offset
            if behind in reach and ahead in free and ahead in needed:
                yield (boxes - {box} | {ahead}, box), reach[behind] + 1, action, behind


def _pushes_needed(room: Room) -> dict[int, int]:
    """Returns, for one box alone in the room, the pushes from each tile to its nearest target.
    Tiles from which no target can be reached are missing."""
    needed = dict.fromkeys(room.targets, 0)
    queue = sorted(needed)
    for tile in queue:  # breadth-first, backwards from the targets; the queue grows meanwhile
        for offset in room.moves.values():
            # A push to `tile` moves the box from `before`, with the player standing on `behind`.
            before, behind = tile - offset, tile - 2 * offset
            if before in room.floor and behind in room.floor and before not in needed:
                needed[before] = needed[tile] + 1
                queue.append(before)
    return needed


def _actions(room: Room, state: State, origins: Origins) -> tuple[str, ...]:
    """Returns the actions from the first move to the last push, traced back from the end."""
    backwards: list[str] = []
    while state in origins:
        state, action, behind = origins[state]
        backwards += [action, *reversed(_walk(room, state, behind))]
    return tuple(reversed(backwards))


def _walk(room: Room, state: State, goal: int) -> list[str]:
    """Returns the actions of a shortest walk of the player to a tile."""
    boxes, player = state
    distances = walking_distances(goal, room.floor - boxes, room.moves.values())
    actions: list[str] = []
    while player != goal:
        action = next(
            name
            for name, offset in room.moves.items()
            if distances.get(player + offset, distances[player]) < distances[player]
        )
        player += room.moves[action]
        actions.append(action)
    return actions
