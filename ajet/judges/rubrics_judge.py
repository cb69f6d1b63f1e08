"""Judges of `judge_type: rubrics_auto_grader`: a model grades by criteria.

A run's folder has auto_grader.json (the settings, and criteria that hold for every question) and
auto_grader_questions.jsonl (one line a question). Both may be edited by hand.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core import seeding
from ajet.core.config.task_judge import Criterion, RubricsAutoGrader
from ajet.core.errors import ConfigError, DataError, RecordError
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.process.file_lock import take
from ajet.core.process.shared_call import SharedCalls
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.grader import LISTWISE, POINTWISE, Grader, checked_template, fenced
from ajet.judges.llm import verdict_with_reason
from ajet.judges.reply_format import CriteriaFormat

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

PROMPT_KEY = "ajet.task_judge.rubrics_auto_grader.custom_evaluation_prompt"
GRADER_JSON, QUESTIONS_JSONL = "auto_grader.json", "auto_grader_questions.jsonl"
LOCK_POLL_S = 0.2
LANGUAGES = {"en": "English", "zh": "Chinese"}
DEFAULT_MODEL = "qwen-max"
SETTINGS = (
    "grader_mode",
    "language",
    "query_specific_generate_number",
    "enable_categorization",
    "categories_number",
    "num_examples",
    "query_field",
    "reference_field",
)
Criteria = tuple[Criterion, ...]


class Rubrics:
    """Has the criteria of the YAML, always; else those made from examples (the rows of
    `dataset_file`, or `num_examples` training tasks drawn by the run's seed), merged into
    categories if `enable_categorization`; else those made for each question when it is first
    judged. Generation counts in the deadline of the judgement that waits for it.

    On a cluster every rollout worker has a judge. The one that generates criteria holds a lock in
    the run folder; the others wait for the lock and read what it stored."""

    def __init__(self, config: AjetConfig, grader: Grader) -> None:
        self._config = config
        self._section: RubricsAutoGrader = config.ajet.task_judge.rubrics_auto_grader
        self._grader = grader
        self._shared: Criteria = tuple(self._section.rubrics)
        self._by_question: dict[str, Criteria] = {}
        self._calls = SharedCalls[Criteria]()
        folder = config.run_folder
        is_kept = folder.is_dir() and not self._section.rubrics
        self._store = _RubricStore(folder, self._creation_settings()) if is_kept else None
        if self._store is not None:
            self._shared, self._by_question = self._store.read()

    @property
    def is_shared(self) -> bool:
        """Whether one rubric holds for every question."""
        section = self._section
        has_examples = section.dataset_file.training.file_path is not None
        return bool(section.rubrics) or section.enable_categorization or has_examples

    async def criteria_for(self, task: Task) -> Criteria:
        """Returns the task's criteria, generating them if there are none. Concurrent callers wait
        for one generation."""
        if self.is_shared:
            return self._shared or await self._calls.join("", self._create_shared)
        # By content rather than task id: rows with the same question share their criteria.
        content = json.dumps([self._grader.question(task), self._grader.reference(task)])
        key = hashlib.sha256(content.encode()).hexdigest()[:32]
        criteria = self._by_question.get(key)
        return criteria or await self._calls.join(key, lambda: self._create_for_question(key, task))

    async def _create_for_question(self, key: str, task: Task) -> Criteria:
        """Generates and stores the criteria of one question, unless another process has done so
        meanwhile."""
        if self._store is None:
            criteria = await self._generate_from_example(self._described(task))
        else:
            async with self._store.creation_lock(key):
                # Read under the lock: the process that held it before may have stored them.
                self._by_question |= self._store.read()[1]
                criteria = self._by_question.get(key, ())
                if not criteria:
                    criteria = await self._generate_from_example(self._described(task))
                    self._store.add(key, self._grader.question(task), criteria)
        self._by_question[key] = criteria
        return criteria

    async def _create_shared(self) -> Criteria:
        """Generates and stores the criteria that hold for every question, unless another process
        has done so meanwhile."""
        if self._store is None:
            self._shared = await self._generate_shared()
        else:
            async with self._store.creation_lock("shared"):
                self._shared = self._store.read()[0]
                if not self._shared:
                    self._shared = await self._generate_shared()
                    self._store.write(self._shared)
        return self._shared

    async def _generate_shared(self) -> Criteria:
        """Generates criteria from each example, joins them, and merges them into categories if the
        config asks for it."""
        examples = await asyncio.to_thread(self._examples)  # reads files
        rubrics = await asyncio.gather(*map(self._generate_from_example, examples))
        texts = list(
            dict.fromkeys(criterion.text for criteria in rubrics for criterion in criteria)
        )
        if self._section.enable_categorization:
            texts = await self._merged(texts)
        return tuple(Criterion(text=text) for text in texts)

    async def _generate_from_example(self, example: str) -> Criteria:
        number = self._section.query_specific_generate_number
        prompt = (
            f"Write a rubric for judging answers to a task: {number} criteria, each one sentence "
            "that says what a good answer does, that can be checked in the answer alone, and that "
            f"tells good answers from bad ones. Write in {self._language}.\n\n{example}"
        )
        texts = await self._grader.ask(prompt, CriteriaFormat(number, number))
        return tuple(Criterion(text=text) for text in texts)

    async def _merged(self, texts: Sequence[str]) -> list[str]:
        most = self._section.categories_number
        prompt = (
            "These criteria were written for single tasks. Merge them into categories that hold "
            f"for all such tasks: at most {most}, each one sentence that begins with the "
            f"category's name. Write in {self._language}.\n\n"
            + fenced("criteria", "\n".join(texts))
        )
        return list(await self._grader.ask(prompt, CriteriaFormat(1, most)))

    @property
    def _language(self) -> str:
        return LANGUAGES.get(self._section.language, self._section.language)

    def _examples(self) -> list[str]:
        from ajet.core.task.reader import make_reader

        file = self._section.dataset_file.training.file_path
        tasks = self._graded(file) if file else make_reader(self._config).get_training_tasks()
        number = min(self._section.num_examples, len(tasks))
        draw = random.Random(seeding.derive(self._config.ajet.seed, "rubrics"))
        chosen = sorted(draw.sample(range(len(tasks)), number))
        return [self._described(tasks[n]) + (_grades(tasks[n]) if file else "") for n in chosen]

    def _graded(self, file: str) -> list[Task]:
        from ajet.core.task.jsonl import existing_file, read_jsonl
        from ajet.core.task.reader import tasks_from_rows

        key = "ajet.task_judge.rubrics_auto_grader.dataset_file.training.file_path"
        path = existing_file(file, self._config.base_dirs, key)
        field = self._config.ajet.task_reader.query_field
        return tasks_from_rows(
            read_jsonl(path), split="graded", source=str(path), query_field=field
        )

    def _described(self, task: Task) -> str:
        question = fenced("task", self._grader.question(task))
        graded = self._section.dataset_file.training.file_path is not None
        reference = None if graded else self._grader.reference(task)
        return "\n".join(filter(None, [question, fenced("reference", reference)]))

    def _creation_settings(self) -> dict[str, Any]:
        settings = {name: getattr(self._section, name) for name in SETTINGS}
        return settings | {
            "model_name": grading_model(self._config),
            "grader_name": self._section.grader_name,
            "dataset_file": self._section.dataset_file.training.file_path,
            "seed": self._config.ajet.seed,
        }


def grading_model(config: AjetConfig) -> str:
    return config.ajet.task_judge.model_name or DEFAULT_MODEL


def _grades(task: Task) -> str:
    row = task.metadata
    if "answer" in row and "score" in row:
        return f"\nAn answer with score {row['score']}:\n{fenced('answer', str(row['answer']))}"
    candidates = row.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise DataError(
            f"graded example {task.task_id}: give answer and score, or candidates (it has "
            f"{sorted(row)})",
            code=Code.ROW_FORM,
        )
    if not all(isinstance(c, dict) and {"answer", "rank"} <= set(c) for c in candidates):
        raise DataError(
            f"graded example {task.task_id}: a candidate has an answer and a rank",
            code=Code.ROW_FORM,
        )
    return "".join(
        f"\nAn answer of rank {candidate['rank']}:\n{fenced('answer', str(candidate['answer']))}"
        for candidate in candidates
    )


class _RubricStore:
    """The two files in a run's folder, which several processes share."""

    def __init__(self, folder: Path, creation_settings: dict[str, Any]) -> None:
        self._folder = folder
        self._grader = folder / GRADER_JSON
        self._questions = folder / QUESTIONS_JSONL
        self._creation_settings = creation_settings

    def read(self) -> tuple[Criteria, dict[str, Criteria]]:
        """Returns the shared criteria and those of questions that an earlier attempt or another
        process stored; raises `ConfigError` if they were made with other settings."""
        if not self._grader.exists():
            return (), {}
        try:
            stored = json.loads(self._grader.read_text(encoding="utf-8"))
            shared = _criteria(stored["criteria"])
            made_with = dict(stored["made_with"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{self._grader} cannot be read: {error!r}; move it away") from None
        changed = [k for k, v in self._creation_settings.items() if made_with.get(k) != v]
        if changed:
            raise ConfigError(
                f"{self._grader} was made with another {' and '.join(changed)}: move it away with "
                f"{QUESTIONS_JSONL} to make new rubrics, or choose another experiment_name",
                code=Code.RUBRICS_CHANGED,
            )
        if not self._questions.exists():
            return shared, {}
        # A last line without a newline is skipped: another process is writing it, or was killed
        # while it did.
        lines = self._questions.read_text(encoding="utf-8").split("\n")[:-1]
        try:
            rows = [json.loads(line) for line in lines if line.strip()]
            return shared, {row["key"]: _criteria(row["criteria"]) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            problem = " ".join(str(error).split())[:100]
            raise RecordError(
                f"{self._questions} cannot be read: {type(error).__name__}: {problem}; move it away"
            ) from error

    @asynccontextmanager
    async def creation_lock(self, key: str) -> AsyncIterator[None]:
        """Holds a lock for one key, so that one process at a time generates its criteria. The file
        is removed once the criteria are stored: a process that waits for it, or makes a new one,
        then finds them. It stays if nothing was generated."""
        path = self._folder / f".auto_grader.{key}.lock"
        with path.open("w") as file:
            # A blocking flock would block the event loop. The lock is held until `file` is closed.
            while True:
                try:
                    take(file, wait=False)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOCK_POLL_S)
            yield
            path.unlink(missing_ok=True)

    def write(self, shared: Criteria) -> None:
        stored = {
            "made_with": self._creation_settings,
            "criteria": [c.model_dump() for c in shared],
        }
        write_text_atomically(self._grader, json.dumps(stored, ensure_ascii=False, indent=2) + "\n")

    def add(self, key: str, question: str, criteria: Criteria) -> None:
        if not self._grader.exists():
            self.write(())
        row = {"key": key, "question": question, "criteria": [c.model_dump() for c in criteria]}
        with self._questions.open("a+b") as file:
            take(file)  # held until the file is closed; writing one line is quick
            # A last line without a newline was left by a killed process. Appending to it would
            # leave a broken line in the middle of the file.
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _criteria(rows: list[Any]) -> Criteria:
    return tuple(Criterion.model_validate(row) for row in rows)


class RubricsJudge(BaseJudge):
    """One score a criterion for each answer; the reward is their weighted mean. If one rubric holds
    for every question, each criterion's score is logged as ``{grader_name}/criterion_1``, …."""

    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self._grader = _grader(config, POINTWISE)
        self._rubrics = Rubrics(config, self._grader)
        self._name = config.ajet.task_judge.rubrics_auto_grader.grader_name

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        criteria = await self._rubrics.criteria_for(workflow_task.task)
        grade = await self._grader.grade(workflow_task.task, workflow_output, criteria)
        if self._rubrics.is_shared:
            for number, score in enumerate(grade.scores, 1):
                workflow_output.log_metrics[f"{self._name}/criterion_{number}"] = score
        return verdict_with_reason(grade, workflow_output)


class RubricsListwiseJudge(GroupJudge):
    """One score an answer, all answers of a group seen together."""

    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self._grader = _grader(config, LISTWISE)
        self._rubrics = Rubrics(config, self._grader)

    async def compute_group_rewards(
        self, workflow_tasks: Sequence[WorkflowTask], workflow_outputs: Sequence[WorkflowOutput]
    ) -> list[tuple[float, bool]]:
        criteria = await self._rubrics.criteria_for(workflow_tasks[0].task)
        grades = await self._grader.grade_group(workflow_tasks, workflow_outputs, criteria)
        return [
            verdict_with_reason(g, output)
            for g, output in zip(grades, workflow_outputs, strict=True)
        ]


def _grader(config: AjetConfig, default: str) -> Grader:
    section = config.ajet.task_judge.rubrics_auto_grader
    template = checked_template(section.custom_evaluation_prompt, default, PROMPT_KEY)
    return Grader(config, section, model=grading_model(config), template=template)
