"""What the causes of a flat reward are read from: one pass over a run folder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain

from ajet.core.config import AjetConfig
from ajet.core.errors import RecordError
from ajet.core.record.run_checks import Metrics, metrics_rows
from ajet.core.record.run_folder import RunFolder, is_file, read_bytes_of
from ajet.core.record.warning_log import RunWarning, read_warnings
from ajet.core.task.chat_messages import shown_text
from ajet.core.task.task import ANSWER_FIELDS, Task
from ajet.core.text.error_text import one_line
from ajet.read.episode_reader import EpisodeFilter, EpisodeRecord
from ajet.read.recorded_run import RecordedRun

TEMPLATE_FILE = "chat_template.jinja"
MAX_EPISODES = 1_000
"""So many of the oldest training episodes are read, and so many of the newest."""
REFERENCE_KEYS = (*ANSWER_FIELDS, "reference", "gold", "gt_answer", "final_answer")
ANNOUNCING = ("answer", "solution", "####", "label", "result", "expected", "reference")
_MARKERS = re.compile(r"<[|｜][^<>\s]+[|｜]>|<start_of_turn>|\[INST\]")
_LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a trained agent. `trains_its_end` is None where none of its tokens is trained."""

    finish_reason: str
    trains_its_end: bool | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One training episode that ended, in little memory. `announced` is what the prompt says after
    words such as "answer"; `replies` is a hash of the sampled tokens; `has_reference` tells whether
    the last reply contains the task's reference answer, None without a reference."""

    episode_id: str
    step: int
    group_id: str
    task_id: str
    reward: float
    reference: str
    announced: str
    replies: bytes
    has_reference: bool | None
    max_version: int | None
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Evidence:
    """A run as its folder shows it, during the run or after it."""

    config: AjetConfig
    steps: Sequence[tuple[int, Metrics]]
    held_out: Sequence[tuple[int, Metrics]]
    warnings: dict[str, RunWarning]
    episodes: list[Seen]
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the status of failed episodes the id and the error of one of them."""
    num_tasks: int = 0
    """Different tasks that were trained on; 0 where an environment makes each from a seed."""
    num_trained: int = 0
    """Training episodes in all."""
    held_out_trained: tuple[int, int] = (0, 0)
    """Held-out questions that were trained on as well, of how many."""
    marker: str | None = None
    """A mark of the chat template, if most of its marks are no tokens of the model."""

    @classmethod
    def of(cls, run: RecordedRun) -> Evidence:
        """Reads the run folder. Raises `CheckpointError` for a damaged one."""
        steps: list[tuple[int, Metrics]] = []
        held_out: list[tuple[int, Metrics]] = []
        if is_file(run.folder.metrics_jsonl):
            for step, metrics in metrics_rows(run.folder.metrics_jsonl):
                if "held_out/success" in metrics:
                    held_out.append((step, metrics))
                elif "reward/mean" in metrics or "episodes/total" in metrics:
                    steps.append((step, metrics))
        episodes, failures = _episodes(run)
        num_tasks, num_trained, held_out_trained = _tasks(run)
        return cls(
            config=run.config,
            steps=steps,
            held_out=held_out,
            warnings={row.name: row for row in read_warnings(run.folder.warnings_jsonl)},
            episodes=episodes,
            failures=failures,
            num_tasks=num_tasks,
            num_trained=num_trained,
            held_out_trained=held_out_trained,
            marker=foreign_marker(run.folder),
        )

    def values(self, name: str) -> list[float]:
        """Returns a metric's values, one a step that has it."""
        return [metrics[name] for _, metrics in self.steps if name in metrics]

    def total(self, name: str) -> float:
        return sum(self.values(name))

    @property
    def groups(self) -> dict[str, list[Seen]]:
        groups: dict[str, list[Seen]] = {}
        for seen in self.episodes:
            groups.setdefault(seen.group_id, []).append(seen)
        return groups


