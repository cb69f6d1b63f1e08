"""The agent in AgentScope: a `ReActAgent` with a Python tool."""

from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter
from agentscope.message import Msg
from agentscope.tool import Toolkit

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.tools import execute_python_code

# YOURS (3 of 3): what the agent is told, and its tools. The embedded model knows these alone.
SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""
TOOLS = [execute_python_code]


class Agent(Workflow):
    """One question, at most one round of tool calls, one answer."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        toolkit = Toolkit()
        for tool in TOOLS:
            toolkit.register_tool_function(tool)
        agent = ReActAgent(
            name="solver",
            sys_prompt=SYSTEM_PROMPT,
            model=model_tuner.as_agentscope_model(),
            formatter=DashScopeChatFormatter(),
            toolkit=toolkit,
            max_iters=2,
        )
        agent.set_console_output_enabled(False)
        reply = await agent.reply(Msg("user", workflow_task.task.main_query, role="user"))
        return WorkflowOutput(metadata={"final_answer": reply.get_text_content() or ""})
