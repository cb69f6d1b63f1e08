"""The reader `data_generation`: a language model generates tasks from documents, once. Replies are
stored, so a run that was killed requests only what is missing. Validation tasks are those of the
query_reader, because people wrote them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.core.config.nested import with_values
from ajet.core.config.task_reader import DataGeneration
from ajet.core.errors import DataError, KeyMissing
from ajet.core.errors.codes import Code
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.task.jsonl import jsonl_text, read_jsonl
from ajet.core.task.reader import BaseTaskReader, make_reader, tasks_from_rows
from ajet.core.task.task import Task
from ajet.sources.generation.documents import DocumentChunk, read_chunks
from ajet.sources.generation.generator import SYSTEM, GeneratedTask, Generator
from ajet.sources.similarity import Deduplicator

SECTION = "ajet.task_reader.data_generation"
TIMEOUT_S = 600.0


class DataGenerationReader(BaseTaskReader):
    """Generates the training tasks, or reads those that were generated before."""

    def get_training_tasks(self) -> list[Task]:
        examples = self._examples.get_training_tasks() if self._examples else []
        chunks = read_chunks(self._section.document_reader, self.config.base_dirs, self._cache_dir)
        if not examples and not chunks:
            raise KeyMissing(
                f"{SECTION}: there is nothing to make tasks of: give "
                "document_reader.document_path or query_reader.type"
            )
        file = self._cache_dir / f"tasks-{self._key(chunks, examples)}.jsonl"
        if not file.is_file():
            rows_ = self._generate(chunks, [task.main_query for task in examples])
            once = {row["task_id"]: row for row in rows_}
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(file, jsonl_text(list(once.values())))
        rows = read_jsonl(file)
        return tasks_from_rows(rows, split="train", source=str(file), query_field="main_query")

    def get_validation_tasks(self) -> list[Task]:
        return self._examples.get_validation_tasks() if self._examples else []

    @property
    def _section(self) -> DataGeneration:
        return self.config.ajet.task_reader.data_generation

    @property
    def _cache_dir(self) -> Path:
        return Path(self._section.cache_dir).expanduser()

    @cached_property
    def _examples(self) -> BaseTaskReader | None:
        """The query_reader, with a copy of the config in which it is the task reader."""
        query = self._section.query_reader
        if query.type is None:
            return None
        names = ("type", "jsonl_dataset_file", "huggingface_dat_repo")
        section = "ajet.task_reader"
        values = {f"{section}.{name}": getattr(query, name) for name in names}
        return make_reader(with_values(self.config, values))

    def _key(self, chunks: Sequence[DocumentChunk], examples: Sequence[Task]) -> str:
        """Returns a hash of everything that the tasks depend on, so another run with the same
        settings, or a resumed one, reads the same tasks."""
        section = self._section
        params = section.deduplication_filter.params
        depends_on = {
            "pieces": [asdict(chunk) for chunk in chunks],
            "examples": [task.main_query for task in examples],
            "prompt": SYSTEM,
            "settings": section.model_dump(
                include={"task_num", "llm_model", "base_url", "llm_response_length"}
            ),
            "sampling": section.sampling_params,
            "languages": section.document_reader.languages,
            "unlike": section.deduplication_filter.enabled
            and [params.similarity_threshold, params.model, params.base_url],
            "seed": self.config.ajet.seed,
        }
        text = json.dumps(depends_on, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _generate(
        self, chunks: Sequence[DocumentChunk], examples: Sequence[str]
    ) -> list[dict[str, Any]]:
        from ajet.core.inference.chat_client import ChatClient

        section, deduplication = self._section, self._section.deduplication_filter
        client = ChatClient(
            section.llm_model,
            section.base_url,
            cache_path=self._cache_dir / "replies.sqlite",
            max_parallel=section.num_workers,
            timeout_s=TIMEOUT_S,
        )
        generator = Generator(
            client,
            chunks,
            examples,
            section.task_num,
            self.config.ajet.seed,
            sampling={"max_tokens": section.llm_response_length, **section.sampling_params},
            languages=section.document_reader.languages,
            deduplicator=Deduplicator(deduplication.params) if deduplication.enabled else None,
        )
        tasks = run_bounded(_make(generator, client))
        self._report(generator, len(tasks))
        return [_row(task) for task in tasks]

    def _report(self, generator: Generator, num_tasks: int) -> None:
        """Logs how many tasks were generated, with a warning if they are fewer than configured;
        raises `DataError` if there are none."""
        reasons = [f"{count} {reason}" for reason, count in generator.dropped.items() if count]
        dropped = ", ".join(reasons)
        summary = f"{num_tasks} of {generator.num_tasks} tasks"
        summary += f" ({dropped})" if dropped else ""
        if not num_tasks:
            raise DataError(
                f"{SECTION}: {self._section.llm_model} made {summary}", code=Code.TASKS_NOT_MADE
            )
        if num_tasks < generator.num_tasks:
            logger.warning("data_generation: only {}", summary)
        else:
            logger.info("data_generation: {}", summary)


async def _make(generator: Generator, client: Any) -> list[GeneratedTask]:
    try:
        return await generator.make()
    finally:
        await client.close()


def _row(task: GeneratedTask) -> dict[str, Any]:
    name = hashlib.sha256(f"{task.question}\n{task.answer}".encode()).hexdigest()[:16]
    source = {"document": task.chunk.document, "piece": task.chunk.number} if task.chunk else {}
    return {
        "task_id": f"generated-{name}",
        "main_query": task.question,
        "answer": task.answer,
        **source,
    }
