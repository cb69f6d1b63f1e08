"""verl's LangGraph agent loop: a model that reasons, calls tools and answers.

┌─► agent ── calls ──► tools ─┐
└─────────────────────────────┘      no calls, or max_assistant_turns replies: the end
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from ajet.agents.react import MODEL_ERRORS
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.user_code.importing import line_of
from ajet.core.workflow.adapters.langchain import LangChainModel
from ajet.core.workflow.agent_loop import AgentLoopBase, AgentLoopOutput
from ajet.core.workflow.graph import last_reply_text
from ajet.core.workflow.loop_server import ServerManager


def ChatModel(
    *,
    model: str,
    client: ServerManager,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    max_parallel_calls: int | None = 1,
    tool_parser: str | None = None,
) -> LangChainModel:
    """Returns the model behind `client` for LangGraph. The name is verl's; as there, calls of a
    reply beyond `max_parallel_calls` are not made, and `tool_choice` is ignored. `max_tokens`
    limits one reply, the run's settings limit the episode; `ajet.rollout.tool_parser` parses the
    calls. The parameters `model`, `tokenizer` and `tool_parser` are there for verl's callers."""
    changes = {
        "max_parallel_calls": max_parallel_calls,
        "max_tokens": max_tokens,
        "heeds_tool_choice": False,
    }
    agent_model = client.model_tuner.as_langchain_model()
    assert isinstance(agent_model, LangChainModel)
    return agent_model.model_copy(update=changes)


class ReactAgentLoop(AgentLoopBase):
    """Runs the graph above. Derived classes set `tools`, in the class or in `init_class`, and may
    override `build_graph` or `run`. A custom loop uses `ChatModel(client=self.server_manager, …)`
    in its graph, and `convert_to_agent_output` for what `run` returns."""

    tools: ClassVar[Sequence[Any]]
    graph: ClassVar[Any]

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, **_others: Any) -> None:
        if not cls._class_initialized:
            cls._class_initialized = True
            cls.graph = cls.build_graph()

    @classmethod
    def build_graph(cls) -> Any:
        if not hasattr(cls, "tools"):
            raise ConfigError(
                f"{line_of(cls)}: {cls.__name__} has no tools: set cls.tools in init_class before "
                "super().init_class(…), or in the class",
                code=Code.TOOL_CLASS,
            )
        graph = StateGraph(MessagesState)
        graph.add_node("agent", _reply)
        graph.add_node("tools", ToolNode(list(cls.tools), handle_tool_errors=_tool_error))
        graph.set_entry_point("agent")
        graph.add_conditional_edges("agent", _next_node, ["tools", END])
        graph.add_edge("tools", "agent")
        return graph.compile()

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        turns = self.rollout_config.multi_turn
        model = ChatModel(
            model=self.config.actor_rollout_ref.model.path or "",
            client=self.server_manager,
            max_parallel_calls=turns.max_parallel_calls,
        )
        configurable = {
            "model": model.bind_tools(self.tools),
            "sampling_params": sampling_params,
            "max_assistant_turns": turns.max_assistant_turns,
        }
        messages = {"messages": list(kwargs["raw_prompt"])}
        state = await self.graph.ainvoke(messages, {"configurable": configurable})
        return convert_to_agent_output(state["messages"], self.rollout_config.response_length)


def convert_to_agent_output(messages: Sequence[Any], response_length: int) -> AgentLoopOutput:
    """Returns the timeline that ends with the last reply, up to `response_length` tokens of it."""
    replies = [message for message in messages if message.type == "ai"]
    if not replies:
        raise ValueError("convert_to_agent_output: the messages hold no reply of the model")
    ids = replies[-1].response_metadata["token_ids"]
    mask = replies[-1].response_metadata["loss_mask"]
    start = mask.index(1) if 1 in mask else len(mask)
    # verl counts a turn whenever the speaker changes: several tool answers in a row are one.
    roles = [message.type for message in messages if message.type != "system"]
    changes = sum(role != next_role for role, next_role in pairwise(roles))
    return AgentLoopOutput(
        prompt_ids=ids[:start],
        response_ids=ids[start:][:response_length],
        response_mask=mask[start:][:response_length],
        num_turns=changes + 1,
        extra_fields={"final_answer": last_reply_text(messages)},
    )


async def _reply(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    configurable = config["configurable"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    sampling_params = configurable["sampling_params"]
    reply = await configurable["model"].ainvoke(state["messages"], sampling_params=sampling_params)
    return {"messages": [reply]}


def _next_node(state: MessagesState, config: RunnableConfig) -> str:
    limit = config["configurable"]["max_assistant_turns"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    num_replies = sum(message.type == "ai" for message in state["messages"])
    calls = getattr(state["messages"][-1], "tool_calls", None)
    return "tools" if calls and not (limit and num_replies >= limit) else END


def _tool_error(error: Exception) -> str:
    """Returns the tool's answer after it raised. Errors of the model pass through the tool."""
    if isinstance(error, MODEL_ERRORS):
        raise error
    return f"Error: {type(error).__name__}: {error}"
