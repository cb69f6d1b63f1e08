"""Grammars that a reply must follow, and the tokens that they allow next.

    response_format --reply_grammar--> Lark text --Grammars.matcher--> a mask for each token

The text is what requests, records and servers carry, in llguidance's dialect of Lark. It ends with
the token that ends a reply, so that a reply ends when the grammar is complete and not before. A
mask is ``ceil(V / 8)`` bytes; bit i % 8 of byte i // 8 is set if token i may come next.

JSON is written on one line, as Python's ``json.dumps`` writes it: with free white space a model
could write spaces until its reply is cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import message_of
from ajet.core.user_code.importing import require_package

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from transformers import PreTrainedTokenizerBase

Mask = NDArray[np.uint8]

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_LENGTH = 200_000
"""The most characters of a grammar."""
CACHED = 64
"""The grammars whose compiled form is kept."""

FORMATS = ("text", "json_object", "json_schema", "regex", "choice", "grammar")
"""The types of `response_format`; OpenAI has the first three."""


class Thinking(NamedTuple):
    """The thinking that a reply may begin with: the rules of its tags, texts or the ids of special
    tokens, and whether the prompt has opened it already."""

    opening: str
    closing: str
    is_open: bool


def response_format(value: Any) -> dict[str, Any] | None:
    """Returns a checked copy of a `response_format`, None for free text; raises ValueError for a
    type or a content that is not served. The grammar itself is checked by `Grammars.check`.

    ``{"type": "json_object"}``, ``{"type": "json_schema", "json_schema": {"schema": {…}}}``,
    ``{"type": "regex", "regex": "…"}``, ``{"type": "choice", "choice": ["…"]}`` and ``{"type":
    "grammar", "grammar": "start: …"}``, which is Lark.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"response_format is not JSON: {message_of(error)}") from error
    if len(text) > MAX_LENGTH:
        raise ValueError(f"response_format has more than {MAX_LENGTH} characters")
    copied = json.loads(text)
    kind = copied.get("type") if isinstance(copied, dict) else None
    if kind not in FORMATS:
        raise ValueError(f"response_format: the type is one of {', '.join(FORMATS)}")
    if kind == "text":
        return None
    problem = _content_problem(kind, copied)
    if problem:
        raise ValueError(f"response_format: {problem}")
    return copied


def _content_problem(kind: str, content: Mapping[str, Any]) -> str | None:
    match kind:
        case "json_schema":
            schema = content.get("json_schema")
            if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
                return "json_schema must hold a schema, an object"
        case "regex" | "grammar":
            if not isinstance(content.get(kind), str):
                return f"{kind} must be text"
        case "choice":
            choices = content.get("choice")
            if not (isinstance(choices, list) and choices):
                return "choice must be a list of texts"
            if not all(isinstance(text, str) and text for text in choices):
                return "choice must be a list of texts"
    return None


def reply_grammar(body: str, end_token_id: int, thinking: Thinking | None = None) -> str:
    """Returns the grammar of a whole reply: perhaps thinking, then `body`, the rule of the answer,
    and the token that ends the reply."""
    if thinking is None:
        return f"start: body <[{end_token_id}]>\nbody: {body}"
    before = "thought" if thinking.is_open else f"({thinking.opening} thought)?"
    start = f"start: {before} body <[{end_token_id}]>\nbody: {body}\nFREE_TEXT: /(.|\\n)*/\n"
    # A special token is no text; one that is text ends the thought where it first appears.
    if thinking.closing.startswith("<["):
        return f"{start}thought: FREE_TEXT {thinking.closing} /[ \\n]*/"
    return f"{start}thought: ending /[ \\n]*/\nending[lazy]: FREE_TEXT {thinking.closing}"


def format_rule(content: Mapping[str, Any]) -> str:
    """Returns the rule of an answer in this `response_format`."""
    match content["type"]:
        case "json_object":
            return json_rule({"type": "object"})
        case "json_schema":
            return json_rule(content["json_schema"]["schema"])
        case "regex":
            from llguidance import regex_to_lark

            return f"/{regex_to_lark(content['regex'])}/"
        case "choice":
            return " | ".join(map(literal, content["choice"]))
        case _:
            return f"%lark {{\n{content['grammar']}\n}}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """Returns the rule of a JSON value with this schema."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_STYLE}, ensure_ascii=False)


def literal(text: str) -> str:
    """Returns the rule of exactly this text."""
    return json.dumps(text, ensure_ascii=False)


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
        # Compiling takes milliseconds, a copy microseconds.
        self._compiled = lru_cache(maxsize=CACHED)(self._compile)

    def check(self, text: str) -> None:
        """Raises ValueError for a grammar that cannot be compiled."""
        tokenizer = self._tokenizer
        from llguidance import LLMatcher

        problem = LLMatcher.validate_grammar(text, tokenizer)
        if problem:
            raise ValueError(f"the grammar of the reply is not possible: {_line(problem)}")

    def is_special(self, token_id: int) -> bool:
        """Tells whether a token is no text for a grammar: ``<tool_call>`` and the like are none,
        whatever the tokenizer calls them."""
        return self._tokenizer.is_special_token(token_id)

    def matcher(self, text: str) -> Matcher:
        """Returns a matcher at the beginning of a reply."""
        return Matcher(self._compiled(text).deep_copy())

    def masks(self, text: str, token_ids: Sequence[int]) -> list[Mask]:
        """Returns the mask before each token of a sampled reply. Raises ModelError if the grammar
        does not allow a token: whatever sampled it applied another one."""
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

        matcher = LLMatcher(tokenizer, text)
        if matcher.is_error():
            raise _failed(matcher.get_error())
        return matcher

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
