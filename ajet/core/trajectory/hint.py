"""A hint that the teacher of a distillation is shown, and the policy is not.

    ajet.distillation.hint    "The answer is {answer}."
    for a task                "The answer is 42."                  of the fields of its row
    its first user message    "What is 6 times 7?\\n\\nThe answer is 42."

    sample, of the policy     [prompt of turn 0        ][a0 a1][tool][b0]
    sample, of the teacher    [the same, with the hint ][a0 a1][tool][b0]    scores of the same ids

The session makes both prompts when a conversation begins, and the turn keeps the second in its
notes. What follows the first prompt of a conversation is the same ids in both, so nothing is
decoded or looked for. Not covered: calls with token ids instead of messages, which have no second
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.error_codes import Code
from ajet.core.errors import DataError
from ajet.core.task.task import Task
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.turn import Turn

PLACEHOLDER = re.compile(r"\{(\w+)\}")


def hint_for(hint: str, task: Task) -> str:
    """Returns the hint with the fields of the task's row. Raises DataError if the row lacks one."""
    fields = {"main_query": task.main_query} | task.metadata
    missing = [name for name in PLACEHOLDER.findall(hint) if fields.get(name) is None]
    if missing:
        raise DataError(
            f"task {task.task_id}: its row has no {missing[0]!r}, named in ajet.distillation.hint",
            code=Code.ROW_FORM,
        )
    return PLACEHOLDER.sub(lambda match: str(fields[match[1]]), hint)


def with_hint(messages: Sequence[dict[str, Any]], hint: str) -> list[dict[str, Any]]:
    """Returns the messages with the hint at the end of the first user message."""
    users = (n for n, message in enumerate(messages) if message.get("role") == "user")
    if (first := next(users, None)) is None:
        raise DataError(
            "ajet.distillation.hint: the chat has no user message to add the hint to",
            code=Code.ROW_FORM,
        )
    content = messages[first].get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": f"\n\n{hint}"}]
    else:
        content = f"{content}\n\n{hint}"
    return [*messages[:first], {**messages[first], "content": content}, *messages[first + 1 :]]


class HintedSample:
    """A sample as the teacher is shown it: `sample` has the prompt with the hint."""

    def __init__(self, of: TrainingSample, turns: Sequence[Turn]) -> None:
        """`turns` are those of its episode. Raises DataError if no prompt with the hint was made
        for the sample."""
        first = int(of.loss_mask.argmax())
        roots = (turn for turn in turns if _begins_with(of, turn.completion.prompt_ids, first))
        root = next(roots, None)
        if root is None or not root.notes.hinted_prompt:
            raise DataError(
                f"episode {of.episode_id}: ajet.distillation.hint needs chat messages, and this "
                "conversation began with token ids",
                code=Code.ROW_FORM,
            )
        prompt = np.array(root.notes.hinted_prompt, np.int64)
        self._start, self._shift = len(root.completion.prompt_ids), len(prompt)
        rest = slice(self._start, None)
        empty = np.zeros(len(prompt), np.float32)
        self.sample = replace(
            of,
            token_ids=np.concatenate((prompt, of.token_ids[rest])),
            loss_mask=np.concatenate((empty.astype(bool), of.loss_mask[rest])),
            logprobs=np.concatenate((empty, of.logprobs[rest])),
            advantages=np.concatenate((empty, of.advantages[rest])),
            spans=(),
            old_logprobs=None,
            weights=None,
            streams=None,
            teacher_logprobs=None,
        )

    def scores(self, hinted: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns scores of the hinted sample's tokens at the positions of the policy's sample."""
        return np.concatenate((np.zeros(self._start, np.float32), hinted[self._shift :]))


def _begins_with(sample: TrainingSample, ids: Sequence[int], first_trained: int) -> bool:
    fits = 0 < len(ids) <= first_trained
    return fits and np.array_equal(sample.token_ids[: len(ids)], np.asarray(ids))
