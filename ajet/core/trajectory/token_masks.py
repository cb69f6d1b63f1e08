"""The tokens that grammars allowed where a sample's tokens were sampled.

    turn with a grammar --replay of its ids--> masks --each once--> TokenMasks of the sample

The masks are computed again from the recorded grammar and ids: in a record of 1,000 tokens they
would take megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ajet.core.inference.matcher import Grammars, Mask

FREE, FORCED = -1, -2


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The masks of a sample of T tokens.

    `numbers_T` is the row of `table` that holds a token's mask; `FREE` if it was sampled without a
    grammar or was not sampled, `FORCED` if the grammar allowed no other token. `table` is ``[N,
    bytes]``, in the form of inference/grammar.py.
    """

    numbers_T: NDArray[np.int32]
    table: NDArray[np.uint8]

    @classmethod
    def of(
        cls, length: int, replies: Sequence[tuple[int, str, Sequence[int]]], grammars: Grammars
    ) -> Self:
        """Replays `replies`, each with the position of its first token, its grammar and its
        ids."""
        numbers_T = np.full(length, FREE, np.int32)
        rows: dict[bytes, int] = {}
        # Inside a string almost every mask is the same, so a reply needs few rows of the table.
        for start, grammar, token_ids in replies:
            for position, mask in enumerate(grammars.masks(grammar, token_ids), start):
                numbers_T[position] = _number(mask, rows)
        table = [np.frombuffer(row, np.uint8) for row in rows]
        return cls(numbers_T, np.stack(table) if table else np.zeros((0, 1), np.uint8))

    @property
    def num_restricted(self) -> int:
        return int(np.count_nonzero(self.numbers_T != FREE))

    @property
    def num_forced(self) -> int:
        return int(np.count_nonzero(self.numbers_T == FORCED))

    def after(self, start: int, prompt_length: int) -> Self:
        """Returns the masks of the tokens from `start` on, after another prompt."""
        empty = np.full(prompt_length, FREE, np.int32)
        return type(self)(np.concatenate((empty, self.numbers_T[start:])), self.table)


def _number(mask: Mask, rows: dict[bytes, int]) -> int:
    if int(np.unpackbits(mask).sum()) == 1:
        return FORCED
    return rows.setdefault(mask.tobytes(), len(rows))
