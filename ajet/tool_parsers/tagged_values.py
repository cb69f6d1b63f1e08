"""Parses calls whose arguments are text between tags: those of GLM, Qwen3-Coder and MiniMax.

There are no escapes and no types: a value gets the type of the tool's schema, and text in it that
looks like its end, followed by another tag of the call, ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser, offered_functions, read_json

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
MAX_REFERENCES = 32  # levels of schemas within schemas; deeper ones count as unknown


@dataclass(frozen=True, slots=True)
class ParameterTags:
    """The patterns around the values of a family. The first group of a key is its name."""

    key: re.Pattern[str]  # from before a key up to its value
    end: re.Pattern[str]  # the end of a value, with what must follow as a lookahead
    next_key: re.Pattern[str]  # a further parameter in a value whose end tag is missing
    call_end: re.Pattern[str]  # the end of a call in a value whose end tag is missing
    next_call: re.Pattern[str]  # the beginning of a further call


def read_values(
    text: str, position: int, tags: ParameterTags, may_have: Callable[[str], bool]
) -> tuple[dict[str, Any], int] | None:
    """Returns the arguments at `position` as text, and their end; None if a value has no end or a
    key occurs twice. A further parameter ends a value only if the call `may_have` it."""
    values: dict[str, Any] = {}
    while key := tags.key.match(text, position):
        end = _end_of_value(text, key.end(), tags, may_have)
        name = key[1]
        if not end or name in values:
            return None
        values[name] = text[key.end() : end[0]]
        position = end[1]
    return values, position


def _end_of_value(
    text: str, start: int, tags: ParameterTags, may_have: Callable[[str], bool]
) -> tuple[int, int] | None:
    """Returns the end of a value, and the end of its end tag. That may be missing, as in Qwen's and
    vLLM's parsers: the value ends where the next parameter of the tool begins, the last one with
    the call."""
    end = tags.end.search(text, start)
    span = end.span() if end else None
    call_end = tags.call_end.search(text, start)
    if call_end and (span is None or call_end.start() < span[0]):
        # A value that has its end tag may spell the end of a call, and one that was cut may be
        # followed by another call: the value ends with the call only if that ends before another.
        further = tags.next_call.search(text, start)
        is_last = further is None or further.start() > call_end.start()
        if is_last and (span is None or (further and further.start() < span[0])):
            span = call_end.start(), call_end.start()
    if span is None:
        return None
    for key in tags.next_key.finditer(text, start):
        if key.start() >= span[0]:
            break
        if may_have(key[1]):
            return key.start(), key.end()
    return span


class ParameterTypes:
    """The types of a tool's parameters: "2" is 2 if the schema says integer. A value that the
    schema allows as text and as JSON is read as JSON, as is one without a known schema. One that is
    neither stays text, and the tool answers with an error."""

    def __init__(self, tools: Tools | None, name: str) -> None:
        parameters = offered_functions(tools).get(name, {}).get("parameters")
        self._root: Any = parameters
        self._properties = dict(_properties(parameters, parameters, MAX_REFERENCES))
        self._additional = (
            parameters.get("additionalProperties") if isinstance(parameters, Mapping) else None
        )

    def may_have(self, key: str) -> bool:
        """Returns whether a parameter has this name; any may if none is known."""
        return not self._properties or key in self._properties

    def typed(
        self, values: Mapping[str, str], literals: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns the values with their types. `literals` are values that the family writes unlike
        JSON (Python's `True`)."""
        return {key: self._typed(key, text, literals or {}) for key, text in values.items()}

    def _typed(self, key: str, text: str, literals: Mapping[str, Any]) -> Any:
        schema, stripped = self._properties.get(key, self._additional), text.strip()
        values: list[Any] = [literals[stripped]] if stripped in literals else []
        parsed = read_json(stripped, 0)
        if parsed and parsed[1] == len(stripped) and not isinstance(parsed[0], str):
            values.append(parsed[0])
        # Second round: a value of the right type that is not one of the constants stays typed.
        for constants in (True, False):
            for value in (*values, text):
                if _accepts(schema, value, self._root, constants, MAX_REFERENCES):
                    return value
        return text


