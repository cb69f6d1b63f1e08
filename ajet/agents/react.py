"""`react_agent` reasons, calls tools and answers, as a LangGraph graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import EndpointFault, EpisodeClosed, EpisodeTruncated
from ajet.core.workflow.graph import conversation, last_reply_text
from ajet.core.workflow.workflow import Workflow

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from ajet.core.workflow.tuner import ModelTuner

MODEL_ERRORS = (EpisodeTruncated, EpisodeClosed, EndpointFault)
"""Errors of the model, which end the episode. A tool that calls the model must not swallow them."""


class ReactAgent(Workflow):
    """Runs a graph that reasons and calls tools, by default that of LangChain's `create_agent`.
    `tools` are functions or LangChain tools; a tool's error becomes its answer, and the calls of
    one reply run concurrently. `max_turns` limits the calls of the model, as
    `ajet.rollout.multi_turn.max_steps` does: the episode is then truncated, and its last message is
    the answer."""

    name: ClassVar[str] = "react_agent"
    tools: ClassVar[Sequence[Any]] = ()
    system_prompt: ClassVar[str | None] = None
    reads = ()
    max_turns: ClassVar[int | None] = None

    def build_graph(self, model: BaseChatModel) -> Any:
        from langchain.agents import create_agent
        from langchain.agents.middleware import ToolErrorMiddleware

        return create_agent(
            model,
            list(self.tools),
            system_prompt=self.system_prompt,
            middleware=[ToolErrorMiddleware(tool_error)],
        )

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        model_tuner.tighten_limits(max_steps=self.max_turns)
        graph = self.build_graph(model_tuner.as_langchain_model())
        state = await graph.ainvoke({"messages": conversation(workflow_task)})
        return WorkflowOutput(metadata={"final_answer": last_reply_text(state["messages"])})


def tool_error(error: Exception, _request: Any) -> str | None:
    """Returns the tool's answer after it raised, or None to raise an error of the model."""
    return None if isinstance(error, MODEL_ERRORS) else f"Error: {type(error).__name__}: {error}"
