"""Writes captions from a stream, and stops reading as soon as a caption is long enough."""

import asyncio
import os
import re
from collections.abc import AsyncIterator

from openai import AsyncOpenAI

STYLE = (
    "You write one caption for a photograph, of five to nine words, with a colour in it. "
    "No quotes, no hashtags."
)
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "golden", "grey")


async def pieces(client: AsyncOpenAI, description: str) -> AsyncIterator[str]:
    stream = await client.chat.completions.create(
        model=os.environ.get("CAPTION_MODEL", "gpt-4o-mini"),
        messages=[
            {"role": "system", "content": STYLE},
            {"role": "user", "content": f"The photograph shows {description}."},
        ],
        temperature=0.9,
        max_tokens=40,
        stream=True,
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def caption(client: AsyncOpenAI, description: str) -> str:
    text = ""
    async for piece in pieces(client, description):
        text += piece
        if "\n" in text.strip() or len(text.split()) > 12:
            break
    return text.strip().partition("\n")[0]


def is_good(text: str) -> bool:
    words = re.findall(r"[\w'-]+", text.lower())
    return 5 <= len(words) <= 9 and any(colour in words for colour in COLOURS)


async def main() -> None:
    client = AsyncOpenAI()
    for description in ("a boat on a lake", "a child with a kite", "an old door"):
        text = await caption(client, description)
        print("good" if is_good(text) else "poor", text)


if __name__ == "__main__":
    asyncio.run(main())
