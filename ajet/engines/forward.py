"""The interface between the engine's batch and a model: rows that advance one token at a time.
FlatForward (flat_forward.py, the fast one) and HfForward (hf_forward.py) implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import Completion, FinishReason, SamplingParams
from ajet.core.inference.grammar import Mask, Matcher
from ajet.core.model.routes import Routes


@dataclass(eq=False)
class BatchRow:
    """A running request: `ids` has the prompt and the tokens sampled so far."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    max_len: int
    """The largest length of prompt and sampled tokens together."""
    stop_check: Callable[[Sequence[int]], bool] | None = None
    """Returns whether these sampled ids contain a stop string; called after each token."""
    matcher: Matcher | None = None
    """Follows the reply through its grammar."""
    mask: Mask | None = field(init=False, default=None)
    """The tokens that the grammar allows next."""
    policy_version: int = 0
    num_old_keys: int = 0
    """The tokens of the prompt whose keys and values older weights had computed."""
    ids: list[int] = field(init=False)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    aborted: bool = False
    """Set by another thread to end the row before its next token."""
    error: Exception | None = None
    """Why the row failed, alone."""
    routes: list[Routes] = field(default_factory=list)
    """The experts of the first `num_routed` tokens, in pieces, where they are recorded."""
    num_routed: int = 0
    position_shift: int = 0
    """What rotary positions of sampled tokens are ahead of their places, after images."""

    def __post_init__(self) -> None:
        self.ids = list(self.prompt_ids)
        if self.matcher is not None:
            self.mask = self.matcher.mask()

    @property
    def episode_id(self) -> str:
        """The part of the request id before the turn."""
        return self.request_id.rpartition("/")[0] or self.request_id

    def reason_to_end(self) -> FinishReason | None:
        """Returns why the row ends with the latest token, or None if it does not."""
        check = self.stop_check
        if self.ids[-1] in self.stop_ids or (check and check(self.ids[len(self.prompt_ids) :])):
            return "stop"
        if len(self.ids) >= self.max_len:
            return "length"
        if self.matcher is not None:
            try:
                self.matcher.advance(self.ids[-1])
                self.mask = self.matcher.mask()
            except ModelError as error:  # ends this row alone
                self.error = error
                return "abort"
        return None

    def add_routes(self, routes: Routes, first: int) -> None:
        """Appends the experts of the tokens from position `first` on. A token that has some keeps
        them: what was sampled after it was sampled with these."""
        self.routes.append(routes[self.num_routed - first :])
        self.num_routed += len(self.routes[-1])

    def completion(self) -> Completion:
        """Returns the finished row as a `Completion`."""
        assert self.finish_reason is not None
        return Completion(
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.ids[len(self.prompt_ids) :]),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason,
            policy_version=self.policy_version,
            num_old_keys=self.num_old_keys,
            # A batch that looks ahead may have fed a finished row once more.
            routes=np.concatenate(self.routes)[: len(self.ids) - 1] if self.routes else None,
        )


class Forward(Protocol):
    """Computes forward passes over a batch: the rows of the last `rebuild`, in that order, without
    those that `keep` has dropped."""

    @property
    def num_replayed(self) -> int:
        """The number of `decode` steps that were replays of a captured step."""
        ...

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        """Returns whether a batch of these rows stays within the budget of keys and values until
        all have ended. One row always does."""
        ...

    def rebuild(self, rows: Sequence[BatchRow]) -> int:
        """Forms a batch of these rows, which must be sorted by token ids. Returns the number of
        tokens whose keys and values had to be computed."""
        ...

    def decode(self, tokens_R: Tensor, positions_R: NDArray[np.int64]) -> Tensor:
        """Returns logits ``[rows, vocab]`` after each row's last token, which is given with its
        position. The next step may overwrite them. Tokens are whole numbers of any dtype, on any
        device."""
        ...

    def keep(self, index: NDArray[np.int64]) -> None:
        """Drops all other rows; `index` has row numbers in ascending order."""
        ...

    def store(self, rows: Sequence[tuple[int, BatchRow]]) -> None:
        """Caches the keys and values of rows, given with their numbers in the batch."""
        ...

    def release(self, episode_ids: Iterable[str]) -> None:
        """Frees the cache that only these episodes could use; they make no more requests."""
        ...

    def reset(self) -> None:
        """Forgets what was computed with the old weights, and frees its memory."""
        ...

    def renew(self, version: int, oldest: int | None) -> None:
        """Notes that the weights are those of `version` now. Of the cached keys and values, those
        that weights from version `oldest` on computed are kept; None: none."""
        ...

    def free_weights(self) -> None:
        """Frees copies of the weights; the next batch makes them again."""
        ...
