"""Finds the shortest solution of a Sokoban room, in moves, by A* over pushes.

    solve(room, max_states)   ->   ("Right", "Down", "Right", ...); None: there is none, or it is
                                   too far to find

A state is the position of the boxes and the player directly after a push; the player walks the
shortest way to the next push. The heuristic is the sum of the pushes that each box needs to its
nearest target if there were no other box; a tile from which no target can be reached is a dead end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from ajet.environments.sokoban_rooms import Room, walking_distances

State = tuple[frozenset[int], int]
Origins = dict[State, tuple[State, str, int]]
"""Maps a state to its predecessor: the state before, the push, and the tile from which the player
pushed."""


def solve(room: Room, max_states: int) -> tuple[str, ...] | None:
    """Returns the moves of a shortest solution, or None if there is none or `max_states` states
    were visited."""
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
