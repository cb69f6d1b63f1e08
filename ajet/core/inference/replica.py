"""The interface of one replica: an engine with weights of its own that can pause, sleep and reload.

    Router ──generate──> Replica   InProcessReplica   a model in this process
           ──health────>           VllmReplica        a vLLM server over HTTP
           ──load_weights──>       SglangReplica      an SGLang server over HTTP

A class that wraps a replica, such as `ActorReplica`, has the same interface.

Not covered: choosing the replica for a request (routing.py), starting a server (servers/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ajet.core.inference.endpoint import Completion, SamplingParams
    from ajet.core.weight_sync.manifest import SyncReport, WeightSource


class ReplicaDown(Exception):
    """A replica did not answer: the request may be sent to another one. The message names the
    replica and says what happened, in one line. `http_status` is that of a server's answer."""

    def __init__(self, message: str, *, http_status: int | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status


class Replica(Protocol):
    """An engine with weights of its own."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None:
        """The version of its weights, or None if it is not known."""
        ...

    def abort(self, request_id: str) -> None:
        """Ends a request with the tokens that it has; does not wait."""
        ...

    def leave(self, episode_id: str) -> None:
        """Records that an episode is over: its prefix may be dropped; does not wait."""
        ...

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples like `ModelEndpoint.generate`; raises `ReplicaDown` if there is no answer."""
        ...

    async def health(self) -> None:
        """Returns, or raises `ReplicaDown`."""
        ...

    async def pause(self, abort: bool = False) -> None:
        """Holds new requests, and returns when none runs. Requests that run are waited for; with
        `abort` they end now with the tokens that they have and `finish_reason="abort"`."""
        ...

    async def resume(self) -> None:
        """Lets held and new requests run; does nothing if the replica is not paused."""
        ...

    async def sleep(self) -> None:
        """Frees memory: the cache, and the weights if they can be moved off the device. Requests
        are held. The replica is paused first."""
        ...

    async def wake(self) -> None:
        """Allocates the memory of the weights, and that of the cache now or at `resume`. Requests
        are held until then."""
        ...

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Loads new weights, empties the cache and checks the checksum; completions then have
        `version`. Requests that run are waited for. After a `WeightsError` the replica still has
        the old weights."""
        ...

    async def empty_cache(self) -> None:
        """Forgets every cached prefix. Requests that run are not ended."""
        ...

    async def close(self) -> None:
        """Stops the replica; running requests fail with `ReplicaDown`."""
        ...
