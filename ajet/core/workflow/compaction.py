"""Keeps a growing conversation within the context by a summary that the model writes.

    messages     system, task │ reply 1, user 2, reply 2 │ user 3            too long for a call
    summary      system, task, reply 1, user 2, reply 2, "summarise"  ->  S  recorded, trained
    from now     system, task, S, user 3  ->  reply 3, …                     a new branch

    compaction = model_tuner.compaction()
    while …:
        shown = await compaction.shown(messages, tools)     # `messages` only grows
        messages.append(await model_tuner.chat(shown, tools))

The call for a summary counts in `max_steps`, and its tokens are trained with the episode's
advantage. Nothing is compacted where it could not help: on the last call, and if the task and the
new messages alone are too long. `Conversations` is for frameworks that pass the whole conversation
at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet.core.config.rollout import CompactionConfig
from ajet.core.trajectory.base_recorder import BaseRecorder, SamplingOverrides
from ajet.core.workflow.bridge import run_on_loop

Messages = list[dict[str, Any]]
GO_ON_TEXT = "Go on."
"""The user message between a summary and a kept reply: roles must alternate."""
TOOL_MARGIN = 64
"""Tokens that a request for a summary may have in addition if it consists of tool results."""


class Compaction:
    """Compacts one conversation of one agent, as `ajet.rollout.compaction` configures it."""

    def __init__(
        self, recorder: BaseRecorder, settings: CompactionConfig, agent_name: str, target_tag: str
    ) -> None:
        self._recorder = recorder
        self._settings = settings
        self._agent_name, self._target_tag = agent_name, target_tag
        self._num_first = 0  # messages of the first prompt: system and task
        self._summary: Messages = []  # the summary, and the message after it if there is one
        self._num_summarised = 0  # messages that the conversation had when it was compacted last
        self._kept_from = 0  # index of the first message that is shown after the summary
        self._num_request: int | None = None  # tokens of the request for a summary

    async def shown(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Messages:
        """Returns the messages for the next call: all of them, or the first prompt, the newest
        summary and the messages since. `messages` is the whole conversation, which only grows;
        `max_tokens` limits the next reply. May call the model for a summary, so it may raise
        `EpisodeTruncated`."""
        if not self._settings.enable:
            return list(messages)
        if not self._num_first:
            self._num_first = self._num_summarised = self._kept_from = len(messages)
        return await run_on_loop(
            self._recorder.loop, self._shown(list(messages), tools, max_tokens)
        )

    async def _shown(
        self, messages: Messages, tools: Sequence[dict[str, Any]] | None, max_tokens: int | None
    ) -> Messages:
        prompt = self._with_summary(messages)
        # Compact while there is still room to ask for a summary, not when the call itself fails.
        longest = self._longest_prompt(tools, max_tokens)
        if self._recorder.num_prompt_tokens(prompt, tools) <= longest:
            return prompt
        # A summary needs a reply since the last one, and a call after it.
        replies = [i for i, message in enumerate(messages) if _is(message, "assistant")]
        if not replies or replies[-1] < self._num_summarised or self._recorder.num_calls_left < 2:
            return prompt
        most = self._recorder.limits.max_timeline - self._settings.max_summary_tokens
        # Compact only if the task and the messages after the summary leave room for the summary.
        for start in self._starts(messages, replies[-1]):
            rest = [*messages[: self._num_first], *messages[start:]]
            if self._recorder.num_prompt_tokens(rest, tools) < most:
                return await self._compacted(messages, prompt, replies[-1], start, tools)
        return prompt

    def _longest_prompt(
        self, tools: Sequence[dict[str, Any]] | None, max_tokens: int | None
    ) -> float:
        """Returns how many tokens a prompt may have so that its reply, the request for a summary
        and the summary still fit after it."""
        limits, settings = self._recorder.limits, self._settings
        if self._num_request is None:
            self._num_request = self._recorder.num_prompt_tokens([self._user_request])
        reply = limits.max_response_length_in_one_turn
        reply = reply if max_tokens is None else min(reply, max_tokens)
        request = self._num_request + (TOOL_MARGIN if tools else 0)
        most = limits.max_timeline - reply - request - settings.max_summary_tokens - 1
        if settings.at is None:
            return most
        return min(most, settings.at * limits.max_timeline if settings.at <= 1 else settings.at)

    @property
    def _user_request(self) -> dict[str, Any]:
        return {"role": "user", "content": self._settings.prompt}

    def _request_after(self, reply: dict[str, Any]) -> Messages:
        """Returns the messages that ask for a summary. They are the results of the reply's calls if
        it has any, because templates and servers refuse calls without results; the real results
        follow the summary."""
        calls = reply.get("tool_calls") or []
        answers = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": "",
            }
            for call in calls
        ]
        if not answers:
            return [self._user_request]
        answers[-1]["content"] = self._settings.prompt
        return answers

    def _with_summary(self, messages: Messages) -> Messages:
        return [*messages[: self._num_first], *self._summary, *messages[self._kept_from :]]

    def _starts(self, messages: Messages, last_reply: int) -> list[int]:
        """Returns two indices where the kept messages may begin: as many as the settings say, or
        only those that the model has not seen. A tool's result stays with its call."""
        preferred = max(self._kept_from, len(messages) - self._settings.keep_last_messages)
        starts: list[int] = []
        for start in (min(preferred, last_reply + 1), last_reply + 1):
            while self._kept_from < start < len(messages) and _is(messages[start], "tool"):
                start -= 1
            starts.append(start)
        return starts

    async def _compacted(
        self,
        messages: Messages,
        prompt: Messages,
        last_reply: int,
        start: int,
        tools: Sequence[dict[str, Any]] | None,
    ) -> Messages:
        """Asks for a summary of everything up to the last reply, and returns the messages for the
        next call. The replies among them keep their recorded ids."""
        transcript = prompt[: len(prompt) - (len(messages) - 1 - last_reply)]
        request = [*transcript, *self._request_after(transcript[-1])]
        turn = await self._recorder.chat(
            request,
            tools,
            tool_choice="none",
            agent_name=self._agent_name,
            target_tag=self._target_tag,
            overrides=SamplingOverrides(max_tokens=self._settings.max_summary_tokens),
            is_summary=True,
        )
        # After the summary, an assistant's message, comes a reply or nothing: roles would repeat.
        is_reply = start == len(messages) or _is(messages[start], "assistant")
        go_on = [{"role": "user", "content": GO_ON_TEXT}] if is_reply else []
        num_before = len(prompt) - len(messages)  # how many more `prompt` has than `messages`
        self._summary, self._kept_from = [dict(turn.reply), *go_on], start
        self._num_summarised = len(messages)
        compacted = self._with_summary(messages)
        end = self._num_first + 1  # the first prompt and the summary
        self._recorder.carry_reply([*request, turn.reply], compacted[:end], tools)
        # The kept replies have another prefix now: the session must find their recorded ids there.
        for index in range(start, last_reply + 1):
            if _is(messages[index], "assistant"):
                new = compacted[: len(compacted) - (len(messages) - 1 - index)]
                self._recorder.carry_reply(prompt[: index + num_before + 1], new, tools)
        return compacted


class Conversations:
    """Compacts the conversations of a framework that passes the whole of one at each call. A call
    belongs to the longest known conversation that it begins with. If there is none, for example
    because the framework changed earlier messages, it begins another one."""

    def __init__(self, recorder: BaseRecorder, settings: CompactionConfig) -> None:
        self._recorder, self._settings = recorder, settings
        self._known: list[tuple[Messages, Compaction]] = []

    async def shown(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        agent_name: str,
        target_tag: str,
        max_tokens: int | None = None,
    ) -> Messages:
        """Returns the messages for a call of this agent; see `Compaction.shown`."""
        messages = list(messages)
        earlier = [
            earlier_call
            for earlier_call in self._known
            if messages[: len(earlier_call[0])] == earlier_call[0]
        ]
        longest = max(earlier, key=lambda earlier_call: len(earlier_call[0]), default=None)
        if longest is not None:
            self._known.remove(longest)
            compaction = longest[1]
        else:
            compaction = Compaction(self._recorder, self._settings, agent_name, target_tag)
        self._known.append((messages, compaction))
        return await compaction.shown(messages, tools, max_tokens=max_tokens)


def _is(message: dict[str, Any], role: str) -> bool:
    return message.get("role") == role
