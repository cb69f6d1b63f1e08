"""A vocabulary tutor that yields events while it works: hints first, the translation at the end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from openai import AsyncOpenAI

WORDS = {"tree": "arbre", "bread": "pain", "house": "maison", "night": "nuit", "window": "fenêtre"}


@dataclass(frozen=True)
class Event:
    kind: str  # "hint", "answer"
    text: str


class Tutor:
    """Asks the model for a hint, then for the French word."""

    def __init__(self, llm: AsyncOpenAI, hints: int = 1) -> None:
        self.llm = llm
        self.hints = hints
        self.history: list[dict] = []

    async def _ask(self, text: str) -> str:
        self.history.append({"role": "user", "content": text})
        completion = await self.llm.chat.completions.create(
            model="gpt-4o-mini", messages=self.history, max_tokens=24
        )
        content = completion.choices[0].message.content or ""
        self.history.append({"role": "assistant", "content": content})
        return content

    async def lesson(self, word: str) -> AsyncIterator[Event]:
        for number in range(self.hints):
            text = f"Give hint {number + 1} for the French of '{word}', without the word itself."
            yield Event("hint", await self._ask(text))
        text = f"Now the French word for '{word}', alone and in lower case."
        yield Event("answer", (await self._ask(text)).strip().lower())


def is_right(word: str, answer: str) -> bool:
    return answer.strip(" .!'\"") == WORDS[word]


async def main() -> None:
    for word in WORDS:
        async for event in Tutor(AsyncOpenAI()).lesson(word):
            print(event.kind, event.text)


if __name__ == "__main__":
    asyncio.run(main())
