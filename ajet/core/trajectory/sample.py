"""Training samples: token ids, and numbers for each of them, as the update reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ajet.core.model.routes import Routes

if TYPE_CHECKING:
    from ajet.core.inference.grammar import Grammars

Component = Literal["policy_gradient", "cross_entropy", "kl_reference", "kl_teacher"]
"""A term of the loss (update/loss.py). Tokens with `cross_entropy` were given, not sampled: their
`logprobs` have no meaning."""
SAMPLED: tuple[Component, ...] = ("policy_gradient", "kl_reference")
"""The terms that all trained tokens of a sample without streams have, with weight 1."""


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Locates one sampled completion in a sample: positions `start` to `stop`."""

    start: int
    stop: int
    turn_index: int


FREE, FORCED = -1, -2


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that grammars allowed at each of the T tokens of a sample.

    `numbers_T` is the row of `table` that holds a token's mask; `FREE` if it was sampled without a
    grammar or was not sampled, `FORCED` if the grammar allowed no other token. `table` is ``[N,
    bytes]``, in the form of inference/grammar.py. It is computed again from the recorded grammar
    and ids: in a record of 1,000 tokens the masks would take megabytes.
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
                is_forced = int(np.unpackbits(mask).sum()) == 1
                number = FORCED if is_forced else rows.setdefault(mask.tobytes(), len(rows))
                numbers_T[position] = number
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


_ARRAYS = ("token_ids", "loss_mask", "logprobs", "advantages")


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """Holds one timeline (a root-to-leaf path of an episode's token trie).

    Four arrays of equal length T, for two turns of 2 and 1 sampled tokens:

        token_ids   [sys que] [a0 a1] [obs] [b0]
        loss_mask    0   0     1  1    0     1      1 where the token was sampled by the policy and
                                                    is trained here (not on another timeline)
        logprobs     0   0    l0 l1    0    l2      of the sampler, natural log; 0 elsewhere
        advantages   0   0     A  A    0     A      0 elsewhere

    Position t's logprob is that of token_ids[t] given all before it. The constructor checks
    the lengths.

    `old_logprobs` are the trainer's before the update (None: the sampler's are used), and `weights`
    the importance weights between the two (None: all are 1). `streams` holds the weight of each
    token in the components of the loss (None: 1 in `SAMPLED` for each trained token), and
    `teacher_logprobs` are the teacher's. All have length T. `masks` are those of grammars (None:
    all tokens were sampled freely), and `routes` the experts ``[T, layers, k]`` with which the
    engine computed each token (None: it recorded none).
    """

    episode_id: str
    group_id: str
    token_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    spans: tuple[TurnSpan, ...]
    min_policy_version: int
    max_policy_version: int
    old_logprobs: NDArray[np.float32] | None = None
    weights: NDArray[np.float32] | None = None
    streams: Mapping[Component, NDArray[np.float32]] | None = None
    teacher_logprobs: NDArray[np.float32] | None = None
    routes: Routes | None = None
    masks: TokenMasks | None = None

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in (*_ARRAYS, "old_logprobs", "weights", "teacher_logprobs", "routes")
            if getattr(self, name) is not None
        }
        lengths |= {name: len(weights_T) for name, weights_T in (self.streams or {}).items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"sample of episode {self.episode_id}: unequal lengths {lengths}")
        if len(self.token_ids) and self.loss_mask[0]:
            raise ValueError(f"sample of episode {self.episode_id}: the first token has no context")
        if not np.isfinite(self.logprobs).all() or not np.isfinite(self.advantages).all():
            raise ValueError(
                f"sample of episode {self.episode_id}: a logprob or advantage is not finite"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask.sum())

    def stream(self, component: Component) -> NDArray[np.float32]:
        """Returns the weight of each token in a component of the loss; 0 outside the loss mask."""
        if self.streams is None:
            return (self.loss_mask * (component in SAMPLED)).astype(np.float32)
        weights_T = self.streams.get(component)
        if weights_T is None:
            return np.zeros(len(self), np.float32)
        return np.where(self.loss_mask, weights_T, np.float32(0))

    def carries(self, component: Component) -> bool:
        """Tells whether any token has a weight in a component of the loss."""
        return bool(self.stream(component).any())

    @property
    def has_signal(self) -> bool:
        """Tells whether there is anything to learn: an advantage, a given reply, or a teacher."""
        advantages = self.advantages[self.stream("policy_gradient") != 0]
        return bool(advantages.any() or self.carries("cross_entropy") or self.carries("kl_teacher"))

    @property
    def sampled_mask(self) -> NDArray[np.bool_]:
        """Returns the mask of the trained tokens that were sampled, not given."""
        if self.streams is None:
            return self.loss_mask
        return self.loss_mask & (self.stream("cross_entropy") == 0)

    @property
    def num_sampled(self) -> int:
        return int(self.sampled_mask.sum())

    @property
    def old_or_sampled(self) -> NDArray[np.float32]:
        """Returns the old log-probabilities: the trainer's if it computed them, else the
        sampler's."""
        return self.logprobs if self.old_logprobs is None else self.old_logprobs
