"""The agent on OpenAI's client: it asks the model, runs its tool calls, and asks again."""

from typing import Any

from openai import AsyncOpenAI

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.tools import PYTHON_TOOL, answer_python_call

# YOURS (3 of 3): what the agent is told, and its tools. The embedded model knows these alone.
SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""
TOOLS: list[Any] = [PYTHON_TOOL]
MAX_TURNS = 2


async def solve(question: str, client: AsyncOpenAI) -> str:
    """Returns the answer to a question, after at most one round of tool calls."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]
    answer = ""
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(
            model="ajet", messages=messages, tools=TOOLS
        )
        reply = completion.choices[0].message
        answer = reply.content or ""
        messages.append(reply.model_dump(exclude_none=True))
        for call in reply.tool_calls or ():
            assert call.type == "function"
            result = await answer_python_call(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not reply.tool_calls:
            break
    return answer


class Agent(Workflow):
    """Hands the trained model to `solve` as an OpenAI client, whose requests stay in here."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        client = model_tuner.as_raw_openai_sdk_client()
        answer = await solve(workflow_task.task.main_query, client)
        return WorkflowOutput(metadata={"final_answer": answer})
