"""The workflow of an episode that a client runs: it offers the episode and waits for its end. The
episode's deadline (`ajet.rollout.episode_timeout_s`) starts with the claim.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from ajet.core.config.tree import CLIENT_OWNED
from ajet.core.errors import EnvironmentFault, WrongKind
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.user_code.activity import in_call
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow
from ajet.serve.exchange.exchange import Abort, Claim, EpisodeExchange, result_within

NEEDS_SERVER = (
    f"ajet.rollout.user_workflow={CLIENT_OWNED}: its episodes are run by clients: start the run "
    "with `ajet serve --conf …`"
)


class ClientAborted(Exception):
    """The client gave its episode up."""


class ClientOwned(Workflow):
    """Runs an episode by waiting for a client that does."""

    name = CLIENT_OWNED
    reads = ()
    exchange: ClassVar[EpisodeExchange | None] = None

    def __init__(self) -> None:
        if self.exchange is None:
            raise WrongKind(NEEDS_SERVER)

    @classmethod
    def of(cls, at: EpisodeExchange) -> type[ClientOwned]:
        """Returns the class whose episodes are offered at this exchange."""
        return type(cls.__name__, (cls,), {"exchange": at})

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        assert self.exchange is not None
        with self.exchange.offer(workflow_task) as claim:
            with model_tuner.pause_deadline(), in_call("a client, which begins it"):
                request = await result_within(claim.claimed)
            assert request is not None  # without a time limit there is a result
            # The task came with the client's request, after the episode was planned.
            if claim.task is not None and claim.task is not workflow_task.task:
                model_tuner.set_task(claim.task)
            claim.access.set_result(
                {agent: model_tuner.as_oai_baseurl_apikey(agent) for agent in request.agents}
            )
            return await self._result(self.exchange, claim)

    async def _result(self, exchange: EpisodeExchange, claim: Claim) -> WorkflowOutput:
        """Returns the client's output. An episode that it gives up is an error of the agent, and
        one whose client is silent an error of the environment."""
        ended = asyncio.wrap_future(claim.ended)
        with in_call("its client"):
            while not ended.done():
                left_s = exchange.patience_s(claim)
                if left_s <= 0:
                    reason = (
                        f"its client was silent for {exchange.heartbeat_s:g} s "
                        "(ajet.serve.heartbeat_s)"
                    )
                    exchange.lose(claim, reason)
                    raise EnvironmentFault(reason)
                await asyncio.wait({ended}, timeout=left_s)
        result = ended.result()
        if isinstance(result, Abort):
            raise ClientAborted(f"its client gave it up: {result.reason}")
        return result
