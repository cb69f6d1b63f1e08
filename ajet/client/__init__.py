"""A client of `ajet serve`. Of the dependencies it needs only httpx, and nothing else of ajet."""

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
