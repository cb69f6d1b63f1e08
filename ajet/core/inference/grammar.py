"""Grammars that a reply must follow, as text, and the tokens that they allow, by llguidance.

    response_format --format_rule--> rule --reply_grammar--> grammar --Grammars--> masks

The text is what requests, records and servers carry, in llguidance's dialect of Lark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from loguru import logger

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import message_of
from ajet.core.user_code.importing import require_package

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Mask: TypeAlias = "NDArray[np.uint8]"
"""``ceil(V / 8)`` bytes; bit i % 8 of byte i // 8 is set if token i may come next."""

# As Python's ``json.dumps``: with free white space a model could write spaces until it is cut.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_LENGTH = 200_000
"""The most characters of a grammar."""

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
            texts = choices if isinstance(choices, list) else []
            if not texts or not all(isinstance(text, str) and text for text in texts):
                return "choice must be a list of texts"
    return None


def reply_grammar(body: str, end_token_id: int, thinking: Thinking | None = None) -> str:
    """Returns the grammar of a whole reply: perhaps thinking, then `body`, the rule of the answer,
    and the token that ends the reply, so that it ends when the grammar is complete and not
    before."""
    if thinking is None:
        return f"start: body <[{end_token_id}]>\nbody: {body}"
    before = "thought" if thinking.is_open else f"({thinking.opening} thought)?"
    start = f"start: {before} body <[{end_token_id}]>\nbody: {body}\nFREE_TEXT: /(.|\\n)*/\n"
    # Text never contains a special token. A tag that is text ends the thought where it first
    # appears, hence `lazy`.
    if thinking.closing.startswith("<["):
        return f"{start}thought: FREE_TEXT {thinking.closing} /[ \\n]*/"
    return f"{start}thought: ending /[ \\n]*/\nending[lazy]: FREE_TEXT {thinking.closing}"


def format_rule(content: Mapping[str, Any]) -> str:
    """Returns the rule of an answer in this `response_format`."""
    match content["type"]:
        case "json_object":
            return json_rule({"type": "object"})
        case "json_schema":
            schema = content["json_schema"]
            return json_rule(schema["schema"], strict=schema.get("strict") is True)
        case "regex":
            from llguidance import regex_to_lark

            return f"/{regex_to_lark(content['regex'])}/"
        case "choice":
            return " | ".join(map(literal, content["choice"]))
        case _:
            return f"%lark {{\n{content['grammar']}\n}}"


def json_rule(schema: Mapping[str, Any], *, strict: bool = False) -> str:
    """Returns the rule of a JSON value with this schema. If it is strict, objects have no keys but
    those that it names, as APIs demand of a strict schema."""
    if strict:
        schema = _closed(schema)
    return "%json " + json.dumps({**schema, "x-guidance": JSON_STYLE}, ensure_ascii=False)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    # "properties" may be the name of a property: then it holds a schema, not schemas by name.
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def literal(text: str) -> str:
    """Returns the rule of exactly this text."""
    return json.dumps(text, ensure_ascii=False)


class Matcher:
    """Follows one reply through its grammar: mask(), advance(token), mask(), … Where the text is
    fixed, only its usual tokens may come next: other divisions of it are left out."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> Mask:
        """Returns the tokens that may come next; raises ModelError if there are none."""
        import numpy as np

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
        self._compiled = lru_cache(maxsize=64)(self._compile)
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
