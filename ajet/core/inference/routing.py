"""Chooses the replica for a request. Pure bookkeeping: no I/O, no clock, no randomness."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_EPISODES = 1_000_000
"""The number of episodes remembered; the least recent ones are forgotten even without `leave`."""


class NoReplica(Exception):
    """Raised when no replica can take a request."""


def episode_of(request_id: str) -> str:
    """Returns the part of a request id before the turn."""
    return request_id.rpartition("/")[0] or request_id


class Routing:
    """Assigns requests to replicas. Not thread-safe.

    An episode stays with its replica, which has its prefix in the cache, until that has over `skew`
    requests more than the least busy one; then it moves permanently, because its cached prefix is
    now at the new replica. Of equally busy replicas the one that has waited longest is chosen. A
    request takes constant time: replicas are listed by their number of requests, and a request
    moves one of them to a neighbouring list.

        in flight   0: r3   1: r0 r4   2: r1         least = 0
    """

    def __init__(
        self, names: Iterable[str] = (), *, skew: int = 32, max_episodes: int = MAX_EPISODES
    ) -> None:
        self._skew = skew
        self._max_recent = max(1, max_episodes // 2)
        self._counts: dict[str, int] = {}  # number of requests by replica
        self._replica_of: dict[str, str] = {}  # replica by request
        # Replica by episode, in two generations: an episode that makes a request moves to the
        # recent one, and when that is full, the older one is forgotten.
        self._recent: dict[str, str] = {}
        self._older: dict[str, str] = {}
        # The replicas with n requests, at index n. OrderedDict, because a plain dict finds its
        # first key slowly after many deletions.
        self._by_load: list[OrderedDict[str, None]] = [OrderedDict()]
        self._least = 0
        self.num_moved = 0
        """Counts requests that did not go to their episode's replica, which was too busy or
        lost."""
        for name in names:
            self.joined(name)

    @property
    def names(self) -> list[str]:
        return list(self._counts)

    @property
    def num_in_flight(self) -> int:
        return len(self._replica_of)

    def in_flight(self, name: str) -> int:
        """Returns the number of requests that a replica has."""
        return self._counts[name]

    def assign(self, request_id: str) -> str:
        """Returns the replica for this request, which counts there until `done`."""
        self.done(request_id)  # a retry is taken off its former replica first
        if not self._counts:
            raise NoReplica
        episode_id = episode_of(request_id)
        home = self._home(episode_id)
        if home in self._counts and self._counts[home] - self._least <= self._skew:
            name = home
        else:
            name = next(iter(self._by_load[self._least]))
        if name != home:
            self.num_moved += home is not None
            self._recent[episode_id] = name
        self._replica_of[request_id] = name
        self._move(name, 1)
        return name

    def done(self, request_id: str) -> None:
        """Takes a request off its replica, if it has one."""
        name = self._replica_of.pop(request_id, None)
        if name is not None:
            self._move(name, -1)

    def leave(self, episode_id: str) -> str | None:
        """Forgets an episode that is over. Returns the replica that has its prefix."""
        return self._recent.pop(episode_id, None) or self._older.pop(episode_id, None)

    def joined(self, name: str) -> None:
        """Adds a replica, unless it exists."""
        if name not in self._counts:
            self._counts[name] = 0
            self._by_load[0][name] = None
            self._least = 0

    def lost(self, name: str) -> list[str]:
        """Removes a replica. Returns its requests, which have no replica any more."""
        count = self._counts.pop(name, None)
        if count is None:
            return []
        del self._by_load[count][name]
        self._least = min(self._counts.values(), default=0)
        requests = [request for request, replica in self._replica_of.items() if replica == name]
        for request_id in requests:
            del self._replica_of[request_id]
        return sorted(requests)

    def _home(self, episode_id: str) -> str | None:
        """Returns the episode's replica, and moves the episode to the recent generation."""
        home = self._recent.get(episode_id)
        if home is None:
            if len(self._recent) >= self._max_recent:
                self._recent, self._older = {}, self._recent
            home = self._older.pop(episode_id, None)
            if home is not None:
                self._recent[episode_id] = home
        return home

    def _move(self, name: str, step: int) -> None:
        """Changes a replica's number of requests by `step`, which is 1 or -1."""
        count = self._counts[name]
        new_count = self._counts[name] = count + step
        replicas = self._by_load[count]
        del replicas[name]
        if new_count == len(self._by_load):
            self._by_load.append(OrderedDict())
        self._by_load[new_count][name] = None
        # The least load changes by at most one, so no search is needed.
        if new_count < self._least or (count == self._least and not replicas):
            self._least = new_count
