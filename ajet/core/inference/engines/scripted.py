"""An engine for tests, which returns the tokens that a function returns.

engine = ScriptedEngine(lambda prompt_ids, sampling, request_id: tokenizer.encode("hello"))
"""

import asyncio
from collections.abc import Callable, Sequence

from ajet.core.inference.endpoint import Completion, FinishReason, ModelEndpoint, SamplingParams

Script = Callable[[Sequence[int], SamplingParams, str], Sequence[int]]


class ScriptedEngine(ModelEndpoint):
    """Completes each request with the result of `script`, every token at probability one."""

    policy_version = 0

    def __init__(self, script: Script) -> None:
        self._script = script

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Returns the script's tokens, cut at `max_tokens`."""
        await asyncio.sleep(0)  # real engines never answer in the same turn of the loop
        token_ids = tuple(self._script(prompt_ids, sampling, request_id))
        cut = token_ids[: sampling.max_tokens]
        finish: FinishReason = "stop" if len(cut) == len(token_ids) else "length"
        return Completion(tuple(prompt_ids), cut, (0.0,) * len(cut), finish, self.policy_version)
