"""Tool parsers split the text of a reply into content, tool calls and reasoning (`ParsedReply`).

Parsers see no token ids: a parser never changes what was sampled, only what the agent gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ajet.core.errors import ModelError, UnknownName
from ajet.core.inference.chat_template import ChatTemplate, Tools
from ajet.core.inference.tool_parser import ParsedReply, ToolParser
from ajet.tool_parsers.deepseek import DeepSeekParser
from ajet.tool_parsers.gemma import GemmaParser
from ajet.tool_parsers.gpt_oss import GptOssParser
from ajet.tool_parsers.hermes import FallbackParser, HermesParser, NemotronParser
from ajet.tool_parsers.kimi_k2 import KimiK2Parser
from ajet.tool_parsers.llama3 import Llama3Parser
from ajet.tool_parsers.mistral import MistralParser
from ajet.tool_parsers.plain_json import PlainJsonParser
from ajet.tool_parsers.scanning import ThinkingParser, offered_functions
from ajet.tool_parsers.tagged_values import GlmParser, MiniMaxM2Parser, Qwen3CoderParser

PARSERS: dict[str, type[ThinkingParser] | type[GptOssParser]] = {
    "hermes": HermesParser,
    "qwen3_coder": Qwen3CoderParser,
    "llama3": Llama3Parser,
    "mistral": MistralParser,
    "deepseek": DeepSeekParser,
    "gpt_oss": GptOssParser,
    "glm": GlmParser,
    "kimi_k2": KimiK2Parser,
    "minimax_m2": MiniMaxM2Parser,
    "json": PlainJsonParser,
    "nemotron": NemotronParser,
    "gemma": GemmaParser,
}

# Text in the source of the templates of each family; the first one found decides.
_TEMPLATE_MARKERS = (
    ("<|channel|>", "gpt_oss"),
    ("<｜tool▁calls▁begin｜>", "deepseek"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool_call>", "gemma"),
    ("<start_function_call>", "gemma"),
    ("<TOOLCALL>", "nemotron"),
    ("<function=", "qwen3_coder"),
    ("<arg_key>", "glm"),
    ("<tool_call>", "hermes"),
    ('{"name": function name, "parameters"', "llama3"),
)


def detect_family(template: ChatTemplate) -> str | None:
    """Returns the family whose calls the template writes; None if it writes none, or in a form that
    no parser reads."""
    family = next((name for marker, name in _TEMPLATE_MARKERS if marker in template.text), None)
    return family if family and _reads(PARSERS[family], template) else None


def _reads(factory: type[ThinkingParser] | type[GptOssParser], template: ChatTemplate) -> bool:
    """Tells whether the parser reads a call that the template writes; true if it writes none.
    Seed-OSS' `<seed:tool_call>` and Hunyuan's `<tool_sep>` vary the forms of other families."""
    question, name = {"role": "user", "content": "a"}, "probe"
    call = {"id": "call_0", "function": {"name": name, "arguments": {"a": name}}}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        prompts = [template.render_marked([question], None, ready) for ready in (True, False)]
        whole = template.render_marked([question, reply], add_generation_prompt=False)
    except ModelError:
        return True
    if name not in whole:
        return True
    parser = factory.from_template(template.text)
    # As a reply is read: what follows the prompt (or one that does not open thinking), without
    # special tokens of other kinds.
    start = next((len(prompt) for prompt in prompts if whole.startswith(prompt)), 0)
    ids = template.encode(whole[start:])
    written = template.decode(ids, keep=parser.special_tokens)
    return any(call.name == name for call in parser.parse(written).tool_calls)


def parser_for(template: ChatTemplate, name: str = "auto") -> ToolParser:
    """Returns the parser called `name`; "auto" takes that of the template's family. Thinking is
    split off only if the template mentions it; else it is ordinary content. Calls in the forms of
    other parsers are noticed, not parsed (`NoticingParser`)."""
    if name == "auto":
        family = detect_family(template)
        factory = PARSERS[family] if family else FallbackParser
        return _noticing(factory.from_template(template.text), family or "hermes")
    if name not in PARSERS:
        names = ", ".join(["auto", *PARSERS])
        raise UnknownName(f"no tool parser named {name!r}: choose one of {names}")
    return _noticing(PARSERS[name].from_template(template.text), name)


class NoticingParser:
    """Parses with `parser`, and tries `other_parsers`, by their names, if that finds no call.

        hermes reads ```json {"name": "add", "arguments": {…}}```    other_form == "json"

    The reply does not change: it is content, without a call. Only calls of offered tools count,
    since an answer may hold JSON or quote tags. core/record/step_warnings.py records the form."""

    def __init__(self, parser: ToolParser, other_parsers: Mapping[str, ToolParser]) -> None:
        self._parser = parser
        self._other_parsers = other_parsers

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return self._parser.special_tokens

    @property
    def argument_frame(self) -> tuple[str, str] | None:
        return self._parser.argument_frame

    def opening(self, name: str | None) -> str:
        return self._parser.opening(name)

    def parse(
        self, text: str, tools: Tools | None = None, prompt_end: str | None = None
    ) -> ParsedReply:
        parsed = self._parser.parse(text, tools, prompt_end)
        names = offered_functions(tools).keys()
        if parsed.tool_calls or not any(name in parsed.content for name in names):
            return parsed
        for label, parser in self._other_parsers.items():
            calls = parser.parse(parsed.content, tools).tool_calls
            if calls and all(call.name in names for call in calls):
                return replace(parsed, other_form=label)
        return parsed


def _noticing(parser: ToolParser, name: str) -> NoticingParser:
    # Plain JSON comes late: it may be inside the tags of another form.
    last = ("json", "llama3")
    families = [*(family for family in PARSERS if family not in last), *last]
    return NoticingParser(
        parser, {family: PARSERS[family].from_template("") for family in families if family != name}
    )
