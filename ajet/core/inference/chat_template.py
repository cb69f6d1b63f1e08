"""A tokenizer's chat template: messages in, text and token ids out.

Messages have OpenAI's form. Before rendering they are brought to the form that templates expect:
`content` is a string (None becomes "", text parts are joined), the `arguments` of a tool call are a
dict (a string that is no JSON object stays a string), fields that are None are left out.

A special token that is spelled out in a message is text, never a token: a tool result that says
``<|im_end|>`` cannot end its own turn. Such spellings are put between two marks (Unicode
noncharacters, removed from the messages first), survive the template as marked, and are then
tokenized as plain text:

    tool: "a<|im_end|>b"  ->  …a⟦<|im_end|>⟧b<|im_end|>…  ->  …, a, <, |, im, _end, |, >, b, IM_END

`decode` does the same for what a model samples: where a parser reads a special token, its spelling
in ordinary tokens is broken by a mark.

Families differ in what their templates take: arguments as an object or as JSON text (found out by
rendering both), `reasoning_content` or `thinking`, a description of every tool, ids of calls of
nine letters and digits (Mistral) or that hold the call's name and number (Kimi).

Not covered: images and other content that is not text (an error); templates that glue a special
token together from two strings of a message, or that write calls only where the content is None
(DeepSeek's R1 distillations, which offer no tools either): there a history shows no calls.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

REPLY_TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Tags that a reply is parsed by: text, even where a tokenizer calls them special."""

CALL_END_TOKENS = (
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "</minimax:tool_call>",
    "</arg_value>",
    '<|"|>',
    "<tool_call|>",
    "<escape>",
    "<end_function_call>",
)
"""Special tokens that close a call or a value in it, not the reply."""

CALL_STOP_TOKENS = (
    "<|call|>",
    "<|eom_id|>",
    "<|observation|>",
    "<|tool_response>",
    "<start_function_response>",
)
"""Special tokens that end a reply with a call, besides the one that ends any other."""

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
MARK = f"[{_OPEN}{_CLOSE}]"
_MARKS = re.compile(MARK)
_SURROGATES = re.compile(
    "[\ud800-\udfff]"
)  # half a character (JSON's "\ud83d"): no tokenizer takes it
_LIKE_SPECIAL = re.compile("<[|｜][^<>]*[|｜]>")  # what DeepSeek's tokenizer does not call special
_PROBE = "PROBE"
_QUESTION = {"role": "user", "content": "a"}
_NAMED_ID = re.compile(r"functions\.[^\s:]+:\d+")
_DATE = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


