"""In: the text of a reply. Out: content, tool calls, reasoning (`ParsedReply`).

Ignores: token ids. A parser never changes what was sampled, only what the agent is told.
"""

from ajet.core.errors import ConfigError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.tool_parsers.hermes import HermesParser
from ajet.core.inference.tool_parsers.parser import ParsedReply, ToolCall, ToolParser

__all__ = ["PARSERS", "HermesParser", "ParsedReply", "ToolCall", "ToolParser", "parser_for"]

PARSERS: dict[str, type[HermesParser]] = {"hermes": HermesParser}


def parser_for(template: ChatTemplate, name: str = "auto") -> ToolParser:
    """The parser called `name`; "auto" is Hermes, as long as it is the only one.

    Thinking is split off only where the template knows of it: elsewhere it is ordinary content, and
    stays in the history as the model wrote it.
    """
    chosen = "hermes" if name == "auto" else name
    if chosen not in PARSERS:
        known = ", ".join(["auto", *PARSERS])
        raise ConfigError(f"no tool parser named {name!r}: choose one of {known}")
    return PARSERS[chosen](splits_thinking="</think>" in template.text)
