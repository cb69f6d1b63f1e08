"""A client of `ajet serve`. In: a server's address and key. Out: episodes to run, and how they
ended. It needs httpx alone; it imports nothing else of ajet."""

from ajet.client.async_client import AsyncEpisode, AsyncEpisodeClient
from ajet.client.client import Episode, EpisodeClient
from ajet.client.protocol import (
    EpisodeData,
    EpisodeOver,
    Outcome,
    RunOver,
    ServeError,
    ServerUnreachable,
)

__all__ = [
    "AsyncEpisode",
    "AsyncEpisodeClient",
    "Episode",
    "EpisodeClient",
    "EpisodeData",
    "EpisodeOver",
    "Outcome",
    "RunOver",
    "ServeError",
    "ServerUnreachable",
]