def _accepts(schema: Any, value: Any, root: Any, constants: bool, depth: int) -> bool:
    """Returns whether the schema accepts a value of this type, and with `constants` also this
    value. What the schema does not mention is accepted."""
    if not isinstance(schema, Mapping) or not depth:
        return schema is not False

    def accepts(part: Any) -> bool:
        return _accepts(part, value, root, constants, depth - 1)

    if value is None and schema.get("nullable") is True:  # OpenAPI
        return True
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    if isinstance(types, list) and not any(type(value) in _TYPES.get(str(t), ()) for t in types):
        return False
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list):
        # By type first, because True == 1 in Python.
        options = [option for option in options if _type(option) is _type(value)]
        if not options or (constants and value not in options):
            return False
    if "$ref" in schema and not accepts(_referred(schema["$ref"], root)):
        return False
    for name, combine in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        schemas = schema.get(name)
        if isinstance(schemas, list) and schemas and not combine(map(accepts, schemas)):
            return False
    return True


def _type(value: Any) -> type:
    return float if type(value) is int else type(value)


def _properties(schema: Any, root: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yields the properties of an object's schema and of those that it refers to. Later ones take
    precedence."""
    if not isinstance(schema, Mapping) or not depth:
        return
    inner = schema.get("allOf")
    for part in inner if isinstance(inner, list) else ():
        yield from _properties(part, root, depth - 1)
    if "$ref" in schema:
        yield from _properties(_referred(schema["$ref"], root), root, depth - 1)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from properties.items()


def _referred(reference: Any, root: Any) -> Any:
    """Returns the schema that a `$ref` names within `root`; None if there is none."""
    path = str(reference).removeprefix("#")
    if not str(reference).startswith("#") or (path and not path.startswith("/")):
        return None
    target = root
    for step in path.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            target = target.get(name) if isinstance(target, Mapping) else None
    return target


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_GLM_NAME = re.compile(r"\s*([^\s<>{}]+)")
_GLM_TAGS = ParameterTags(
    key=re.compile(r"\s*<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>"),
    end=re.compile(rf"</arg_value>(?=\s*(?:<arg_key>|{_CLOSE}))"),
    next_key=re.compile(r"\n?(?=<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>)"),
    call_end=re.compile(rf"\n?(?={_CLOSE})"),
    next_call=re.compile(rf"{_OPEN}\s*[^\s<>{{}}]+\s*(?:<arg_key>|{_CLOSE})"),
)
_GLM_END = re.compile(rf"\s*{_CLOSE}")


class GlmParser(ThinkingParser):
    """Parses tool calls of GLM 4.5 and later, and Poolside's Laguna. The line breaks may be missing
    (as in the template of GLM-4.7). Hunyuan 3's variant, with `<tool_sep>`, is not parsed.

        <tool_call>add
        <arg_key>a</arg_key>
        <arg_value>2</arg_value>
        </tool_call>
    """

    special_tokens = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        name = _GLM_NAME.match(text, body)
        if not name:
            return None
        types = ParameterTypes(tools, name[1])
        values = read_values(text, name.end(), _GLM_TAGS, types.may_have)
        end = _GLM_END.match(text, values[1]) if values else None
        if not values or not end:
            return None
        return [Call(name[1], types.typed(values[0]))], end.end()

    def opening(self, name: str | None) -> str:
        # The line break ends the name, also for models that write none there.
        return _OPEN if name is None else f"{_OPEN}{name}\n"


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_QWEN_TAGS = ParameterTags(
    key=re.compile(r"\s*<parameter=([^>\n]+)>\n?"),
    end=re.compile(rf"\n?</parameter>(?=\s*(?:<parameter=|</function>|{_CLOSE}))"),
    next_key=re.compile(r"\n(?=<parameter=([^>\n]+)>\n)"),
    call_end=re.compile(rf"\n?(?=</function>\s*{_CLOSE})"),
    next_call=re.compile(rf"{_OPEN}\s*<function="),
)
# In a call without line breaks a parameter may begin anywhere.
_QWEN_TAGS_INLINE = replace(_QWEN_TAGS, next_key=re.compile(r"(?=<parameter=([^>\n]+)>)"))
_FIRST_LINE = re.compile(r"\s*<parameter=[^>\n]+>\n")
_QWEN_END = re.compile(rf"\s*(?:</function>\s*)?{_CLOSE}")
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}  # Qwen3.5's template writes these


class Qwen3CoderParser(ThinkingParser):
    """Parses tool calls of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3. A value is the text
    between one line break before and one after it. `</parameter>` and `</function>` may be missing.

        <tool_call>
        <function=add>
        <parameter=a>
        2
        </parameter>
        </function>
        </tool_call>
    """

    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        function = _FUNCTION.match(text, body)
        if not function:
            return None
        tags = _QWEN_TAGS if _FIRST_LINE.match(text, function.end()) else _QWEN_TAGS_INLINE
        types = ParameterTypes(tools, function[1])
        values = read_values(text, function.end(), tags, types.may_have)
        end = _QWEN_END.match(text, values[1]) if values else None
        if not values or not end:
            return None
        return [Call(function[1], types.typed(values[0], _PYTHON_LITERALS))], end.end()

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the equals sign with the name after it.
        return "<tool_call>\n<function" if name is None else f"<tool_call>\n<function={name}>\n"


_BLOCK_OPEN, _BLOCK_CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = re.compile(r'\s*<invoke name="([^"\n]+)">')
_AFTER_INVOKE = rf"\s*(?:<invoke name=|{_BLOCK_CLOSE})"
_INVOKE_TAGS = ParameterTags(
    key=re.compile(r'\s*<parameter name="([^"\n]+)">'),
    end=re.compile(rf"</parameter>(?=\s*(?:<parameter name=|</invoke>)|{_AFTER_INVOKE})"),
    next_key=re.compile(r'\n?(?=<parameter name="([^"\n]+)">)'),
    call_end=re.compile(rf"\n?(?=</invoke>{_AFTER_INVOKE})"),
    next_call=re.compile(r'<invoke name="'),
)
_INVOKE_END = re.compile(r"\s*</invoke>")
_NO_INVOKE_END = re.compile(rf"(?={_AFTER_INVOKE})")
_BLOCK_END = re.compile(rf"\s*{_BLOCK_CLOSE}")


class MiniMaxM2Parser(ThinkingParser):
    """Parses tool calls of MiniMax M2 and M2.5. `</parameter>` and `</invoke>` may be missing after
    a value. If one call of a block is malformed, all of the block stays content.

        <minimax:tool_call>
        <invoke name="add">
        <parameter name="a">2</parameter>
        </invoke>
        </minimax:tool_call>
    """

    special_tokens = (_BLOCK_OPEN, _BLOCK_CLOSE)
    call_opening = re.compile(_BLOCK_OPEN)
    call_closing = _BLOCK_CLOSE

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        calls: list[Call] = []
        position = body
        while invoke := _INVOKE.match(text, position):
            types = ParameterTypes(tools, invoke[1])
            values = read_values(text, invoke.end(), _INVOKE_TAGS, types.may_have)
            if not values:
                return None
            end = _INVOKE_END.match(text, values[1])
            if not end and values[0]:
                end = _NO_INVOKE_END.match(text, values[1])
            if not end:
                return None
            calls.append(Call(invoke[1], types.typed(values[0])))
            position = end.end()
        end = _BLOCK_END.match(text, position)
        return (calls, end.end()) if calls and end else None

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the equals sign with the quotation mark.
        begin = f"{_BLOCK_OPEN}\n<invoke name"
        return begin if name is None else f'{begin}="{name}">\n'
