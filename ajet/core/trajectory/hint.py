"""A hint that the teacher of a distillation is shown, and the policy is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.task.task import Task
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.turn import Turn

PLACEHOLDER = re.compile(r"\{(\w+)\}")


def hint_for(hint: str, task: Task) -> str:
    """Fills the fields of the task's row into the hint. Raises DataError if the row lacks one."""
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
    """A sample as the teacher is shown it: the same tokens after a prompt with the hint.

        of the policy     [prompt of turn 0        ][a0 a1][tool][b0]
        of the teacher    [the same, with the hint ][a0 a1][tool][b0]    scores of the same ids

    Both prompts are rendered when a conversation begins, and the turn's notes keep the second. All
    ids after the first prompt are the same in both, so nothing is decoded or searched for.
    """

    def __init__(self, of: TrainingSample, turns: Sequence[Turn]) -> None:
        """`turns` are those of the sample's episode. Raises DataError if its conversation has no
        prompt with the hint: it began with token ids."""
        # The first turn whose prompt begins the sample is the root of its conversation; later
        # turns of the same timeline have longer prompts, which contain sampled tokens.
        first_trained = int(of.loss_mask.argmax())
        root = None
        for turn in turns:
            ids = turn.completion.prompt_ids
            if 0 < len(ids) <= first_trained and np.array_equal(of.token_ids[: len(ids)], ids):
                root = turn
                break
        if root is None or not root.notes.hinted_prompt:
            raise DataError(
                f"episode {of.episode_id}: ajet.distillation.hint needs chat messages, and this "
                "conversation began with token ids",
                code=Code.ROW_FORM,
            )
        prompt = np.array(root.notes.hinted_prompt, np.int64)
        # Positions from `_start` on in the policy's sample are those from `_shift` on in this one.
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
            masks=None if of.masks is None else of.masks.after(self._start, self._shift),
        )

    def scores(self, hinted: NDArray[np.float32]) -> NDArray[np.float32]:
        """Moves scores of this sample's tokens to their positions in the policy's sample; the
        prompt there scores 0."""
        return np.concatenate((np.zeros(self._start, np.float32), hinted[self._shift :]))
