"""The agent, without a framework: it asks the model, runs its tool calls, and asks again."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.tools import PYTHON_TOOL, answer_python_call

# YOURS (3 of 3): what the agent is told, and its tools. The embedded model knows these alone.
SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""
MAX_TURNS = 2


class Agent(Workflow):
    """One question, at most one round of tool calls, one answer."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": workflow_task.task.main_query},
        ]
        answer = ""
        for _ in range(MAX_TURNS):
            reply = await model_tuner.chat(messages, [PYTHON_TOOL])
            answer = reply["content"]
            messages.append(reply)
            for call in reply.get("tool_calls", ()):
                result = await answer_python_call(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if "tool_calls" not in reply:
                break
        return WorkflowOutput(metadata={"final_answer": answer})
