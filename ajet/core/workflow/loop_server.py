"""verl's `server_manager`, from which an agent loop gets tokens, over the model of an episode.

    output = await self.server_manager.generate(
        request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params
    )
    output.token_ids, output.log_probs     as verl has them; older loops take `output` for the ids

The recorded ids and log-probabilities of each call are trained. `request_id`, which chooses a
server in verl, has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ajet.core.workflow.sampling_params import own_sampling

if TYPE_CHECKING:
    from ajet.core.inference.endpoint import Completion
    from ajet.core.workflow.tuner import ModelTuner


class TokenOutput(list[int]):
    """The sampled ids, with the attributes of verl's class of this name."""

    routed_experts = None
    num_preempted = None

    def __init__(self, completion: Completion) -> None:
        super().__init__(completion.token_ids)
        self.log_probs = list(completion.logprobs)
        self.stop_reason = "completed"
        self.extra_fields: dict[str, Any] = {}

    @property
    def token_ids(self) -> list[int]:
        return list(self)


class ServerManager:
    """Gives an agent loop the model of its episode."""

    def __init__(self, model_tuner: ModelTuner) -> None:
        self.model_tuner = model_tuner

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int] | Mapping[str, Any],
        sampling_params: Mapping[str, Any] | None = None,
        priority: int = 0,
        **unsupported: Any,
    ) -> TokenOutput:
        """Samples the continuation of `prompt_ids`. verl's other arguments must be empty."""
        if used := [name for name, value in unsupported.items() if value]:
            raise TypeError(f"server_manager.generate takes no {', '.join(used)}: only text")
        ids = prompt_ids["input_ids"] if isinstance(prompt_ids, Mapping) else prompt_ids
        run = SimpleNamespace(**self.model_tuner.sampling_params)
        sampling = own_sampling(sampling_params, run)
        return TokenOutput(await self.model_tuner.generate(ids, **sampling))
