"""Finds how the model went on, over the steps, from exactly the text before one sampled token.

    the prompt and the reply before it    [ … 6 times 7 is ]    step 1: 12 of 40 episodes came to it
    the token                             [ 42 ]                        3 of these 12 sampled it

An episode comes to the same text where the same call has the same prompt ids, and the same ids
before the token. Its log-probabilities are those that the sampler recorded, so nothing is computed.

Not covered: the probability of a token that an episode did not sample (`ajet score` computes it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp
from statistics import fmean
from typing import Any

import numpy as np

from ajet.core.record.episode_reader import EpisodeReader, EpisodeRecord
from ajet.logview.episode_index import Row
from ajet.logview.token_text import TokenText

MAX_OTHERS = 8


def same_prefix(
    reader: EpisodeReader,
    episode: EpisodeRecord,
    rows: Sequence[Row],
    turn: int,
    token: int,
    text: TokenText,
) -> dict[str, Any]:
    """Returns for each step and mode of `rows`, episodes of the same task, how many came to the
    text before the token, how many sampled it there and with which mean probability; and the
    tokens that were sampled there, the most frequent first."""
    own = episode.turns[turn]
    prompt, before, chosen = own.prompt_ids, own.token_ids[:token], int(own.token_ids[token])
    steps: dict[tuple[int, str], list[tuple[int, float, str]]] = {}
    for row in rows:
        turns = reader.episode(row["episode_id"]).turns
        if turn >= len(turns) or len(turns[turn].token_ids) <= token:
            continue
        found = turns[turn]
        if np.array_equal(found.prompt_ids, prompt) and np.array_equal(
            found.token_ids[:token], before
        ):
            sampled = (
                int(found.token_ids[token]),
                float(found.logprobs[token]),
                row["episode_id"],
            )
            steps.setdefault((row["step"], row["mode"]), []).append(sampled)
    counts = Counter(each[0] for taken in steps.values() for each in taken)
    return {
        "steps": [
            _at_step(step, mode, taken, chosen) for (step, mode), taken in sorted(steps.items())
        ],
        "tokens": [
            {"text": text([id_])[0], "num": num, "is_chosen": id_ == chosen}
            for id_, num in counts.most_common(MAX_OTHERS)
        ],
        "num_tokens": len(counts),
    }


def _at_step(
    step: int, mode: str, taken: Sequence[tuple[int, float, str]], chosen: int
) -> dict[str, Any]:
    same = [(logprob, name) for id_, logprob, name in taken if id_ == chosen]
    return {
        "step": step,
        "mode": mode,
        "num": len(taken),
        "chose": len(same),
        "p": fmean(exp(logprob) for logprob, _ in same) if same else None,
        "episode_id": same[0][1] if same else taken[0][2],
    }
