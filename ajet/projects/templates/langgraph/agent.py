"""The agent as a LangGraph graph, made by LangChain's `create_agent`."""

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.tools import python_tool

# YOURS (3 of 3): what the agent is told, and its tools. The embedded model knows these alone.
SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""
TOOLS = [python_tool()]


class Agent(Workflow):
    """One question, at most one round of tool calls, one answer."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        model_tuner.tighten_limits(max_steps=2)  # calls of the model
        graph = create_agent(model_tuner.as_langchain_model(), TOOLS, system_prompt=SYSTEM_PROMPT)
        question = HumanMessage(workflow_task.task.main_query)
        state = await graph.ainvoke({"messages": [question]})
        return WorkflowOutput(metadata={"final_answer": str(state["messages"][-1].text)})
