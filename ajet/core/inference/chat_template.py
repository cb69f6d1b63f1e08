"""Renders and tokenizes messages with a tokenizer's chat template.

A special token that is spelled out in a message is text, never a token: a tool result with the text
``<|im_end|>`` cannot end its turn. `_MessageFormat` lists how the templates of families differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Self

from loguru import logger

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import image_parts, is_image_part
from ajet.core.images.image_ids import FIRST_ID, image_ids, image_name, keys_in_order
from ajet.core.inference.grammar import Thinking, literal
from ajet.core.model.tokenizer import reads_variable
from ajet.core.task.chat_messages import (
    THINKING,
    current_form,
    joined_text,
    parsed_arguments,
    why_not_text,
)
from ajet.core.text.plain_value import plain_text, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ajet.core.images.processor import ImageProcessor

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
"""Tags that parsers read. They are text, even if a tokenizer calls them special."""

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
"""Special tokens that end a call or a value in it, but not the reply."""

CALL_STOP_TOKENS = (
    "<|call|>",
    "<|eom_id|>",
    "<|observation|>",
    "<|tool_response>",
    "<start_function_response>",
)
"""Special tokens that end a reply with a call, in addition to the usual end of a reply."""

_OPEN, _CLOSE, _KEY = "\ufdd0", "\ufdd1", "\ufdd2"
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
_IMAGE = re.compile(f"{_KEY}([0-9a-f]+){_KEY}")
MARK = f"[{_OPEN}{_CLOSE}{_KEY}]"
_MARKS = re.compile(f"{_IMAGE.pattern}|{MARK}")
_SURROGATES = re.compile("[\ud800-\udfff]")  # alone (JSON's "\ud83d"), which tokenizers refuse
_LIKE_SPECIAL = re.compile("<[|｜][^<>]*[|｜]>")  # not marked as special in DeepSeek's tokenizer
_PROBE = "PROBE"
MAX_THINKING_END = 16
"""The most tokens of the end of a prompt that may open or close thinking."""
_QUESTION = {"role": "user", "content": "a"}
NAMED_ID = re.compile(r"functions\.[^\s:]+:\d+")
SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
_DATE = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
TEMPLATE_FAULTS += (MemoryError, RecursionError)
"""What a template's expressions raise, in addition to Jinja's errors."""


class ChatTemplate:
    """Renders and tokenizes conversations with the tokenizer's own template.

    Special tokens that messages spell out are put between two marks (Unicode noncharacters, which
    are first removed from the messages), rendered, and then tokenized as plain text:

        tool: "a<|im_end|>b"  ->  …a⟦<|im_end|>⟧b<|im_end|>…  ->  …, a, <, |, im, _end, |, >, b, …

    An image's placeholder is followed by the image's key between two marks of another kind.
    Tokenizing replaces it by what the model's processor makes of the image, with the image's own
    ids. One known gap: DeepSeek's R1 distillations write no calls into a history with content.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_token_ids: Sequence[int] = (),
        images: ImageProcessor | None = None,
    ) -> None:
        """`end_token_ids` are the model's end tokens, in addition to the tokenizer's end of
        text. `images` are those of a model that sees them."""
        from ajet.core.inference.grammar import Grammars

        if not tokenizer.chat_template:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path or 'the model'!r} has no chat template: "
                "use an instruct model, or put a chat_template.jinja into its folder",
                code=Code.NO_CHAT_TEMPLATE,
            )
        self.tokenizer = tokenizer
        self.images = images
        self._control_ids = {
            token.content: token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if (token.special or _LIKE_SPECIAL.fullmatch(token.content))
            and token.content not in REPLY_TAGS
        }
        # `split_special_tokens` does not split these: `encode` has to.
        self._unsplit = {
            token.content for token in tokenizer.added_tokens_decoder.values() if not token.special
        }
        longest_first = sorted(self._control_ids, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._control = re.compile(names)
        self._unsafe = re.compile(f"{names}|{_MARKS.pattern}|{_SURROGATES.pattern}")
        self._unmarked_control = re.compile(f"(?<!{_OPEN})(?:{names})")
        # The episodes of a group begin with the same prompt, which is tokenized once.
        self.encode_cached = lru_cache(maxsize=128)(lambda text: tuple(self.encode(text)))
        self._writes_date = "strftime_now" in self.text
        self._kwargs: Mapping[str, Any] = {}  # variables of the template, for each render
        self._unread_kwargs: set[str] = set()  # those that it does not mention; each warned of once
        self.today = datetime.now()  # the date in templates; a resumed run sets that of its start
        self._has_warned = True  # no warnings during trial renders
        self._format = self._find_format()
        self.end_token_id: int | None = self._find_end_token_id()
        # The tokens that end a reply: the tokenizer's end of text, what the template writes after a
        # reply, the model's end tokens, and those after a tool call.
        ends = [i for i in (tokenizer.eos_token_id, self.end_token_id) if isinstance(i, int)]
        ends += end_token_ids
        ends += [self._control_ids[name] for name in CALL_STOP_TOKENS if name in self._control_ids]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        self.grammars = Grammars(tokenizer)
        self._has_warned = "tools" in self.text

    @property
    def writes_content_last(self) -> bool:
        """True if a reply's content comes after its calls and their results (Gemma 4)."""
        return self._format.content_last

    @property
    def text(self) -> str:
        """The template's source, or all of them if the tokenizer has several."""
        source: Any = self.tokenizer.chat_template
        return "\n".join(source.values()) if isinstance(source, dict) else source

    def with_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """Returns this template with variables set, such as `enable_thinking`. Warns once of a name
        that the template does not mention."""
        if not kwargs:
            return self
        for name in kwargs.keys() - self._unread_kwargs:
            if not reads_variable(self.text, name):
                self._unread_kwargs.add(name)
                logger.warning(
                    f"a call sets chat_template_kwargs.{plain_text(name, 100)}, which this model's "
                    "chat template does not read: it has no effect"
                )
        template = copy(self)
        template._kwargs = kwargs
        return template

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Returns the conversation as the template writes it, for people and parsers."""
        return _MARKS.sub("", self.render_marked(messages, tools, add_generation_prompt))

    def prompt_ids(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """Returns the ids of a fresh render that ends with the generation prompt."""
        return list(self.encode_cached(self.render_marked(messages, tools)))

    def decode(self, ids: Sequence[int], keep: Sequence[str] = ()) -> str:
        """Returns the text of sampled ids without special tokens, except `REPLY_TAGS` and `keep`.

        If ordinary tokens spell a token in `keep`, a mark breaks up the spelling (`clean_text`
        removes it), so that a parser only sees the real token.
        """
        kept = {self._control_ids[name]: name for name in keep if name in self._control_ids}
        control = set(self._control_ids.values()) - kept.keys()
        pieces: list[str] = []
        for is_kept, run in groupby((i for i in ids if i not in control), kept.__contains__):
            if is_kept:
                pieces += [kept[token_id] for token_id in run]
            else:
                text = self.text_of(list(run))
                for name in kept.values():
                    text = text.replace(name, name[0] + _OPEN + name[1:])
                pieces.append(text)
        return "".join(pieces)

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns the text of any ids, with all special tokens, and the name of each image."""
        pieces: list[str] = []
        for of_images, run in groupby(ids, FIRST_ID.__le__):
            if of_images:
                pieces += map(image_name, keys_in_order(list(run)))
                continue
            text = self.tokenizer.decode(
                list(run), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            assert isinstance(text, str)
            pieces.append(text)
        return "".join(pieces)

    def token_text(self, token_id: int) -> str:
        """Returns one token as the vocabulary spells it."""
        if token_id >= FIRST_ID:
            return self.text_of([token_id])
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def decode_one(self, token_id: int) -> str:
        """Returns the text of one token; special tokens are spelled out."""
        if token_id >= FIRST_ID:
            return self.text_of([token_id])
        return str(self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False))

    def render_marked(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Renders with marks around the special tokens that messages spell out."""
        return self.render_marked_all([messages], tools, add_generation_prompt)[0]

    def render_marked_all(
        self,
        conversations: Sequence[Sequence[Message]],
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
    ) -> list[str]:
        """Renders several conversations with the same tools."""
        from jinja2 import TemplateError

        if tools and not self._has_warned:
            self._has_warned = True
            logger.warning("the chat template has no place for tools: the model does not see them")
        template: str | None = None
        try:
            if self._writes_date:  # the run's date, instead of a call for today's
                listed: Any = list(tools) if tools else None
                source: Any = self.tokenizer.get_chat_template(None, listed)
                template = _DATE.sub(lambda m: json.dumps(self.today.strftime(m[2])), source)
            plain = [self._plain(messages) for messages in conversations]
            texts = self.tokenizer.apply_chat_template(
                plain if len(plain) > 1 else plain[0],
                tools=self._mark(list(map(self._formatted_tool, tools))) if tools else None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                chat_template=template,
                **{name: self._mark(value) for name, value in self._kwargs.items()},
            )
        except (TemplateError, *TEMPLATE_FAULTS) as error:
            roles = ", ".join(
                str(message.get("role")) for messages in conversations for message in messages
            )
            reason = printable(str(error) or type(error).__name__)
            raise ModelError(
                f"the chat template cannot render messages ({roles}): {reason}",
                code=Code.TEMPLATE_FAILS,
            ) from error
        texts = [texts] if isinstance(texts, str) else [str(text) for text in texts]
        return [self._with_keys(*pair) for pair in zip(texts, conversations, strict=True)]

    def _with_keys(self, text: str, messages: Sequence[Message]) -> str:
        """Returns a render with the key of each image after its placeholder."""
        # Templates write images in the order of the messages, so the n-th placeholder is the n-th.
        keys = [part["image"] for message in messages for part in image_parts(message)]
        if not keys or self.images is None:
            return text
        holder = re.compile(f"(?<!{_OPEN}){re.escape(self.images.placeholder)}(?!{_CLOSE})")
        if (number := len(holder.findall(text))) != len(keys):
            raise ModelError(
                f"the chat template wrote {number} of {len(keys)} images",
                code=Code.TEMPLATE_FAILS,
            )
        left = iter(keys)
        return holder.sub(lambda match: f"{match.group()}{_KEY}{next(left)}{_KEY}", text)

    def _plain(self, messages: Sequence[Message]) -> list[Any]:
        plain = [normalised(message) for message in current_form(messages)]
        if self._format.named_ids:
            plain = _with_named_ids(plain)
        return [self._mark(self._formatted(message)) for message in plain]

    def marked(self, text: str) -> str:
        """Returns the text with marks around the special tokens that it spells out, so that
        `encode` takes it as plain text."""
        return self._control.sub(f"{_OPEN}\\g<0>{_CLOSE}", clean_text(text))

    def encode(self, marked_text: str) -> list[int]:
        """Returns the token ids of a render, or of the end of one. Marked spellings are plain
        text."""
        ids: list[int] = []
        # `split` alternates: text, marked spelling, text, …
        for index, piece in enumerate(_MARKED.split(marked_text)):
            if index % 2 == 0:
                ids += self._encode_with_images(piece)
            elif piece in self._unsplit:
                ids += self._encode(piece[:1]) + self._encode(piece[1:])
            else:
                ids += self._encode(piece, split_special_tokens=True)
        return ids

    def _encode_with_images(self, text: str) -> list[int]:
        """Returns the ids of a text with keys of images."""
        keys = [int(key, 16) for key in _IMAGE.findall(text)]
        if not keys or self.images is None:
            return self._encode(_MARKS.sub("", text))
        images = self.images
        # One text: a processor, too, expands first and then tokenizes.
        holder = re.compile(re.escape(images.placeholder) + _IMAGE.pattern)
        text = holder.sub(lambda match: images.expansion(int(match[1], 16)).text, text)
        ids = self._encode(_MARKS.sub("", text))
        left = chain.from_iterable(
            image_ids(key, images.expansion(key).num_tokens).tolist() for key in keys
        )
        return [next(left) if token_id == images.image_token_id else token_id for token_id in ids]

    def _encode(self, text: str, split_special_tokens: bool = False) -> list[int]:
        if not text:
            return []
        return self.tokenizer.encode(
            text,
            add_special_tokens=False,
            split_special_tokens=split_special_tokens,
            verbose=False,
        )

    @cached_property
    def vocabulary_hash(self) -> str:
        """A hash of the tokenizer's tokens and their ids."""
        tokens = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]

    @cached_property
    def max_token_length(self) -> int:
        """The number of characters of the vocabulary's longest token."""
        return max(map(len, self.tokenizer.get_vocab()))

    def find_control(self, marked_text: str, start: int) -> tuple[int, int] | None:
        """Returns position and id of the first special token of the template itself from
        `start`."""
        match = self._unmarked_control.search(marked_text, start)
        return (match.start(), self._control_ids[match.group()]) if match else None

    def find_reply_end(self, marked_text: str, start: int) -> tuple[int, int] | None:
        """Like `find_control`, but skips the tokens that end a call."""
        position_and_id = self.find_control(marked_text, start)
        while position_and_id and marked_text.startswith(CALL_END_TOKENS, position_and_id[0]):
            position_and_id = self.find_control(marked_text, position_and_id[0] + 1)
        return position_and_id

    def _formatted(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the message in the form that this template takes."""
        message["content"] = self._formatted_content(message)
        if THINKING[0] in message:
            message[self._format.thinking] = message.pop(THINKING[0])
        if message.get("tool_calls"):
            if (
                self._format.joins_thinking_and_content
                and message.get("thinking")
                and isinstance(message["content"], str)
                and message["content"]
            ):
                message["thinking"] += "\n" + message["content"]
                message["content"] = ""
            calls: list[dict[str, Any]] = []
            for call in message["tool_calls"]:
                function = call["function"]
                if self._format.arguments_as_text and not isinstance(function["arguments"], str):
                    text = json.dumps(function["arguments"], ensure_ascii=False)
                    call = {**call, "function": {**function, "arguments": text}}
                short = {"id": _short_id(call.get("id"))} if self._format.short_ids else {}
                calls.append(call | short)
            message["tool_calls"] = calls
        if self._format.short_ids and "tool_call_id" in message:
            message["tool_call_id"] = _short_id(message["tool_call_id"])
        return message

    def _formatted_content(self, message: dict[str, Any]) -> Any:
        content = message["content"]
        if isinstance(content, str):
            in_parts = self._format.content_in_parts and content
            return [{"type": "text", "text": content}] if in_parts else content
        parts: list[dict[str, str]] = []
        for part in content:
            if is_image_part(part):
                parts.append({"type": "image"})
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append({"type": "text", "text": part["text"]})
        if self.images is not None and len(parts) == len(content):
            return parts
        remedy = "the model reads only text"
        if any(map(is_image_part, content)):
            remedy += "; set ajet.model.images.enabled if it sees images"
        raise ModelError(
            f"a message ({message.get('role')}) has content that is not text "
            f"({why_not_text(content)}): {remedy}",
            code=Code.TEMPLATE_FAILS,
        )

    def _formatted_tool(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        function = tool.get("function")
        if not self._format.needs_descriptions or not isinstance(function, Mapping):
            return tool
        with_description = {**function, "description": function.get("description") or ""}
        return {**tool, "function": with_description}

    def _find_format(self) -> _MessageFormat:
        """Finds the message format that the template takes, from its source and trial renders."""
        source = self.text
        from_source = _MessageFormat(
            thinking=next(
                (name for name in THINKING if re.search(rf"""[.'"]{name}\b""", source)), THINKING[0]
            ),
            joins_thinking_and_content="Cannot pass both content and thinking" in source,
            needs_descriptions="+ tool.description" in source,
            short_ids=re.search(r"length\s*!=\s*9", source) is not None,
            named_ids="<|tool_call_argument_begin|>" in source,
            content_last="<|tool_call>" in source,
        )
        self._format = from_source
        # Some templates of models that see images loop over parts and lose content that is text.
        if _PROBE not in self._try_render([{"role": "user", "content": _PROBE}]):
            self._format = in_parts = replace(from_source, content_in_parts=True)
            if _PROBE in self._try_render([{"role": "user", "content": _PROBE}]):
                from_source = in_parts
        if "tool_calls" not in source:
            return from_source
        function = {"name": _PROBE, "arguments": {_PROBE: _PROBE}}
        call_message = {"role": "assistant", "tool_calls": [{"id": _PROBE, "function": function}]}
        # An object is the right form of arguments if the template writes it as JSON, else JSON
        # text.
        for as_text in (False, True):
            self._format = replace(from_source, arguments_as_text=as_text)
            text = self._try_render([_QUESTION, call_message])
            if _PROBE in text and f"'{_PROBE}'" not in text:  # no Python repr of a dict
                return self._format
        return from_source

    def _try_render(self, messages: Sequence[Message]) -> str:
        """Renders without a generation prompt. Returns "" if the template refuses the messages."""
        try:
            return self.render_marked(messages, add_generation_prompt=False)
        except ModelError:
            return ""

    def _mark(self, value: Any) -> Any:
        """Returns the value with marks around every special token that its strings spell out."""
        if isinstance(value, str):
            return self.marked(value) if self._unsafe.search(value) else value
        if isinstance(value, dict):
            return {self._mark(key): self._mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mark(item) for item in value]
        return value

    def thinking_after(self, prompt_ids: Sequence[int]) -> Thinking | None:
        """Returns the thinking that a reply to this prompt may begin with; None if the template
        knows none, or the prompt has closed it."""
        # Only the end of the prompt says it: an earlier turn's thinking is closed in any case.
        opening, closing = "<think>", "</think>"
        end = self.text_of(prompt_ids[-MAX_THINKING_END:]).rstrip()
        is_open = end.endswith(opening)
        if end.endswith(closing) or not (is_open or opening in self.text):
            return None
        return Thinking(self.text_rule(opening), self.text_rule(closing), is_open)

    def text_rule(self, text: str) -> str:
        """Returns the rule of exactly this text, whose special tokens are the tokens."""
        ids, names = self._special_tokens
        pieces = filter(None, names.split(text))
        return " ".join(f"<[{ids[piece]}]>" if piece in ids else literal(piece) for piece in pieces)

    @cached_property
    def _special_tokens(self) -> tuple[dict[str, int], re.Pattern[str]]:
        """The ids of what grammars take as special tokens, and a pattern that splits a text at
        them."""
        added = self.tokenizer.added_tokens_decoder.items()
        ids = {token.content: n for n, token in added if self.grammars.is_special(n)}
        names = "|".join(map(re.escape, sorted(ids, key=len, reverse=True))) or "(?!)"
        return ids, re.compile(f"({names})")

    def _find_end_token_id(self) -> int | None:
        """Returns what the template writes after a reply, else the tokenizer's end of text."""
        reply = {"role": "assistant", "content": _PROBE}
        # The last reply may end with a different token than earlier ones (gpt-oss), or with none:
        # try a reply at the end first.
        text = self._try_render([_QUESTION, reply])
        end = self.find_control(text, text.rfind(_PROBE)) if _PROBE in text else None
        if not end:
            text = self.render_marked([_QUESTION, reply, _QUESTION], add_generation_prompt=False)
            end = self.find_control(text, text.rfind(_PROBE)) if _PROBE in text else None
        eos = self.tokenizer.eos_token_id
        return end[1] if end else eos if isinstance(eos, int) else None


@dataclass(frozen=True, slots=True)
class _MessageFormat:
    """How a template wants its messages."""

    arguments_as_text: bool = False
    thinking: str = THINKING[0]  # the field of a reply's thinking
    joins_thinking_and_content: bool = False  # it accepts only one of the two with a call
    needs_descriptions: bool = False  # every tool must have a description
    short_ids: bool = False  # ids of calls are nine letters and digits (Mistral)
    named_ids: bool = False  # a call's name is written only in its id (Kimi)
    content_in_parts: bool = False  # content is a list, of text too
    content_last: bool = False  # content comes after the calls and their results (Gemma 4)


def clean_text(text: str) -> str:
    """Returns the text without marks and with lone surrogates replaced."""
    return _SURROGATES.sub("\ufffd", _MARKS.sub("", text))


def _short_id(call_id: Any) -> str:
    """Returns an id of nine letters and digits, equal for equal `call_id`."""
    if isinstance(call_id, str) and SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(str(call_id).encode()).hexdigest()[:9]


def _with_named_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with call ids like `functions.NAME:NUMBER`, numbered over the
    conversation. Ids of that form are kept. Results get the id of the call that they answer."""
    new_ids: dict[str, str] = {}
    number = 0
    result: list[dict[str, Any]] = []
    for message in messages:
        calls: list[dict[str, Any]] = []
        for call in message.get("tool_calls", ()):
            old = str(call.get("id"))
            numbered_id = f"functions.{call['function']['name']}:{number}"
            new = old if NAMED_ID.fullmatch(old) else numbered_id
            number += 1
            new_ids[old] = new
            calls.append({**call, "id": new})
        changed: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if "tool_call_id" in message:
            call_id = message["tool_call_id"]
            changed["tool_call_id"] = new_ids.get(str(call_id), call_id)
        result.append({**message, **changed})
    return result


def normalised(message: Message) -> dict[str, Any]:
    """Returns a message in OpenAI's form in the form that templates expect: `content` is a string
    (None becomes "", text parts are joined), the `arguments` of a call are a dict (text that is not
    a JSON object stays a string), and fields that are None are removed."""
    result = {key: value for key, value in message.items() if value is not None}
    content = message.get("content")
    result["content"] = "" if content is None else joined_text(content)
    calls: list[dict[str, Any]] = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or call
        rest = {key: value for key, value in call.items() if key in ("id", "type")}
        arguments = parsed_arguments(function.get("arguments"))
        function = {"name": function.get("name"), "arguments": arguments}
        calls.append({"type": "function", **rest, "function": function})
    if calls:
        result["tool_calls"] = calls
    else:
        result.pop("tool_calls", None)
    return result
