"""Encodes renders of a chat template piece by piece, because renders repeat most of their pieces.

    <|im_start|> system⏎You solve… <|im_end|> ⏎ <|im_start|> user⏎How many… <|im_end|> …
                 encoded once      once      once            once a question

Tokenizers of the `tokenizers` library take the added tokens out of a text first and encode what
lies between two of them alone, so the ids of a piece depend on the piece and on these two tokens
(which may take white space from it). Each piece is encoded between its two tokens and remembered.

Not covered: tokenizers that are made otherwise, tokens that only count as whole words, and messages
that spell a special token out. Such a render is encoded as one piece.
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
        # The library takes the longest of the tokens that begin at one place.
        longest_first = sorted(cuts, key=len, reverse=True) if can_cut else ()
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._ids = cuts
        self._between = lru_cache(KEPT_PIECES)(self._encode_between)

    def encode(self, marked_text: str) -> Iterator[tuple[int, ...]]:
        """Yields the ids of the text's pieces in order."""
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
