"""Checks the templates of an environment's prompts, and finds the action in a reply.

    template   "{observation}\\nReply as {answer_form}."  ->  "You are at 3.\\nReply as <answer>…"
    reply      "<answer>Up</answer> no, <answer>Left</answer>"  ->  "Left"
    reply      "I go left."                               ->  None: MISSING_ACTION_TEXT is shown

Not covered: which actions the environment knows; patterns that take long (they are not
interrupted).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from string import Formatter

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

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
NUMBER_PLACEHOLDERS = (
    "turn_idx",
    "step_count",
    "actions_left",
    "max_steps",
    "history_length",
    "response_length",
    "max_response_length",
)
BRACE_HINT = "a brace that is text is written twice"
MISSING_ACTION_TEXT = "Your reply names no action: write it as {answer_form}."


def checked_template(template: str, known: Collection[str], where: str) -> str:
    """Returns the template; raises `ConfigError` for a placeholder that nothing fills."""
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; {BRACE_HINT}", code=Code.ENVIRONMENT_TEXT) from None
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise ConfigError(
            f"{where}: no placeholder {{{unknown}}}; there are "
            f"{', '.join(f'{{{name}}}' for name in known)} ({BRACE_HINT})",
            code=Code.ENVIRONMENT_TEXT,
        )
    _check_forms(template, known, where)
    return template


def _check_forms(template: str, known: Collection[str], where: str) -> None:
    """Raises `ConfigError` for a format that cannot be filled, such as ``{observation:d}``."""
    try:
        template.format(**{name: 1 if name in NUMBER_PLACEHOLDERS else "text" for name in known})
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{where}: a placeholder's form is wrong: {type(error).__name__}: {error}",
            code=Code.ENVIRONMENT_TEXT,
        ) from None


class ActionReader:
    """Finds the action in a reply: the first group of the pattern's last match, or the whole reply
    if there is no pattern. Empty matches, as ``(.*)`` has one at the end of every text, do not
    count."""

    def __init__(self, pattern: str | None, where: str) -> None:
        self._pattern = None if pattern is None else _compiled(pattern, where)
        self.answer_form = "the action alone" if pattern is None else _readable_form(pattern)
        self.missing_action_text = MISSING_ACTION_TEXT.format(answer_form=self.answer_form)

    def find_action(self, reply: str) -> str | None:
        """Returns the action, or None if the reply names none."""
        if self._pattern is None:
            return reply.strip() or None
        matches = [match for match in self._pattern.finditer(reply) if match.group()]
        return ((matches[-1].group(1) or "").strip() or None) if matches else None


def _compiled(pattern: str, where: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{where}: {pattern!r} is no regular expression: {error}", code=Code.ENVIRONMENT_TEXT
        ) from None
    if compiled.groups != 1:
        raise ConfigError(
            f"{where}: {pattern!r} has {compiled.groups} groups: put the action, and nothing else, "
            "in parentheses; other ones are written (?:…)",
            code=Code.ENVIRONMENT_TEXT,
        )
    return compiled


def _readable_form(pattern: str) -> str:
    """Returns the pattern as a person would write it: ``<answer>(.*?)</answer>`` becomes
    <answer>…</answer>."""
    written = re.sub(r"^(?:\(\?[a-zA-Z]+\))?\^?|(?<!\\)\$$", "", pattern)  # flags and anchors
    written = re.sub(r"\((?:\?P<\w+>|(?!\?))[^()]*\)", "…", written)
    written = re.sub(r"\\s[*+?]*", " ", written)
    return re.sub(r"\\(.)", r"\1", written).strip()
