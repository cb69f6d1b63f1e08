"""The tokens that a grammar allows next, by llguidance.

    Grammars(tokenizer).matcher(text) -> mask(), advance(token), mask(), …

A mask is ``ceil(V / 8)`` bytes; bit i % 8 of byte i // 8 is set if token i may come next. Where the
text is fixed, only its usual tokens may: other divisions of it are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.user_code.importing import require_package

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerBase

Mask = NDArray[np.uint8]

CACHED = 64
"""The grammars whose compiled form is kept."""


class Matcher:
    """Follows one reply through its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> Mask:
        """Returns the tokens that may come next; raises ModelError if there are none."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error() or not mask.any():
            raise _failed(self._matcher.get_error() or "no token continues the reply")
        return mask

    def advance(self, token_id: int) -> None:
        """Takes a token that the mask allowed."""
        if not self._matcher.consume_token(token_id):
            raise _failed(self._matcher.get_error() or f"token {token_id} is not allowed")


class Grammars:
    """Compiles grammars for one tokenizer, which is prepared for it at the first use."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._hf_tokenizer = tokenizer
        # Compiling takes milliseconds, a copy microseconds; episodes of a group repeat a grammar.
        self._compiled = lru_cache(maxsize=CACHED)(self._compile)
        self._warnings: set[str] = set()

    def check(self, text: str) -> None:
        """Raises ValueError for a grammar that cannot be compiled."""
        if problem := self._compiled(text).get_error():
            raise ValueError(f"the grammar of the reply is not possible: {_line(problem)}")

    def warn_once(self, line: str) -> None:
        """Logs a warning; the episodes of a process share what has been warned of."""
        if line not in self._warnings:
            self._warnings.add(line)
            logger.warning(line)

    def is_special(self, token_id: int) -> bool:
        """Tells whether a grammar must name a token by its id. llguidance treats every added token
        like ``<tool_call>`` so, whatever the tokenizer says."""
        return self._tokenizer.is_special_token(token_id)

    def matcher(self, text: str) -> Matcher:
        """Returns a matcher at the beginning of a reply; raises ModelError for a grammar that
        cannot be compiled."""
        compiled = self._compiled(text)
        if compiled.is_error():
            raise _failed(compiled.get_error())
        return Matcher(compiled.deep_copy())

    def masks(self, text: str, token_ids: Sequence[int]) -> list[Mask]:
        """Returns the mask before each token of a sampled reply. Raises ModelError if the grammar
        does not allow a token: whatever sampled it applied another one."""
        # The same calls in the same order as in the engine, so the masks are the same too: what
        # llguidance allows where text is fixed depends on the tokens before it.
        matcher = self.matcher(text)
        masks: list[Mask] = []
        for token_id in token_ids:
            masks.append(mask := matcher.mask())
            if not mask[token_id // 8] >> token_id % 8 & 1:
                raise _failed(f"token {token_id} was sampled, which it does not allow")
            matcher.advance(token_id)
        return masks

    def _compile(self, text: str) -> LLMatcher:
        tokenizer = self._tokenizer
        from llguidance import LLMatcher

        return LLMatcher(tokenizer, text, log_level=0)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        require_package("llguidance", wanted_by="response_format and strict tools")
        from llguidance.hf import from_tokenizer

        if not self._hf_tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer of {self._hf_tokenizer.name_or_path or 'the model'!r} has no "
                "tokenizer.json, which response_format and strict tools need",
                code=Code.NO_TOKENIZER,
            )
        return from_tokenizer(self._hf_tokenizer)  # pyright: ignore[reportArgumentType]


def _failed(reason: str) -> ModelError:
    return ModelError(f"the grammar of a reply: {_line(reason)}", code=Code.GRAMMAR)


def _line(text: str) -> str:
    """Returns the reason in one line, without llguidance's excerpt of the grammar below it."""
    return text.strip().partition("\n")[0][:300]
