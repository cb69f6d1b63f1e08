"""A ReAct agent that solves math problems with a Python tool."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""


class MathAgentWorkflow(Workflow):
    """One question, at most one tool call, one answer in a box."""

    name = "math_agent_workflow"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        from agentscope.agent import ReActAgent
        from agentscope.formatter import DashScopeChatFormatter
        from agentscope.memory import InMemoryMemory
        from agentscope.message import Msg
        from agentscope.tool import Toolkit

        from ajet.tools import execute_python_code

        toolkit = Toolkit()
        toolkit.register_tool_function(execute_python_code)
        agent = ReActAgent(
            name="math_react_agent",
            sys_prompt=SYSTEM_PROMPT,
            model=model_tuner,  # type: ignore[arg-type]  AgentScope only calls it
            formatter=DashScopeChatFormatter(),
            toolkit=toolkit,
            memory=InMemoryMemory(),
            max_iters=2,
        )
        agent.set_console_output_enabled(False)
        reply = await agent.reply(Msg("user", workflow_task.task.main_query, role="user"))
        return WorkflowOutput(metadata={"final_answer": reply.get_text_content() or ""})
