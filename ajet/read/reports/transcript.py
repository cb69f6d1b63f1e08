"""Renders an episode for the terminal, whole or while it runs: each message once, and again if
another reply answers it; tool calls and results; the token counts of each reply; then output,
reward and totals.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.task.chat_messages import is_shown, shown_text
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import Trajectory
from ajet.core.trajectory.turn import Turn

STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow", "departs": "red"}
MAX_CHARACTERS = 4000
MAX_OUTPUT_CHARACTERS = 300
LINE_CHARACTERS = 100
"""A line of a reply is printed when it ends, fills its row or has this many characters."""
MIN_WIDTH = 20
ROLE_WIDTH = 9
DECODED_EVERY = 4
"""While a reply is sampled, it is decoded once every so many tokens."""


def transcript(trajectory: Trajectory, marks: Mapping[int, Text] | None = None) -> RenderableType:
    """Returns the whole episode in a panel titled with its task, status and reward. `marks` are
    texts to show before the replies of these turns; numbers after the last turn come at the end."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True)
    rows.add_column()
    for role, text in _rows(trajectory, marks or {}):
        rows.add_row(Text(role, style=f"bold {STYLES.get(role, 'dim')}"), text)
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    task = trajectory.workflow_task.task_id
    title = Text(f"{task}  {trajectory.status}  reward {reward}  ({trajectory.episode_id})")
    colour = "green" if trajectory.is_success else "red" if trajectory.error else "white"
    return Panel(rows, title=title, title_align="left", border_style=colour)


def _rows(trajectory: Trajectory, marks: Mapping[int, Text]) -> Iterator[tuple[str, Text]]:
    seen: list[dict[str, Any]] = []
    tools: list[str] = []
    for number, turn in enumerate(trajectory.turns):
        if (offered := offered_tools(turn.tools)) != tools:
            tools = offered
            yield "tools", Text(", ".join(tools) or "none", style="dim")
        for message in messages_to_show(turn.messages, seen):
            yield str(message.get("role")), message_text(message)
        if number in marks:
            yield "departs", marks[number]
        yield "assistant", message_text(turn.reply)
        yield "", about_turn(number, turn)
        seen = [*seen, *turn.messages, turn.reply]
    for number in sorted(marks):
        if number >= len(trajectory.turns):
            yield "departs", marks[number]
    yield from closing_rows(trajectory)


def offered_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[str]:
    return [str(tool.get("function", tool).get("name")) for tool in tools or ()]


