"""One inference server: an engine with weights of its own, which can be paused, slept and reloaded.

    Router ──generate──> Replica   InProcessReplica   a model in this process
           ──health────>           VllmReplica        a vLLM server over HTTP
           ──load_weights──>       SglangReplica      an SGLang server over HTTP

Whoever wraps one (an actor, say) keeps this interface.

Not covered: which replica a request goes to (routing.py), starting a server (servers/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ajet.core.inference.endpoint import Completion, SamplingParams
    from ajet.core.weight_sync.manifest import SyncReport, WeightSource


class ReplicaDown(Exception):
    """The replica did not answer: the request may be sent to another one. The message says which
    replica and what happened, in one line."""


class Replica(Protocol):
    """An engine with weights of its own."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int | None:
        """The version of its weights; None where it is not known."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request with what it has sampled so far; does not wait."""
        ...

    def leave(self, episode_id: str) -> None:
        """The episode is over: its prefix may go; does not wait."""
        ...

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """As `ModelEndpoint.generate`; `ReplicaDown` where there is no answer."""
        ...

    async def health(self) -> None:
        """Returns, or raises `ReplicaDown`."""
        ...

    async def pause(self, abort: bool = False) -> None:
        """Hold new requests, and return when none runs: those that do are waited for, or with
        `abort` end now with what they have and `finish_reason="abort"`."""
        ...

    async def resume(self) -> None:
        """Let held and new requests run; nothing where it was not paused."""
        ...

    async def sleep(self) -> None:
        """Give memory back (the cache, the weights where the device has another place for them).
        Requests are held. The replica is paused first."""
        ...

    async def wake(self) -> None:
        """Take the memory again; requests are held until `resume`."""
        ...

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Take new weights, empty the cache, check the checksum; completions carry `version` from
        now on. Requests that run are waited for. `WeightsError`: the old weights are in place."""
        ...

    async def close(self) -> None:
        """Stop; requests under way fail with `ReplicaDown`."""
        ...