def _episodes(run: RecordedRun) -> tuple[list[Seen], dict[str, tuple[str, str]]]:
    which = EpisodeFilter(mode="train")
    seen: list[Seen] = []
    failures: dict[str, tuple[str, str]] = {}
    with run.reader() as reader:
        ids = reader.ids(which)
        newest = reader.walk(which, MAX_EPISODES)
        num_old = min(MAX_EPISODES, max(0, len(ids) - MAX_EPISODES))
        oldest = reader.walk(which, num_old, ids[-num_old] + 1) if num_old else iter(())
        for episode in chain(newest, oldest):
            row = episode.row
            if row.error:
                failures.setdefault(episode.outcome, (row.episode_id, row.error))
            if row.reward is not None and episode.turns:
                seen.append(_seen(episode, row.reward))
    return seen[::-1], failures


def _seen(episode: EpisodeRecord, reward: float) -> Seen:
    row, task = episode.row, episode.task
    reference = "" if task is None else reference_of(task)
    first, trained = episode.turns[0], [turn for turn in episode.turns if turn.trainable]
    said = shown_text(episode.turns[-1].reply.get("content"))
    return Seen(
        episode_id=row.episode_id,
        step=row.step,
        group_id=row.group_id,
        task_id=row.task_id,
        reward=reward,
        reference=reference,
        announced=announced("\n".join(shown_text(m.get("content")) for m in first.messages)),
        replies=sha256(b"|".join(turn.token_ids.tobytes() for turn in trained)).digest(),
        has_reference=contains(said, reference) if reference else None,
        max_version=row.max_policy_version,
        calls=tuple(
            Call(
                turn.finish_reason,
                bool(turn.loss_mask[-1])
                if turn.loss_mask is not None and turn.loss_mask.any()
                else None,
            )
            for turn in trained
        ),
    )


def reference_of(task: Task) -> str:
    """Returns the task's reference answer as short text, "" if there is none: what follows #### or
    the whole value. Values of several words that hold a number are worked solutions: their last
    number counts."""
    metadata = task.metadata
    nested = metadata.get("reward_model")
    for fields in (metadata, nested if isinstance(nested, dict) else {}):
        for key in REFERENCE_KEYS:
            value = fields.get(key)
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                text = str(value).rpartition("####")[2].strip()
                if len(text.split()) > 3 and (numbers := _LAST_NUMBER.findall(text)):
                    text = numbers[-1]
                return text if len(text) <= 200 else ""
    return ""


def announced(text: str) -> str:
    """Returns the three words after each word that announces an answer, a line each."""
    words = text.split()
    return "\n".join(
        " ".join(words[at + 1 : at + 4])
        for at, word in enumerate(words)
        if word.lower().lstrip("(*[\"'<").startswith(ANNOUNCING)
    )


def contains(text: str, reference: str) -> bool:
    """Tells whether the text has the reference as a whole word, in either case."""
    pattern = rf"(?<![\w.]){re.escape(reference)}(?![\w]|[.,]\d)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def _tasks(run: RecordedRun) -> tuple[int, int, tuple[int, int]]:
    if run.config.ajet.task_reader.type in ("environment", "env_service"):
        return 0, 0, (0, 0)  # their questions may all be the same, with another seed
    trained: set[str] = set()
    held_out: set[str] = set()
    num_trained, tasks = 0, set[str]()
    with run.reader() as reader:
        for mode, query, task_id, number in reader.questions():
            (held_out if mode == "eval" else trained).add(" ".join(query.split()))
            if mode == "train":
                tasks.add(task_id)
                num_trained += number
    return len(tasks), num_trained, (len(held_out & trained), len(held_out))


def foreign_marker(folder: RunFolder) -> str | None:
    """Returns a mark of the chat template if most of its marks are no tokens of the model."""
    tokens, template = (folder.tokenizer / name for name in ("tokenizer.json", TEMPLATE_FILE))
    if not is_file(tokens) or not is_file(template):
        return None
    try:
        known = {row["content"] for row in json.loads(read_bytes_of(tokens))["added_tokens"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"{tokens} cannot be read: {one_line(error)}") from error
    text = read_bytes_of(template).decode(errors="replace")
    marks = list(dict.fromkeys(_MARKERS.findall(text)))
    foreign = [mark for mark in marks if mark not in known]
    return foreign[0] if 2 * len(foreign) > len(marks) else None
