"""Finds how the model continued, over the steps, from exactly the text before one sampled token.

    the prompt and the reply before it    [ … 6 times 7 is ]    step 1: 12 of 40 episodes reached it
    the token                             [ 42 ]                        3 of these 12 sampled it

An episode reaches the same text if the same call has the same prompt ids and the same ids before
the token. Log-probabilities are the recorded ones; for tokens that were not sampled, use `ajet
score`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp
from statistics import fmean
from typing import Any

import numpy as np

from ajet.read.episode_reader import EpisodeReader, EpisodeRecord
from ajet.read.logview.episode_index import Row
from ajet.read.logview.token_text import TokenText

MAX_OTHERS = 8


def same_prefix(
    reader: EpisodeReader,
    episode: EpisodeRecord,
    rows: Sequence[Row],
    turn: int,
    token: int,
    text: TokenText,
) -> dict[str, Any]:
    """Returns for each step and mode of `rows`, episodes of the same task, how many reached the
    text before the token, how many sampled it there and with which mean probability; and the tokens
    that were sampled there, the most frequent first."""
    mine = episode.turns[turn]
    prompt, before, chosen = mine.prompt_ids, mine.token_ids[:token], int(mine.token_ids[token])
    steps: dict[tuple[int, str], list[tuple[int, float, str]]] = {}
    for row in rows:
        turns = reader.episode(row["episode_id"]).turns
        # The episode has no such call, or its reply ended before this token.
        if turn >= len(turns) or len(turns[turn].token_ids) <= token:
            continue
        other = turns[turn]
        if np.array_equal(other.prompt_ids, prompt) and np.array_equal(
            other.token_ids[:token], before
        ):
            sampled = (
                int(other.token_ids[token]),
                float(other.logprobs[token]),
                row["episode_id"],
            )
            steps.setdefault((row["step"], row["mode"]), []).append(sampled)
    counts = Counter(choice[0] for choices in steps.values() for choice in choices)
    return {
        "steps": [
            _at_step(step, mode, choices, chosen) for (step, mode), choices in sorted(steps.items())
        ],
        "tokens": [
            {"text": text([id_])[0], "num": num, "is_chosen": id_ == chosen}
            for id_, num in counts.most_common(MAX_OTHERS)
        ],
        "num_tokens": len(counts),
    }


def _at_step(
    step: int, mode: str, choices: Sequence[tuple[int, float, str]], chosen: int
) -> dict[str, Any]:
    same = [(logprob, name) for id_, logprob, name in choices if id_ == chosen]
    return {
        "step": step,
        "mode": mode,
        "num": len(choices),
        "chose": len(same),
        "p": fmean(exp(logprob) for logprob, _ in same) if same else None,
        "episode_id": same[0][1] if same else choices[0][2],
    }
