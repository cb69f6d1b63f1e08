"""Continues an episode whose run was killed: requests that were answered before get those answers.

The workflow runs again from its start, with the same seeds. As long as it sends the same requests
in the same order, nothing is sampled; after another one its prompts are others, too.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams, WaveEndpoint


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call of the model. `request` is a hash of everything that was asked, so the completion is
    kept without its prompt."""

    request: str
    completion: Completion


class ContinuedEndpoint(ModelEndpoint):
    """The endpoint of one episode. `answered` are calls of an earlier attempt of the run; `on_call`
    is called with each other one, once it is answered."""

    def __init__(
        self,
        endpoint: ModelEndpoint,
        answered: Sequence[AnsweredCall],
        on_call: Callable[[AnsweredCall], None],
    ) -> None:
        self._endpoint, self._on_call = endpoint, on_call
        self._answered = {call.request: call.completion for call in answered}

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        request = hash_of_request(prompt_ids, sampling, request_id)
        if (earlier := self._answered.get(request)) is not None:
            await asyncio.sleep(0)  # concurrent calls are numbered as if the model took its time
            return replace(earlier, prompt_ids=tuple(prompt_ids))
        completion = await self._endpoint.generate(prompt_ids, sampling, request_id)
        # Routes are those of the whole prompt: megabytes a call, which the end stores again.
        if completion.finish_reason != "abort" and completion.routes is None:
            self._on_call(AnsweredCall(request, replace(completion, prompt_ids=())))
        return completion

    def abort(self, request_id: str) -> None:
        self._endpoint.abort(request_id)

    def enter(self, episode_id: str) -> None:
        self._endpoint.enter(episode_id)

    def leave(self, episode_id: str) -> None:
        self._endpoint.leave(episode_id)

    @property
    def waves(self) -> WaveEndpoint | None:
        return self._endpoint.waves


def hash_of_request(prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str) -> str:
    """Returns a hash of the request's number in its episode, its sampling with the seed, and the
    prompt."""
    digest = hashlib.sha256(f"{request_id} {sampling}\n".encode())
    digest.update(np.asarray(prompt_ids, "<i8").tobytes())
    return digest.hexdigest()
