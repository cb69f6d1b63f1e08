"""An episode as a person reads it in a terminal.

    transcript(trajectory) -> lines of Rich text: each message once, in the order it came to be,
    tool calls and results, then status, reward and tokens

Not covered: token-level credit; that is the page's work (`ajet view`).
"""

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from ajet.core.trajectory.trajectory import Trajectory

STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
MAX_CHARACTERS = 4000


def transcript(trajectory: Trajectory) -> RenderableType:
    """The whole episode in a panel titled with its id, status and reward."""
    lines: list[RenderableType] = [_message(m) for m in _new_messages(trajectory)]
    lines.append(_tokens(trajectory))
    if trajectory.error:
        lines.append(Text(f"error  {trajectory.error}", style="bold red"))
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    title = f"{trajectory.episode_id}  {trajectory.status}  reward {reward}"
    colour = "green" if trajectory.is_success else "red" if trajectory.error else "white"
    return Panel(Lines(*lines), title=title, title_align="left", border_style=colour)


def _new_messages(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """Each turn's messages that no earlier turn had, then its reply."""
    seen: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        yield from (m for m in turn.messages if not any(_same(m, s) for s in seen))
        yield turn.reply
        seen = [*seen, *turn.messages, turn.reply]


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Equal for a reader: role, text and the names of what was called."""
    return _key(a) == _key(b)


def _key(message: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    calls = message.get("tool_calls") or []
    names = tuple(str(call.get("id")) for call in calls)
    return str(message.get("role")), _text(message.get("content")), names


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", part)) for part in content)
    return "" if content is None else str(content)


def _message(message: dict[str, Any]) -> Text:
    role = str(message.get("role"))
    text = Text(f"{role:9} ", style=f"bold {STYLES.get(role, '')}".strip())
    body = _text(message.get("content")).strip()
    if len(body) > MAX_CHARACTERS:
        body = f"{body[:MAX_CHARACTERS]} … ({len(body) - MAX_CHARACTERS} characters more)"
    text.append(body, style=STYLES.get(role, ""))
    for call in message.get("tool_calls") or []:
        function = call.get("function", call)
        arguments = function.get("arguments")
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
        text.append(f"{' ' if body else ''}→ {function.get('name')}({shown})", style="magenta")
    return text


def _tokens(trajectory: Trajectory) -> Text:
    sampled = sum(len(t.completion.token_ids) for t in trajectory.turns)
    logprob = sum(sum(t.completion.logprobs) for t in trajectory.turns)
    mean = f"{logprob / sampled:.3f}" if sampled else "none"
    return Text(
        f"tokens    {sampled} sampled in {len(trajectory.turns)} turns, "
        f"{trajectory.num_sampled} of them trainable, mean logprob {mean}",
        style="dim",
    )
