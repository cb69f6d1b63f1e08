"""In: the text of a reply. Out: content, tool calls, reasoning (`ParsedReply`).

One file a model family. Ignores: token ids. A parser never changes what was sampled, only what the
agent is told.
"""

from typing import Protocol

from ajet.core.errors import ConfigError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.tool_parser import ParsedReply, ToolCall, ToolParser
from ajet.tool_parsers.deepseek import DeepSeekParser
from ajet.tool_parsers.fallback import FallbackParser
from ajet.tool_parsers.gemma import GemmaParser
from ajet.tool_parsers.glm import GlmParser
from ajet.tool_parsers.gpt_oss import GptOssParser
from ajet.tool_parsers.hermes import HermesParser
from ajet.tool_parsers.kimi_k2 import KimiK2Parser
from ajet.tool_parsers.llama3 import Llama3Parser
from ajet.tool_parsers.minimax_m2 import MiniMaxM2Parser
from ajet.tool_parsers.mistral import MistralParser
from ajet.tool_parsers.nemotron import NemotronParser
from ajet.tool_parsers.qwen3_coder import Qwen3CoderParser

__all__ = [
    "PARSERS",
    "DeepSeekParser",
    "GemmaParser",
    "GlmParser",
    "GptOssParser",
    "HermesParser",
    "KimiK2Parser",
    "Llama3Parser",
    "MiniMaxM2Parser",
    "MistralParser",
    "NemotronParser",
    "ParsedReply",
    "Qwen3CoderParser",
    "ToolCall",
    "ToolParser",
    "detect_family",
    "parser_for",
]


class ParserFactory(Protocol):
    """How a parser is made, for a chat template with this source."""

    def from_template(self, template: str) -> ToolParser: ...


PARSERS: dict[str, ParserFactory] = {
    "hermes": HermesParser,
    "qwen3_coder": Qwen3CoderParser,
    "llama3": Llama3Parser,
    "mistral": MistralParser,
    "deepseek": DeepSeekParser,
    "gpt_oss": GptOssParser,
    "glm": GlmParser,
    "kimi_k2": KimiK2Parser,
    "minimax_m2": MiniMaxM2Parser,
    "nemotron": NemotronParser,
    "gemma": GemmaParser,
}

# What a template that writes a family's calls has in its source; the first that is found decides.
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
    ("<tool_sep>", None),  # Hunyuan 3: as GLM, but for this after the name
    ("<arg_key>", "glm"),
    ("<tool_call>", "hermes"),
    ('{"name": function name, "parameters"', "llama3"),
)


def detect_family(template: ChatTemplate) -> str | None:
    """Whose calls the template writes; None if it writes none, or in a form that nothing reads."""
    return next((family for marker, family in _TEMPLATE_MARKERS if marker in template.text), None)


def parser_for(template: ChatTemplate, name: str = "auto") -> ToolParser:
    """The parser called `name`; "auto" asks the template.

    Thinking is split off only where the template knows of it: elsewhere it is ordinary content, and
    stays in the history as the model wrote it.
    """
    if name == "auto":
        family = detect_family(template)
        return (
            PARSERS[family].from_template(template.text)
            if family
            else FallbackParser.from_template(template.text)
        )
    if name not in PARSERS:
        known = ", ".join(["auto", *PARSERS])
        raise ConfigError(f"no tool parser named {name!r}: choose one of {known}")
    return PARSERS[name].from_template(template.text)