class ChatTemplate:
    """Renders and tokenizes conversations with the tokenizer's own template."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_token_ids: Sequence[int] = ()
    ) -> None:
        """`end_token_ids` are the model's own besides the tokenizer's end of text."""
        if not tokenizer.chat_template:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path or 'the model'!r} has no chat template: "
                "use an instruct model, or put a chat_template.jinja into its folder"
            )
        self._tokenizer = tokenizer
        self._control_ids = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if (token.special or _LIKE_SPECIAL.fullmatch(token.content))
            and token.content not in REPLY_TAGS
        }
        self._spelled = {
            token.content for token in tokenizer.added_tokens_decoder.values() if not token.special
        }
        longest_first = sorted(self._control_ids, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._control = re.compile(names)
        self._unsafe = re.compile(f"{names}|{_MARKS.pattern}|{_SURROGATES.pattern}")
        self._unmarked_control = re.compile(f"(?<!{_OPEN})(?:{names})")
        # The members of a group begin with one prompt: it is tokenized once.
        self._encode_cached = lru_cache(maxsize=128)(lambda text: tuple(self.encode(text)))
        self._writes_date = "strftime_now" in self.text
        self.today = datetime.now()  # what a template writes as the date; a resumed run keeps its
        self._has_warned = True  # not while it is tried out
        self._format = self._find_format()
        self.stop_token_ids: tuple[int, ...] = self._find_stop_token_ids(end_token_ids)
        self._has_warned = "tools" in self.text

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    @property
    def writes_content_last(self) -> bool:
        """Whether a reply's content comes after its calls and their results (Gemma 4)."""
        return self._format.content_last

    @property
    def text(self) -> str:
        """The template's source (all of them, where the tokenizer has several)."""
        source: Any = self._tokenizer.chat_template
        return "\n".join(source.values()) if isinstance(source, dict) else source

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as the template writes it, for people and parsers to read."""
        return _MARKS.sub("", self.render_marked(messages, tools, add_generation_prompt))

    def prompt_ids(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """The ids of a fresh render, ready for a reply."""
        return list(self.encode_cached(self.render_marked(messages, tools)))

    def decode(self, ids: Sequence[int], keep: Sequence[str] = ()) -> str:
        """The text of sampled ids, without special tokens; tags that parsers read stay.

        The special tokens in `keep` stay too. Where such a token was spelled out with others, a
        mark breaks the spelling (`clean_text` takes it away), so that only the token counts.
        """
        kept = {self._control_ids[name]: name for name in keep if name in self._control_ids}
        control = set(self._control_ids.values()) - kept.keys()
        pieces: list[str] = []
        for is_kept, run in groupby((i for i in ids if i not in control), kept.__contains__):
            if is_kept:
                pieces += [kept[token_id] for token_id in run]
            else:
                pieces.append(_break_up(self.text_of(list(run)), kept.values()))
        return "".join(pieces)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of any ids, special tokens and all."""
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def token_text(self, token_id: int) -> str:
        """How one token is spelled."""
        return str(self._tokenizer.convert_ids_to_tokens(token_id))

    def decode_one(self, token_id: int) -> str:
        """The text of one token, special ones spelled out."""
        return str(self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False))

    def render_marked(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """As `render`, with the marks around special tokens that messages spell out."""
        from jinja2 import TemplateError

        if tools and not self._has_warned:
            self._has_warned = True
            logger.warning("the chat template has no place for tools: the model does not see them")
        try:
            plain = [normalised(message) for message in messages]
            if self._format.named_ids:
                plain = _with_named_ids(plain)
            text = self._tokenizer.apply_chat_template(
                [self._mark(self._formatted(message)) for message in plain],
                tools=self._mark(list(map(self._formatted_tool, tools))) if tools else None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                chat_template=self._with_run_date(tools) if self._writes_date else None,
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ModelError(
                f"the chat template cannot render messages ({roles}): {error}"
            ) from error
        assert isinstance(text, str)
        return text

    def marked(self, text: str) -> str:
        """`text` with marks around every special token that it spells out."""
        return self._control.sub(f"{_OPEN}\\g<0>{_CLOSE}", clean_text(text))

    def encode(self, marked_text: str) -> list[int]:
        """Token ids of a render (or of its end), what is marked as plain text."""
        ids: list[int] = []
        for index, piece in enumerate(_MARKED.split(marked_text)):
            if index % 2 == 0:
                ids += self._encode(_MARKS.sub("", piece))
            elif piece in self._spelled:  # tokenizers split up only what they call special
                ids += self._encode(piece[:1]) + self._encode(piece[1:])
            else:
                ids += self._encode(piece, split_special_tokens=True)
        return ids

    def as_plain(self, text: str) -> str:
        """The text with marks around what spells a special token: `encode` takes it as text."""
        return self._mark(text)

    def _encode(self, text: str, split_special_tokens: bool = False) -> list[int]:
        if not text:
            return []
        return self._tokenizer.encode(
            text,
            add_special_tokens=False,
            split_special_tokens=split_special_tokens,
            verbose=False,
        )

    def encode_cached(self, marked_text: str) -> tuple[int, ...]:
        """As `encode`, remembering the latest texts."""
        return self._encode_cached(marked_text)

    def find_control(self, marked_text: str, start: int) -> tuple[int, int] | None:
        """Position and id of the template's first own special token at or after `start`."""
        match = self._unmarked_control.search(marked_text, start)
        return (match.start(), self._control_ids[match.group()]) if match else None

    def find_reply_end(self, marked_text: str, start: int) -> tuple[int, int] | None:
        """As `find_control`, past the tokens that close a call."""
        found = self.find_control(marked_text, start)
        while found and marked_text.startswith(CALL_END_TOKENS, found[0]):
            found = self.find_control(marked_text, found[0] + 1)
        return found

    def _formatted(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message in the form that this template takes."""
        formatted = _only_text(message)
        if self._format.reads_thinking and "reasoning_content" in formatted:
            formatted["thinking"] = formatted.pop("reasoning_content")
        if formatted.get("tool_calls"):
            if (
                self._format.joins_thinking_and_content
                and formatted.get("thinking")
                and formatted["content"]
            ):
                formatted["thinking"] += "\n" + formatted["content"]
                formatted["content"] = ""
            formatted["tool_calls"] = [
                self._formatted_call(call) for call in formatted["tool_calls"]
            ]
        if self._format.short_ids and "tool_call_id" in formatted:
            formatted["tool_call_id"] = _short_id(formatted["tool_call_id"])
        return formatted

    def _formatted_tool(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        function = tool.get("function")
        if not self._format.needs_descriptions or not isinstance(function, Mapping):
            return tool
        with_description = {**function, "description": function.get("description") or ""}
        return {**tool, "function": with_description}

    def _formatted_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        if self._format.arguments_as_text and not isinstance(function["arguments"], str):
            text = json.dumps(function["arguments"], ensure_ascii=False)
            call = {**call, "function": {**function, "arguments": text}}
        if self._format.short_ids:
            call = {**call, "id": _short_id(call.get("id"))}
        return call

    def _find_format(self) -> _MessageFormat:
        """What the template takes; arguments are an object, if it writes that as JSON."""
        source = self.text
        from_source = _MessageFormat(
            reads_thinking="reasoning_content" not in source
            and re.search(r"""\.thinking\b|['"]thinking['"]""", source) is not None,
            joins_thinking_and_content="Cannot pass both content and thinking" in source,
            needs_descriptions="+ tool.description" in source,
            short_ids=re.search(r"length\s*!=\s*9", source) is not None,
            named_ids="<|tool_call_argument_begin|>" in source,
            content_last="<|tool_call>" in source,
        )
        if "tool_calls" not in source:
            return from_source
        function = {"name": _PROBE, "arguments": {_PROBE: _PROBE}}
        call_message = {"role": "assistant", "tool_calls": [{"id": _PROBE, "function": function}]}
        for as_text in (False, True):
            self._format = replace(from_source, arguments_as_text=as_text)
            text = self._try_render([_QUESTION, call_message])
            if _PROBE in text and f"'{_PROBE}'" not in text:  # an object, not Python's dict
                return self._format
        return from_source

    def _try_render(self, messages: Sequence[Message]) -> str:
        """A render without a generation prompt, "" where the template refuses it."""
        try:
            return self.render_marked(messages, add_generation_prompt=False)
        except ModelError:
            return ""

    def _with_run_date(self, tools: Tools | None) -> str:
        """The template with the run's date in the place of today's."""
        source: Any = self._tokenizer.get_chat_template(None, list(tools) if tools else None)  # pyright: ignore
        return _DATE.sub(lambda match: json.dumps(self.today.strftime(match[2])), source)

    def _mark(self, value: Any) -> Any:
        """`value` with marks around every special token that its strings spell out."""
        if isinstance(value, str):
            return self.marked(value) if self._unsafe.search(value) else value
        if isinstance(value, dict):
            return {self._mark(key): self._mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mark(item) for item in value]
        return value

    def _find_stop_token_ids(self, end_token_ids: Sequence[int]) -> tuple[int, ...]:
        """The tokenizer's end of text, what the template writes after a reply, the model's own,
        and those that hand over to a tool."""
        reply = {"role": "assistant", "content": _PROBE}
        # A last reply may end otherwise than an earlier one (gpt-oss); some end only there, or not.
        text = self._try_render([_QUESTION, reply])
        found = self.find_control(text, text.rfind(_PROBE)) if _PROBE in text else None
        if not found:
            text = self.render_marked([_QUESTION, reply, _QUESTION], add_generation_prompt=False)
            found = self.find_control(text, text.rfind(_PROBE)) if _PROBE in text else None
        eos = self._tokenizer.eos_token_id
        ends = ([eos] if isinstance(eos, int) else []) + ([found[1]] if found else [])
        call_stops = [
            self._control_ids[name] for name in CALL_STOP_TOKENS if name in self._control_ids
        ]
        return tuple(dict.fromkeys([*ends, *end_token_ids, *call_stops]))


@dataclass(frozen=True, slots=True)
class _MessageFormat:
    """What a template takes of the forms that a message may have."""

    arguments_as_text: bool = False
    reads_thinking: bool = False  # and no `reasoning_content`
    joins_thinking_and_content: bool = (
        False  # content or thinking beside a call: the first joins the second
    )
    needs_descriptions: bool = False  # of tools
    short_ids: bool = False
    named_ids: bool = False  # a call's name is written in its id alone
    content_last: bool = False  # of a reply with calls, after these and their results


def clean_text(text: str) -> str:
    """Without marks, and with a replacement for half characters, which cannot be encoded."""
    return _SURROGATES.sub("\ufffd", _MARKS.sub("", text))


def _break_up(text: str, names: Iterable[str]) -> str:
    """`text` with a mark within every one of `names` that it spells."""
    for name in names:
        text = text.replace(name, name[0] + _OPEN + name[1:])
    return text


def _short_id(call_id: Any) -> str:
    """Nine letters and digits, the same ones for the same id."""
    if isinstance(call_id, str) and re.fullmatch("[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(str(call_id).encode()).hexdigest()[:9]


def _with_named_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with ids like `functions.NAME:NUMBER`, numbered through the conversation; an id
    of that form stays. A result has the id of the call that it answers."""
    named: dict[str, str] = {}
    number = 0
    result: list[dict[str, Any]] = []
    for message in messages:
        calls: list[dict[str, Any]] = []
        for call in message.get("tool_calls", ()):
            old = str(call.get("id"))
            numbered_id = f"functions.{call['function']['name']}:{number}"
            new = old if _NAMED_ID.fullmatch(old) else numbered_id
            number += 1
            named[old] = new
            calls.append({**call, "id": new})
        changed: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if "tool_call_id" in message:
            call_id = message["tool_call_id"]
            changed["tool_call_id"] = named.get(str(call_id), call_id)
        result.append({**message, **changed})
    return result


def normalised(message: Message) -> dict[str, Any]:
    """The message in the form that templates expect (see the module's docstring)."""
    result = {key: value for key, value in message.items() if value is not None}
    result["content"] = _joined(message.get("content"))
    if message.get("tool_calls"):
        result["tool_calls"] = [_normalised_call(call) for call in message["tool_calls"]]
    else:
        result.pop("tool_calls", None)
    return result


def _only_text(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message["content"], str):
        raise ModelError(
            f"a message ({message.get('role')}) has content that is not text: the models served "
            "here read text alone"
        )
    return message


def parsed_arguments(arguments: Any) -> Any:
    """A JSON object as a dict; anything else as it is."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _joined(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, list) and all(map(_is_text, content)):
        return "".join(part["text"] or "" for part in content)
    return content


def _is_text(part: Any) -> bool:
    """AgentScope says nothing beside a call as a text of None."""
    return (
        isinstance(part, Mapping)
        and "text" in part
        and (part["text"] is None or isinstance(part["text"], str))
    )


def _normalised_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call
    rest = {key: value for key, value in call.items() if key in ("id", "type")}
    arguments = parsed_arguments(function.get("arguments"))
    return {
        "type": "function",
        **rest,
        "function": {"name": function.get("name"), "arguments": arguments},
    }
