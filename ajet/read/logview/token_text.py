"""Converts single tokens to text for display, never for training. A token that holds a part of a
character (byte-level BPE splits them) shows its bytes as \\xNN. Everything comes from
`tokenizer.json`; without one, a token shows as its id in angle brackets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.images.image_ids import FIRST_ID, image_name, key_text, keys_in_order
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.text.error_text import one_line

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenText:
    def __init__(self, tokenizer: Mapping[str, Any] | None) -> None:
        """Takes the content of a `tokenizer.json`; None if there is none."""
        self._known: dict[int, str] = {}
        self._tokens: dict[int, str] = {}
        self._added: dict[int, str] = {}
        self._byte_level = False
        if tokenizer is not None:
            vocab = tokenizer["model"]["vocab"]
            is_scored = isinstance(vocab, list)  # (token, score) by id
            self._tokens = (
                {number: token for number, (token, _) in enumerate(vocab)}
                if is_scored
                else {number: token for token, number in vocab.items()}
            )
            self._added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
            self._byte_level = "ByteLevel" in json.dumps(tokenizer.get("decoder"))

    @classmethod
    def of(cls, folder: RunFolder) -> TokenText:
        """Reads the tokenizer that the run stored in its folder, if it did."""
        file = folder.tokenizer / "tokenizer.json"
        if not is_file(file):
            return cls(None)
        try:
            return cls(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{file}: the tokenizer does not load: {one_line(error)}", code=Code.NO_TOKENIZER
            ) from error

    def __call__(self, ids: Iterable[int]) -> list[str]:
        ids = [int(i) for i in ids]
        self._known |= {i: self._shown(i) for i in {*ids} - self._known.keys()}
        return [self._known[i] for i in ids]

    def _shown(self, token_id: int) -> str:
        if token_id >= FIRST_ID:  # an image's name stands at its first token
            return "".join(map(image_name, keys_in_order([token_id])))
        # Added tokens are stored as plain text, not in the vocabulary's alphabet.
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokens.get(token_id)
        if token is None:
            return f"<{token_id}>"
        if self._byte_level and all(char in BYTE_OF for char in token):
            return readable(bytes(BYTE_OF[char] for char in token))
        if match := _BYTE_FALLBACK.fullmatch(token):
            return readable(bytes([int(match[1], 16)]))
        return token.replace("▁", " ")


def page_ids(ids: Iterable[int]) -> list[int | str]:
    """Returns the ids as the page has them. Those of an image do not fit into JavaScript's numbers:
    its first token has the image's key, and the others have an empty text."""
    return [i if i < FIRST_ID else "".join(map(key_text, keys_in_order([i]))) for i in ids]


def readable(raw: bytes) -> str:
    """Decodes UTF-8; bytes that are not a whole character become \\xNN."""
    return raw.decode("utf-8", "backslashreplace")


def _byte_of() -> dict[str, int]:
    """Returns GPT-2's table from characters to bytes: printable bytes map to themselves, and the
    other bytes, in order, are the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + index): byte for index, byte in enumerate(unprintable)}


BYTE_OF = _byte_of()
