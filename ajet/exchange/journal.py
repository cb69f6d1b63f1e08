"""Stores each episode that has ended, and only then tells its client.

GroupRunner ── ended ──> journal (finished.sqlite) ──> exchange.stored ──> the client's answer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ajet.core.rollout.request import EpisodeJournal

if TYPE_CHECKING:
    from ajet.core.trajectory.trajectory import Trajectory
    from ajet.exchange.exchange import EpisodeExchange


class AcknowledgingJournal:
    """Wraps the run's journal, or none: episodes of a validation are stored with it as a whole, and
    run again where it did not end."""

    def __init__(self, exchange: EpisodeExchange, journal: EpisodeJournal | None = None) -> None:
        self._exchange, self._journal = exchange, journal

    def take(self, group_id: str) -> Mapping[str, Trajectory]:
        """Implements `EpisodeJournal.take`; clients that ask again for these get their answers."""
        finished = {} if self._journal is None else self._journal.take(group_id)
        for trajectory in finished.values():
            self._exchange.restore(trajectory)
        return finished

    def put(self, trajectory: Trajectory) -> None:
        """Implements `EpisodeJournal.put`."""
        if self._journal is not None:
            self._journal.put(trajectory)
        self._exchange.stored(trajectory)
