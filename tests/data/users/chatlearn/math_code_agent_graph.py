"""A graph of the user's own: the model may run programs."""
import asyncio
import copy
import re
from typing import Annotated, Any, Sequence, TypedDict

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, StateGraph
from langgraph.graph.message import add_messages
from omegaconf import DictConfig
from transformers import AutoProcessor, AutoTokenizer

from chatlearn.models.agent.agent_module import register
from chatlearn.models.agent.base_agent_graph import (AgentGraphOutput,
                                                     BaseAgentGraph)
from chatlearn.models.agent.chat_model import CustomChatModel


CODE_TOOL = {
    "type": "function",
    "function": {
        "name": "execute_python_code",
        "parameters": {
            "properties": {
                "code": {"description": "The Python program to run.", "type": "string"},
                "timeout": {
                    "default": 300,
                    "description": "The seconds after which the program is stopped.",
                    "type": "number",
                },
            },
            "required": ["code"],
            "type": "object",
        },
        "description": "Run a Python program and return its exit code, its standard output and "
        "its\nstandard error. Print whatever you want to see; nothing else comes back.",
    },
}


def execute_python_code(code: str, ground_truth: str, **kwargs) -> str:
    found = re.search(r"print\(([-+*/ ()\d]+)\)", code)
    result = eval(found.group(1), {"__builtins__": {}})
    if str(result) != ground_truth:
        return "The result is wrong."
    return f"<returncode>0</returncode><stdout>{result}\n</stdout><stderr></stderr>"


class AgentState(TypedDict):
    """The state of the agent."""

    messages: Annotated[Sequence[BaseMessage], add_messages]


@register("mathcode_agent")
class MathCodeAgentGraph(BaseAgentGraph):

    def __init__(
        self,
        agent_name: str,
        cfg: DictConfig,
        llm: Any,
        tokenizer: AutoTokenizer,
        processor: AutoProcessor = None,
        model_type: str = "llm",
        **kwargs
    ):
        super().__init__(
            agent_name, cfg, llm, tokenizer, processor, model_type, **kwargs
        )
        self.build_graph()

    def build_graph(self) -> StateGraph:

        self.chatmodel = CustomChatModel(
            model=self.agent_name,
            llm=self.llm,
            tokenizer=self.tokenizer,
            processor=self.processor,
            model_type=self.model_type,
        )

        async def call_model(
            state: AgentState,
            config: RunnableConfig,
        ):
            chatmodel = config["configurable"]["chat_model"]
            sampling_params = config["configurable"]["sampling_params"]
            message = await chatmodel.ainvoke(
                state["messages"], sampling_params=sampling_params
            )
            return {"messages": [message]}

        async def tool_node(state: AgentState, config: RunnableConfig):
            outputs = []
            for tool_call in state["messages"][-1].tool_calls:
                args = copy.deepcopy(tool_call["args"])
                args["ground_truth"] = config["configurable"]["ground_truth"]
                loop = asyncio.get_running_loop()
                try:
                    tool_result = await loop.run_in_executor(
                        None,
                        lambda: tools_by_name[tool_call["name"]](**args),
                    )
                except:
                    tool_result = "tool execute error"
                outputs.append(
                    ToolMessage(
                        content=tool_result,
                        name=tool_call["name"],
                        tool_call_id=tool_call["id"],
                    )
                )
            return {"messages": outputs}

        def should_continue(state: AgentState):
            messages = state["messages"]
            last_message = messages[-1]
            ai_messages_cnt = 0
            total_token_cnt = 0
            for message in messages:
                if message.type == "ai":
                    ai_messages_cnt += 1
                    total_token_cnt = len(message.response_metadata["loss_mask"])
            if (
                not last_message.tool_calls
                or ai_messages_cnt >= self.cfg.max_ai_message_turn
                or total_token_cnt >= self.cfg.max_total_token_length
            ):
                return "end"
            return "continue"

        workflow = StateGraph(AgentState)
        tools_by_name = {"execute_python_code": execute_python_code}
        self.chatmodel = self.chatmodel.bind_tools([CODE_TOOL])
        workflow.add_node("agent", call_model)
        workflow.add_node("tools", tool_node)
        workflow.set_entry_point("agent")
        workflow.add_conditional_edges(
            "agent", should_continue, {"continue": "tools", "end": END}
        )
        workflow.add_edge("tools", "agent")
        self.graph = workflow.compile()

    async def run(
        self, messages, sampling_params: dict[str, Any], **kwargs
    ) -> AgentGraphOutput:
        config = {
            "configurable": {
                "chat_model": self.chatmodel,
                "sampling_params": sampling_params,
                "ground_truth": kwargs["ground_truth"],
            }
        }
        output = await self.graph.ainvoke(input={"messages": messages}, config=config)
        loop = asyncio.get_running_loop()
        output = await loop.run_in_executor(
            None, lambda: self.convert_agent_graph_output(output)
        )
        return output
