"""The versions of the model that the server holds, one engine each. An engine's weights never
change, so a swap is one assignment: a request that began before it ends on its version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.engines.in_process import InProcessEngine


@dataclass(eq=False)
class ServedModel:
    """A version and its engine, which is kept ready between requests."""

    version: int
    engine: InProcessEngine
    num_in_flight: int = 0

    def __post_init__(self) -> None:
        self.engine.publish(self.version)
        self.engine.enter(f"version {self.version}")  # an engine without episodes frees its buffers


class ServedModels:
    """The newest `most` versions, and older ones that were let go with requests under way. Used by
    two threads: the server's, and the one that promotes."""

    def __init__(self, first: ServedModel, most: int) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._held = [first]
        self._let_go: list[ServedModel] = []

    @property
    def current(self) -> ServedModel:
        return self._held[-1]

    @property
    def versions(self) -> list[int]:
        return [model.version for model in self._held]

    def promote(self, model: ServedModel) -> None:
        """Makes this the current version, and lets the oldest ones go."""
        with self._lock:
            held = [*self._held, model]
            self._let_go += held[: -self._most]
            self._held = held[-self._most :]

    @contextmanager
    def answering(self, version: int | None) -> Iterator[ServedModel]:
        """Has this version, or the current one if it was let go, answer calls in the block."""
        with self._lock:
            held = (model for model in self._held if model.version == version)
            model = next(held, self.current)
            model.num_in_flight += 1
        before = _answering.set(model)
        try:
            yield model
        finally:
            _answering.reset(before)
            with self._lock:
                model.num_in_flight -= 1

    @property
    def has_idle(self) -> bool:
        """Tells whether a version that was let go has no request under way."""
        return any(not model.num_in_flight for model in self._let_go)

    async def close_idle(self) -> None:
        """Closes the versions that were let go and have no request under way."""
        with self._lock:
            idle = [model for model in self._let_go if not model.num_in_flight]
            self._let_go = [model for model in self._let_go if model not in idle]
        await _close(idle)

    async def close(self) -> None:
        """Closes all versions; requests under way fail."""
        await _close([*self._held, *self._let_go])


class AnsweringModel(ModelEndpoint):
    """Forwards every session's calls to the version that answers the request under way."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        return await _answering.get().engine.generate(prompt_ids, sampling, request_id)

    def abort(self, request_id: str) -> None:
        _answering.get().engine.abort(request_id)


_answering: ContextVar[ServedModel] = ContextVar("answering")


async def _close(models: Sequence[ServedModel]) -> None:
    for model in models:
        await model.engine.close()
