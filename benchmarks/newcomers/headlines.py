"""Two agents write a headline: an author drafts, an editor says OK or what to change."""

import asyncio

from openai import AsyncOpenAI

AUTHOR = "You write headlines of at most six words. Answer with the headline alone."
EDITOR = (
    "You are an editor. A headline is good if it has at most six words, names the place, and ends "
    "without a full stop. Say OK if it is good, otherwise what to change in one sentence."
)


class Desk:
    def __init__(self, client: AsyncOpenAI, model: str = "gpt-4o-mini", rounds: int = 2) -> None:
        self.client = client
        self.model = model
        self.rounds = rounds

    async def _say(self, role: str, messages: list[dict]) -> str:
        completion = await self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "system", "content": role}, *messages],
            max_tokens=48,
        )
        return completion.choices[0].message.content or ""

    async def write(self, story: str) -> str:
        talk = [{"role": "user", "content": story}]
        headline = await self._say(AUTHOR, talk)
        for _ in range(self.rounds):
            question = f"Story: {story}\nHeadline: {headline}"
            verdict = await self._say(EDITOR, [{"role": "user", "content": question}])
            if verdict.strip().upper().startswith("OK"):
                break
            talk += [
                {"role": "assistant", "content": headline},
                {"role": "user", "content": f"The editor says: {verdict}"},
            ]
            headline = await self._say(AUTHOR, talk)
        return headline.strip()


async def main() -> None:
    desk = Desk(AsyncOpenAI())
    stories = (
        "In Lisbon a tram has stopped in front of a cat for an hour.",
        "The bakers of Lyon have baked a loaf of forty metres.",
    )
    for story in stories:
        print(await desk.write(story))


if __name__ == "__main__":
    asyncio.run(main())
