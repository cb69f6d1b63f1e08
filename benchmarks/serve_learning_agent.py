"""A calculator's assistant, as its held-out tasks play it and as a product around the model does.

The model writes a program of one line, the product computes it and shows what the model says of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask
from ajet.tools import PYTHON_TOOL

SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""
Message = dict[str, Any]
Chat = Callable[[list[Message]], Awaitable[Message]]
"""Asks the model, which is offered PYTHON_TOOL, and returns the assistant's message."""


async def answer(chat: Chat, question: str) -> str:
    """Returns what the user is shown; two calls of the model, or one if it wants no program."""
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": question},
    ]
    reply = await chat(messages)
    calls = reply.get("tool_calls") or []
    if not calls:
        return reply.get("content") or ""
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": computed(calls[0])}
    reply = await chat([*messages, reply, result])
    return reply.get("content") or ""


def computed(call: Message) -> str:
    """Returns what the tool says: the value of sums, products and quotients of integers."""
    code = str(json.loads(call["function"]["arguments"]).get("code", ""))
    found = re.fullmatch(r"print\(([0-9+*/ -]{1,40})\)", code)
    out, status = "", 1
    if found and "**" not in code:
        with suppress(ArithmeticError, ValueError):
            out, status = f"{_value(found[1])}\n", 0
    return f"<returncode>{status}</returncode><stdout>{out}</stdout><stderr></stderr>"


def _value(expression: str) -> int:
    """Returns the value of integers joined by +, -, * and //, from left to right by precedence."""
    total, sign = 0, 1
    for part in re.split(r"([+-])", expression):
        if part in ("+", "-"):
            sign = 1 if part == "+" else -1
            continue
        factors = re.split(r"(\*|//)", part)
        value = int(factors[0])
        for operator, factor in zip(factors[1::2], factors[2::2], strict=True):
            value = value * int(factor) if operator == "*" else value // int(factor)
        total += sign * value
    return total


class Assistant(Workflow):
    """The held-out tasks: the product without its HTTP."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        async def chat(messages: list[Message]) -> Message:
            return await model_tuner.chat(messages, [PYTHON_TOOL])

        said = await answer(chat, workflow_task.task.main_query)
        return WorkflowOutput(metadata={"final_answer": said})
