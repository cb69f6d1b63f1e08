"""The agent over plain HTTP. It knows nothing of ajet: an agent in any language would do the same.

The program that a model wrote runs in ajet's sandbox (ajet.tools).
"""

from typing import Any

import httpx

from ajet.tools import PYTHON_TOOL, answer_python_call

# YOURS (3 of 3): what the agent is told, and its tools. The embedded model knows these alone.
SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""
MAX_TURNS = 2


async def solve(question: str, base_url: str, api_key: str) -> str:
    """Returns the answer to a question, after at most one round of tool calls."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]
    reply: dict[str, Any] = {}
    # No timeout: training gives each episode a deadline. No certificates: they are loaded for each
    # client, and the address is plain HTTP on this machine.
    async with httpx.AsyncClient(timeout=None, verify=False) as client:
        for _ in range(MAX_TURNS):
            response = await client.post(
                f"{base_url}/chat/completions",
                headers={"authorization": f"Bearer {api_key}"},
                json={"model": "ajet", "messages": messages, "tools": [PYTHON_TOOL]},
            )
            reply = response.raise_for_status().json()["choices"][0]["message"]
            messages.append(reply)
            for call in reply.get("tool_calls") or ():
                result = await answer_python_call(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not reply.get("tool_calls"):
                break
    return reply.get("content") or ""
