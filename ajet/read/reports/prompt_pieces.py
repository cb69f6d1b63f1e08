"""Encodes renders of a chat template piece by piece, because most pieces occur again and again.

    <|im_start|> system⏎You solve… <|im_end|> ⏎ <|im_start|> user⏎How many… <|im_end|> …
                 encoded once      once      once            once a question

The `tokenizers` library cuts a text at its added tokens and encodes each piece between two of them
alone, so the ids of a piece depend only on the piece and these two tokens (which may strip white
space from it). Renders that break this rule are encoded as a whole: those by other tokenizers, with
added tokens that only match whole words, or with messages that spell out a special token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from ajet.core.inference.chat_template import MARK, ChatTemplate

KEPT_PIECES = 512


class PromptPieces:
    """Encodes like `ChatTemplate.encode`."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        added = template.tokenizer.added_tokens_decoder
        cuts = {t.content: number for number, t in added.items() if not t.normalized}
        can_cut = template.tokenizer.is_fast and not any(t.single_word for t in added.values())
        # At each position the library takes the longest added token.
        longest_first = sorted(cuts, key=len, reverse=True) if can_cut else ()
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._ids = cuts
        self._between = lru_cache(KEPT_PIECES)(self._encode_between)

    def encode(self, marked_text: str) -> Iterator[tuple[int, ...]]:
        """Yields the ids of the text's pieces: joined, those of `ChatTemplate.encode`."""
        if re.search(MARK, marked_text):
            yield tuple(self._template.encode(marked_text))
            return
        before, start = "", 0
        for match in self._cut.finditer(marked_text):
            yield self._between(before, marked_text[start : match.start()], match[0])
            before, start = match[0], match.end()
            yield (self._ids[before],)
        yield self._between(before, marked_text[start:], "")

    def _encode_between(self, before: str, piece: str, after: str) -> tuple[int, ...]:
        if not piece:
            return ()
        ids = self._template.encode(before + piece + after)
        return tuple(ids[bool(before) : len(ids) - bool(after)])
