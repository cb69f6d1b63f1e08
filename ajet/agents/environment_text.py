"""Checks the templates of an environment's prompts, and finds the action in a reply.

template   "{observation}\\nReply as {answer_form}."  ->  "You are at 3.\\nReply as <answer>…"
reply      "<answer>Up</answer> no, <answer>Left</answer>"  ->  "Left"
reply      "I go left."                               ->  None: MISSING_ACTION_TEXT is shown
"""

from __future__ import annotations

import re
from collections.abc import Collection
from string import Formatter

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

EPISODE_PLACEHOLDERS = (
    "env_instruction",
    "max_steps",
    "response_length",
    "max_response_length",
    "answer_form",
)
STEP_PLACEHOLDERS = (
    "observation",
    "state",
    "turn_idx",
    "step_count",
    "actions_left",
    "history",
    "history_length",
    *EPISODE_PLACEHOLDERS,
)
"""`state` means the same as `observation`, and `response_length` the same as `max_response_length`.
`history_length` is the number of steps in the history so far, at most the configured window."""
TEXT_PLACEHOLDERS = ("env_instruction", "answer_form", "observation", "state", "history")
BRACE_HINT = "write a literal brace twice"
MISSING_ACTION_TEXT = "Your reply names no action: write it as {answer_form}."


def _text_error(problem: str) -> ConfigError:
    return ConfigError(problem, code=Code.ENVIRONMENT_TEXT)


def checked_template(template: str, placeholders: Collection[str], key: str) -> str:
    """Returns the template; raises `ConfigError` for a placeholder that nothing fills, or whose
    format does not suit its value, such as ``{observation:d}``."""
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise _text_error(f"{key}: {error}; {BRACE_HINT}") from None
    unknown = next((name for name in fields if name not in placeholders), None)
    if unknown is not None:
        raise _text_error(
            f"{key}: no placeholder {{{unknown}}}; there are "
            f"{', '.join(f'{{{name}}}' for name in placeholders)} ({BRACE_HINT})"
        )
    values = {name: "text" if name in TEXT_PLACEHOLDERS else 1 for name in placeholders}
    try:
        template.format(**values)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise _text_error(
            f"{key}: a placeholder's form is wrong: {type(error).__name__}: {error}"
        ) from None
    return template


class ActionReader:
    """Finds the action in a reply: the first group of the pattern's last match, or the whole reply
    without a pattern."""

    def __init__(self, pattern: str | None, key: str) -> None:
        self._pattern = None if pattern is None else _compiled(pattern, key)
        self.answer_form = "the action alone" if pattern is None else _readable_form(pattern)
        self.missing_action_text = MISSING_ACTION_TEXT.format(answer_form=self.answer_form)

    def find_action(self, reply: str) -> str | None:
        if self._pattern is None:
            return reply.strip() or None
        # Empty matches do not count: ``(.*)`` has one at the end of every text.
        matches = [match for match in self._pattern.finditer(reply) if match.group()]
        action = matches[-1].group(1) if matches else None
        return (action or "").strip() or None


def _compiled(pattern: str, key: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise _text_error(f"{key}: {pattern!r} is not a regular expression: {error}") from None
    if compiled.groups != 1:
        raise _text_error(
            f"{key}: {pattern!r} has {compiled.groups} groups: put the action, and nothing else, "
            "in parentheses; write any other group as (?:…)"
        )
    return compiled


def _readable_form(pattern: str) -> str:
    """Returns the pattern as a person would write it: ``<answer>(.*?)</answer>`` becomes
    <answer>…</answer>. The text is part of prompts."""
    written = re.sub(r"^(?:\(\?[a-zA-Z]+\))?\^?|(?<!\\)\$$", "", pattern)  # flags and anchors
    written = re.sub(r"\((?:\?P<\w+>|(?!\?))[^()]*\)", "…", written)
    written = re.sub(r"\\s[*+?]*", " ", written)
    return re.sub(r"\\(.)", r"\1", written).strip()