def messages_to_show(
    messages: Sequence[dict[str, Any]], seen: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the messages that look like none of `seen`, and the last one in any case."""
    known = set(map(_look, seen))
    return [m for m in messages[:-1] if _look(m) not in known] + list(messages[-1:])


def _look(message: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Returns the role, the text and the ids of tool calls."""
    calls = message.get("tool_calls") or []
    ids = tuple(str(call.get("id")) for call in calls)
    return str(message.get("role")), _text(message.get("content")).strip(), ids


def _text(content: Any) -> str:
    if is_shown(content):
        return shown_text(content)
    if isinstance(content, list):
        return "".join(str(part.get("text", part) or "") for part in content)
    return "" if content is None else str(content)


def message_text(message: dict[str, Any]) -> Text:
    style = STYLES.get(str(message.get("role")), "")
    text = Text()
    if message.get("reasoning_content"):
        text.append(_cut(str(message["reasoning_content"]).strip()), style="dim italic")
    content = _text(message.get("content")).strip()
    if content:
        text.append("\n" if text else "").append(_cut(content), style=style)
    for call in message.get("tool_calls") or []:
        text.append("\n" if text else "").append_text(tool_call_text(call))
    return text or Text("(nothing)", style="dim")


def tool_call_text(call: dict[str, Any]) -> Text:
    """Returns a tool call as text, with arguments of several lines below their names."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    try:
        parsed_arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        parsed_arguments = None
    text = Text(f"→ {function.get('name')}", style="magenta")
    if not isinstance(parsed_arguments, dict):
        return text.append(f"({arguments})")
    for name, value in parsed_arguments.items():
        if isinstance(value, str) and "\n" in value.strip():
            indented = value.strip("\n").replace("\n", "\n    ")
            text.append(f"\n  {name}:\n    {_cut(indented)}")
        else:
            text.append(f"\n  {name}: {_cut(str(value))}")
    return text


def _cut(text: str, limit: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"


def about_turn(number: int, turn: Turn) -> Text:
    """Returns a line about one reply: its token counts, and anything special about it."""
    completion = turn.completion
    facts = [
        f"turn {number}",
        f"{turn.num_prompt_tokens} tokens in",
        f"{turn.num_sampled_tokens} out ({completion.finish_reason})",
    ]
    if completion.logprobs:
        mean = sum(completion.logprobs) / len(completion.logprobs)
        facts.append(f"mean logprob {mean:.3f}")
    if turn.reward is not None:
        facts.append(f"reward {turn.reward:g}")
    if turn.agent_name != "default":
        facts.append(f"agent {turn.agent_name}")
    if not turn.trainable:
        facts.append("not trained")
    if reason := turn.notes.reason:
        facts.append(f"new branch: {reason}")
    if turn.notes.grammar:
        facts.append("sampled under a grammar")
    if form := turn.notes.other_form:
        facts.append(f"a call in the form of tool parser {form}, which was not read")
    for name, problem in turn.notes.malformed.items():
        facts.append(f"malformed, {name}: {problem}")
    return Text(", ".join(facts), style="dim")


def closing_rows(trajectory: Trajectory) -> Iterator[tuple[str, Text]]:
    """Yields the rows below the conversation as (role, text): output, reward, totals, error."""
    if trajectory.output is not None and trajectory.output.metadata:
        values = ", ".join(f"{k}={v!r}" for k, v in trajectory.output.metadata.items())
        yield "output", Text(_cut(values, MAX_OUTPUT_CHARACTERS))
    row = trajectory.workflow_task.task.metadata
    expected = row.get("answer")
    if expected is None and isinstance(of_verl := row.get("reward_model"), dict):
        expected = of_verl.get("ground_truth")
    if expected is not None:
        yield "expected", Text(_cut(str(expected).strip(), MAX_OUTPUT_CHARACTERS))
    if trajectory.reward is not None:
        givers = [f"{name} {value:g}" for name, value in trajectory.reward_breakdown.items()]
        agents = [f"agent {name} {value:g}" for name, value in trajectory.agent_rewards.items()]
        by = ", ".join(givers + agents)
        success = {True: ", success", False: ", no success", None: ""}[trajectory.is_success]
        yield "reward", Text(f"{trajectory.reward:g} ({by}){success}")
    sampled = sum(turn.num_sampled_tokens for turn in trajectory.turns)
    seconds = trajectory.timings.get("workflow_s", 0.0)
    yield (
        "sum",
        Text(
            f"{sampled} tokens sampled in {len(trajectory.turns)} turns, "
            f"{trajectory.num_sampled} trainable, {seconds:.1f} s",
            style="dim",
        ),
    )
    if trajectory.error:
        yield "error", Text(trajectory.error, style="bold red")


class LiveTranscripts:
    """Prints the episodes of one rollout: each message, reply and tool call as it comes. If several
    run at the same time, each line begins with the id of its task. `on_tokens` may be called from
    any thread."""

    def __init__(self, console: Console, tokens: ChatTemplate, *, num_parallel: int) -> None:
        self._console, self._tokens = console, tokens
        self._shows_task = num_parallel > 1
        self._episodes: dict[str, LiveEpisode] = {}
        self._lock = threading.Lock()

    def begin(self, plan: WorkflowTask) -> LiveEpisode:
        """Prints that the episode begins, and returns the observer of its calls."""
        episode = LiveEpisode(self, plan)
        with self._lock:
            self._episodes[plan.episode_id] = episode
        self.print_row(plan, "begins", Text(plan.episode_id, style="dim"))
        return episode

    def on_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Prints the new whole lines of the reply that the request has sampled so far."""
        if len(token_ids) % DECODED_EVERY:
            return
        with self._lock:
            episode_id, _, number = request_id.rpartition("/")
            episode = self._episodes.get(episode_id)
        if episode is not None:
            episode.show_reply(int(number), self.text_of(token_ids), is_whole=False)

    def end(self, trajectory: Trajectory) -> None:
        plan = trajectory.workflow_task
        with self._lock:
            self._episodes.pop(plan.episode_id, None)
        for role, text in closing_rows(trajectory):
            self.print_row(plan, role, text)
        self.print_row(plan, "ended", Text(str(trajectory.status), style="bold"))

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Returns the text of sampled ids without the token that ended the reply."""
        ids = list(token_ids)
        if ids and ids[-1] in self._tokens.stop_token_ids:
            ids.pop()
        return self._tokens.text_of(ids)

    def print_row(self, plan: WorkflowTask, role: str, text: Text) -> None:
        """Prints one row, below the rows already printed for any episode."""
        head = Text(f"{plan.task_id} " if self._shows_task else "", style="dim")
        head.append(f"{role:<{ROLE_WIDTH}} ", style=f"bold {STYLES.get(role, 'dim')}")
        rows = []
        for line in text.wrap(self._console, self.text_width(plan)) or [Text()]:
            line.rstrip()  # no blanks up to the width, for a file or a copy
            rows.append(Text.assemble(head, line))
            head = Text(" " * head.cell_len)
        with self._lock:
            for row in rows:
                self._console.print(row, soft_wrap=True)

    def text_width(self, plan: WorkflowTask) -> int:
        """Returns how many characters of text a row has room for."""
        before = ROLE_WIDTH + 1 + (cell_len(plan.task_id) + 1 if self._shows_task else 0)
        return max(self._console.width - before, MIN_WIDTH)


class LiveEpisode:
    def __init__(self, live: LiveTranscripts, plan: WorkflowTask) -> None:
        self._live, self._plan = live, plan
        self._seen: list[dict[str, Any]] = []
        self._tools: list[str] = []
        self._num_printed: defaultdict[int, int] = defaultdict(int)  # characters, by call

    def called(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> None:
        """Prints the messages of a call that were not printed yet, and its last one."""
        if (offered := offered_tools(tools)) != self._tools:
            self._tools = offered
            self._print("tools", Text(", ".join(offered) or "none", style="dim"))
        for message in messages_to_show(messages, self._seen):
            self._print(str(message.get("role")), message_text(message))
        self._seen += messages

    def show_reply(self, number: int, text: str, *, is_whole: bool) -> None:
        """Prints the complete lines of a call's reply, or everything if it `is_whole`."""
        limit = min(LINE_CHARACTERS, self._live.text_width(self._plan))
        while piece := _next_line(text[self._num_printed[number] :], limit, is_whole):
            role = "" if self._num_printed[number] else "assistant"
            self._num_printed[number] += len(piece)
            self._print(role, Text(piece.rstrip("\n"), style=STYLES["assistant"]))

    def answered(self, number: int, turn: Turn) -> None:
        """Prints the rest of the reply, its parsed tool calls, and its figures."""
        if turn.completion.token_ids:
            self.show_reply(number, self._live.text_of(turn.completion.token_ids), is_whole=True)
        if not self._num_printed[number]:
            self._print("assistant", message_text(turn.reply))
        else:
            for call in turn.reply.get("tool_calls") or ():
                self._print("", tool_call_text(call))
        self._seen.append(turn.reply)
        self._print("", about_turn(number, turn))

    def _print(self, role: str, text: Text) -> None:
        self._live.print_row(self._plan, role, text)


def _next_line(text: str, limit: int, is_whole: bool) -> str:
    """Returns the first line that can be printed, with its line break, and at most `limit`
    characters of it; "" if it may still grow."""
    # U+FFFD at the end is a character of which not all bytes have been sampled yet.
    complete = text if is_whole else text.rstrip("\ufffd")
    end = complete.find("\n", 0, limit)
    if end >= 0:
        return complete[: end + 1]
    if len(complete) < limit:
        return complete if is_whole else ""
    return complete[: complete.rfind(" ", 0, limit) + 1 or limit]
