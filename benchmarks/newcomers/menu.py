"""A waiter on AgentScope: looks dishes up, and adds what a table has to pay."""

import asyncio
import os

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, ToolResponse

DISHES = {"soup": 6, "salad": 8, "stew": 14, "cake": 5, "tea": 3, "water": 2}


def price(dish: str) -> ToolResponse:
    """Returns the price of a dish.

    Args:
        dish: Its name on the menu, in lower case.
    """
    found = DISHES.get(dish)
    text = "not on the menu" if found is None else f"{found} coins"
    return ToolResponse(content=[TextBlock(type="text", text=text)])


def add(numbers: list[int]) -> ToolResponse:
    """Returns the sum of numbers.

    Args:
        numbers: What to add.
    """
    return ToolResponse(content=[TextBlock(type="text", text=str(sum(numbers)))])


def make_waiter() -> ReActAgent:
    toolkit = Toolkit()
    toolkit.register_tool_function(price)
    toolkit.register_tool_function(add)
    return ReActAgent(
        name="waiter",
        sys_prompt="You are a waiter. Look prices up, and end with the sum as one number.",
        model=OpenAIChatModel(
            model_name="gpt-4o-mini", api_key=os.environ.get("OPENAI_API_KEY", "none"), stream=False
        ),
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
        max_iters=5,
    )


async def main() -> None:
    waiter = make_waiter()
    reply = await waiter(Msg("guest", "We had two soups and a tea.", "user"))
    print(reply.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
