"""Prints episodes to the terminal while they run: each message, reply and tool call as it comes.
Replies are printed line by line. If several episodes run at the same time, each line begins with
the id of its task.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.terminal import Console
from ajet.core.trajectory.trajectory import Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.read.reports.transcript import (
    STYLES,
    about_turn,
    closing_rows,
    message_text,
    messages_to_show,
    offered_tools,
    tool_call_text,
)

LINE_CHARACTERS = 100
"""A line of a reply is printed when it ends, fills its row or has this many characters."""
MIN_WIDTH = 20
ROLE_WIDTH = 9
DECODED_EVERY = 4
"""While a reply is sampled, it is decoded once every so many tokens."""


class LiveTranscripts:
    """Prints the episodes of one rollout. `on_tokens` may be called from any thread."""

    def __init__(self, console: Console, tokens: ChatTemplate, *, num_parallel: int) -> None:
        self._console, self._tokens = console, tokens
        self._shows_task = num_parallel > 1
        self._episodes: dict[str, LiveEpisode] = {}
        self._lock = threading.Lock()

    def begin(self, plan: WorkflowTask) -> "LiveEpisode":
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
