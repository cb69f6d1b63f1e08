"""Lets a language model write tasks about chunks of documents, in rounds of calls that run at the
same time. The tasks are in the order of their calls, so the same replies give the same tasks.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.core.errors import ChatError
from ajet.core.seeding import derive
from ajet.sources.generation.documents import DocumentChunk
from ajet.sources.similarity import Deduplicator

if TYPE_CHECKING:
    from ajet.core.inference.chat_client import ChatClient

TASKS_A_CALL = 5
EXAMPLES_A_CALL = 3
ATTEMPTS = 3
MAX_ROUNDS = 6

SYSTEM = (
    "You write exercises for an assistant. Each has a question that can be understood on its own, "
    "without the text it was made from, and one short answer that can be checked. Reply with "
    'nothing but a JSON list: [{"question": "...", "answer": "..."}]'
)
MAX_BRACKETS = 32
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """One generated task, and the chunk that it was made from."""

    question: str
    answer: str
    chunk: DocumentChunk | None


@dataclass
class Generator:
    """Generates `num_tasks` tasks. `dropped` counts what was not used, by reason."""

    client: ChatClient
    chunks: Sequence[DocumentChunk]
    examples: Sequence[str]
    num_tasks: int
    seed: int
    sampling: dict[str, Any] = field(default_factory=dict)
    languages: Sequence[str] = ()
    deduplicator: Deduplicator | None = None
    dropped: Counter[str] = field(default_factory=Counter)

    async def make(self) -> list[GeneratedTask]:
        """Returns the tasks: fewer than `num_tasks` if the rounds are used up."""
        tasks: list[GeneratedTask] = []
        if self.deduplicator is not None:  # tasks must differ from the examples too
            self.deduplicator.novel_indices(self.examples)
        num_calls = 0
        for number in range(MAX_ROUNDS):
            missing = self.num_tasks - len(tasks)
            if missing <= 0:
                break
            calls = range(num_calls, num_calls + -(-missing // TASKS_A_CALL))
            num_calls = calls.stop
            new = await self._round(calls, tasks)
            if self.deduplicator is not None:
                novel = self.deduplicator.novel_indices([task.question for task in new])
                self.dropped["too much alike"] += len(new) - len(novel)
                new = [new[index] for index in novel]
            tasks += new[:missing]
            logger.info(
                "data_generation: round {}: {} of {} tasks", number + 1, len(tasks), self.num_tasks
            )
        return tasks

    async def _round(self, calls: range, tasks: Sequence[GeneratedTask]) -> list[GeneratedTask]:
        """Returns the tasks of one round of calls; raises `ChatError` if no call was answered: then
        the model cannot be reached."""
        # Failures become results, so that one of them does not throw away answers of other calls.
        results = await asyncio.gather(
            *(self._call(call, tasks) for call in calls), return_exceptions=True
        )
        faults = [result for result in results if isinstance(result, BaseException)]
        for fault in faults:
            if not isinstance(fault, ChatError) or len(faults) == len(results):
                raise fault
        self.dropped["calls without an answer"] += len(faults)
        return [task for result in results if isinstance(result, list) for task in result]

    async def _call(self, call: int, tasks: Sequence[GeneratedTask]) -> list[GeneratedTask]:
        chunk = self.chunks[call % len(self.chunks)] if self.chunks else None
        messages = self._messages(call, chunk, [task.question for task in tasks])
        # Each attempt has another seed; the same seed would get the same malformed reply.
        for attempt in range(ATTEMPTS):
            seed = derive(self.seed, "data_generation", call, attempt) % 2**31
            reply = await self.client.complete(messages, **(self.sampling | {"seed": seed}))
            pairs = parse_reply(reply)
            if pairs:
                return [GeneratedTask(question, answer, chunk) for question, answer in pairs]
            self.dropped["malformed replies"] += 1
        return []

    def _messages(
        self, call: int, chunk: DocumentChunk | None, previous_questions: Sequence[str]
    ) -> list[dict[str, Any]]:
        rng = random.Random(derive(self.seed, "data_generation", "examples", call))
        sampled_examples = rng.sample(list(self.examples), min(EXAMPLES_A_CALL, len(self.examples)))
        paragraphs = [f"Text:\n{chunk.text}"] if chunk else []
        if sampled_examples:
            paragraphs.append("Questions of this kind are wanted:\n" + _listed(sampled_examples))
        if previous_questions:
            # Only the latest ones: the prompt must not grow with the data set.
            recent = previous_questions[-4 * TASKS_A_CALL :]
            paragraphs.append("These were asked already; ask something else:\n" + _listed(recent))
        if self.languages:
            paragraphs.append(f"Write in this language: {', '.join(self.languages)}.")
        paragraphs.append(f"Write {TASKS_A_CALL} exercises{' about the text' if chunk else ''}.")
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "\n\n".join(paragraphs)},
        ]


def parse_reply(reply: str) -> list[tuple[str, str]]:
    """Returns the pairs of question and answer in the reply; other objects are ignored."""
    pairs = [(item.get("question"), item.get("answer")) for item in _objects(reply)]
    return [
        (question.strip(), str(answer).strip())
        for question, answer in pairs
        if isinstance(question, str)
        and question.strip()
        and isinstance(answer, str | int | float)
        and str(answer).strip()
    ]


def _objects(reply: str) -> list[dict[str, Any]]:
    """Returns the objects of the first JSON list of objects, whatever surrounds it."""
    for bracket in islice(re.finditer(r"\[", reply), MAX_BRACKETS):
        try:
            items, _ = _DECODER.raw_decode(reply, bracket.start())
        except (ValueError, RecursionError):
            continue
        if objects := [item for item in items if isinstance(item, dict)]:
            return objects
    return []


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)
