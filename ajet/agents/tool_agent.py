"""`tool_agent` lets the model call tools until it answers, or a limit is reached.

messages ─► model ─► reply with calls ─► all of them run at the same time ─► answers, in order
   ▲                 reply without ────► final answer, or the next message of the
   └──────────────────────────────────── simulated user, if there is one
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ajet.agents.simulated_user import SimulatedUser, load_interactions, open_user
from ajet.agents.single_turn import first_messages
from ajet.core.config import AjetConfig
from ajet.core.config.rollout import MultiTurnConfig
from ajet.core.errors import ConfigError
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import EpisodeTruncated
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow
from ajet.tools.call import gather_or_cancel
from ajet.tools.toolbox import EpisodeTools, load_toolbox

UNREADABLE_CALL_TEXT = (
    "Error: a tool call in your reply could not be read. Write the name of one tool and its "
    "arguments as a JSON object, in the form that you were shown."
)
COUNTER_NAMES = (
    "tool_calls",
    "tool_errors",
    "tool_timeouts",
    "tool_answers_cut",
    "tool_characters_cut",
    "invalid_tool_calls",
)
Call = dict[str, Any]
Side = Literal["left", "middle", "right"]
CHARACTERS_PER_TOKEN = 4
"""Assumed for a model behind an API without a tokenizer."""
FIRST_PROBE_CHARACTERS = 8
"""How many characters are tokenized first, per token of the limit."""


class ToolAgent(Workflow):
    """Calls tools until the model answers. Its tools, limits and simulated user come from
    `ajet.rollout.multi_turn`."""

    name = "tool_agent"
    reads = ("rollout.multi_turn", "rollout.compaction")

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        settings = config.ajet.rollout.multi_turn
        async with (
            load_toolbox(config).open(workflow_task, settings.tool_timeout_s) as tools,
            open_user(config, workflow_task) as user,
        ):
            loop = ToolLoop(model_tuner, tools, user, settings)
            ended_by = await loop.run(first_messages(workflow_task.task, settings.system_prompt))
            is_judged = config.ajet.task_judge.judge_protocol is not None
            output = await loop.output(ended_by, is_judged)
        num_failed = len(tools.failed_ends) + (user is not None and user.end_failed)
        output.log_metrics["failed_ends"] = float(num_failed)
        return output

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        load_interactions(config)
        load_toolbox(config).check()


class ToolLoop:
    def __init__(
        self,
        model: ModelTuner,
        tools: EpisodeTools,
        user: SimulatedUser | None,
        settings: MultiTurnConfig,
    ) -> None:
        self._model = model
        self._compaction = model.compaction()
        self._tools = tools
        self._user = user
        self._settings = settings
        self._sees_images: bool = model.config.ajet.model.images.enabled
        self._counts: Counter[str] = Counter()
        self._num_replies = 0
        self._num_user_turns = 0
        self._num_invalid_in_a_row = 0
        self._tool_steps: list[dict[str, Any]] = []
        self._final_answer = ""

    async def run(self, messages: list[dict[str, Any]]) -> str:
        """Runs the conversation, appending to `messages`, and returns why it ended:

        answer                 a reply without calls, and no simulated user
        interaction            the simulated user ended the conversation
        max_assistant_turns    the last allowed reply asked for tools, or for the user
        max_user_turns         the simulated user has used up its turns
        max_consecutive_invalid_calls    so many replies in a row had no call that could be run
        truncated              a limit of the run (tokens, `max_steps`); so says the status
        """
        while True:
            try:
                prompt = await self._compaction.shown(messages, self._tools.schemas or None)
                reply = await self._model.chat(prompt, self._tools.schemas or None)
            except EpisodeTruncated:  # the episode keeps this status; no later call can succeed
                return "truncated"
            num_unreadable = len(reply.pop("malformed_tool_calls", ()))
            messages.append(reply)
            self._num_replies += 1
            self._final_answer = reply["content"]
            calls = reply.get("tool_calls") or []
            wants_tools = bool(calls or num_unreadable)
            if ended_by := self._end_after_reply(wants_tools):
                return ended_by
            if wants_tools:
                messages += await self._tool_messages(calls, num_unreadable)
                if self._num_invalid_in_a_row >= self._settings.max_consecutive_invalid_calls:
                    return "max_consecutive_invalid_calls"
            else:
                assert self._user is not None  # `_end_after_reply` ends a conversation without one
                text = await self._user.answer(messages)
                if text is None:
                    return "interaction"
                self._num_user_turns += 1
                messages.append({"role": "user", "content": text})

    async def output(self, ended_by: str, is_judged: bool) -> WorkflowOutput:
        """Returns the output of the finished conversation. Without a judge the reward is the sum of
        the tools' rewards (`calc_reward`) and the simulated user's (`calculate_score`), or None if
        there are none."""
        tool_rewards = await self._tools.rewards()
        metadata: dict[str, Any] = {
            "final_answer": self._final_answer,
            "ended_by": ended_by,
            "tool_rewards": tool_rewards,
        }
        if self._tool_steps:
            metadata["tool_steps"] = self._tool_steps
        rewards = list(tool_rewards.values())
        if self._user is not None:
            score = await self._user.score()
            rewards += [] if score is None else [score]
            metadata["interaction"] = {
                "score": score,
                "rewards": self._user.rewards,
                "notes": self._user.notes,
            }
        log_metrics = {name: float(self._counts[name]) for name in COUNTER_NAMES}
        log_metrics["assistant_turns"] = float(self._num_replies)
        log_metrics["user_turns"] = float(self._num_user_turns)
        log_metrics["ended_by_limit"] = float(ended_by not in ("answer", "interaction"))
        reward = None if is_judged or not rewards else sum(rewards)
        return WorkflowOutput(reward=reward, metadata=metadata, log_metrics=log_metrics)

    def _end_after_reply(self, wants_tools: bool) -> str | None:
        settings = self._settings
        if not wants_tools and self._user is None:
            return "answer"
        if not wants_tools and self._num_user_turns == settings.max_user_turns:
            return "max_user_turns"
        if self._num_replies == settings.max_assistant_turns:
            return "max_assistant_turns"
        return None

    async def _tool_messages(
        self, calls: Sequence[Call], num_unreadable: int
    ) -> list[dict[str, Any]]:
        # Checked one after another before any call runs: which calls fit into `max_tool_calls`
        # must not depend on how long they take.
        problems = [self._problem(order, call) for order, call in enumerate(calls)]
        num_invalid = num_unreadable + sum(problem is not None for problem in problems)
        self._counts["invalid_tool_calls"] += num_invalid
        self._num_invalid_in_a_row = 0 if None in problems else self._num_invalid_in_a_row + 1
        contents = await gather_or_cancel(map(self._answer, calls, problems))
        answers = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": content,
            }
            for call, content in zip(calls, contents, strict=True)
        ]
        if num_unreadable:
            answers.append({"role": "user", "content": UNREADABLE_CALL_TEXT})
        return answers

    def _problem(self, order: int, call: Call) -> str | None:
        """Returns why a call is not run, or None if it is; then it counts in `max_tool_calls`. The
        model sees the reason (verl silently drops calls beyond `max_parallel_calls`)."""
        settings = self._settings
        if order >= settings.max_parallel_calls:
            return f"not run: at most {settings.max_parallel_calls} calls in one reply are"
        function = call["function"]
        problem = self._tools.problem(function["name"], json.loads(function["arguments"]))
        if problem is not None:
            return problem
        if self._counts["tool_calls"] == settings.max_tool_calls:
            return f"not run: the {settings.max_tool_calls} calls that you had are used up"
        self._counts["tool_calls"] += 1
        return None

    async def _answer(self, call: Call, problem: str | None) -> str | list[dict[str, Any]]:
        """Returns the content of the message that answers a call."""
        if problem is not None:
            return self._truncated(f"Error: {problem}")
        function = call["function"]
        recorded = self._tools.recorded_answer(function["name"], call["id"])
        if recorded is not None:
            return recorded
        result = await self._tools.call(function["name"], json.loads(function["arguments"]))
        is_seen = self._sees_images and bool(result.parts)
        failed = result.failed and not is_seen
        self._counts["tool_errors"] += failed
        self._counts["tool_timeouts"] += result.timed_out
        if (result.reward is not None or result.metrics) and not failed:
            step = {"tool": function["name"], "reward": result.reward, "metrics": result.metrics}
            self._tool_steps.append(step)
        if not is_seen:
            return self._truncated(result.text)
        return [
            {**part, "text": self._truncated(part["text"])} if part["type"] == "text" else part
            for part in result.parts
        ]

    def _truncated(self, text: str) -> str:
        settings = self._settings
        limit, side = settings.max_tool_response_length, settings.tool_response_truncate_side
        truncated_text, num_cut = truncate(text, limit, side, self._model)
        self._counts["tool_answers_cut"] += bool(num_cut)
        self._counts["tool_characters_cut"] += num_cut
        return truncated_text


def truncate(text: str, limit: int, side: Side, model: ModelTuner) -> tuple[str, int]:
    """Returns the text with at most `limit` of its tokens left, and the number of characters that
    were cut, as in "The beginning stays …(9744 characters cut)". The note about the cut does not
    count in the limit. The sides are verl's, which name what stays."""

    def count_tokens(text: str) -> int:
        try:
            return len(model.encode(text))
        except ConfigError:  # a chat endpoint has no tokenizer
            return -(-len(text) // CHARACTERS_PER_TOKEN)

    def beginning(tokens: int) -> int:
        return _longest(lambda length: text[:length], len(text), tokens, count_tokens)

    def ending(tokens: int) -> int:
        return _longest(lambda length: text[len(text) - length :], len(text), tokens, count_tokens)

    num_first = beginning(limit)
    if num_first == len(text):
        return text, 0
    if side == "left":
        num_last = 0
    elif side == "right":
        num_first, num_last = 0, ending(limit)
    else:
        num_first, num_last = beginning((limit + 1) // 2), ending(limit // 2)
    num_cut = len(text) - num_first - num_last
    if num_cut <= 0:  # the halves meet: together they may have fewer tokens than the whole text
        return text, 0
    first, last = text[:num_first], text[len(text) - num_last :]
    note = f"({num_cut} characters cut)"
    return "…".join(filter(None, [first, note, last])), num_cut


def _longest(
    piece: Callable[[int], str], length: int, limit: int, count_tokens: Callable[[str], int]
) -> int:
    """Returns the largest number of characters, up to `length`, whose `piece` has at most `limit`
    tokens. The length is doubled until a piece is too long, then found by bisection."""
    # Invariant: a piece of `fits` characters fits. A megabyte of text is never tokenized whole if
    # the limit is small, because tokenizing takes time linear in the text or worse.
    fits, probed = 0, min(FIRST_PROBE_CHARACTERS * limit, length)
    while count_tokens(piece(probed)) <= limit:
        if probed == length:
            return length
        fits, probed = probed, min(2 * probed or FIRST_PROBE_CHARACTERS, length)
    too_long = probed
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count_tokens(piece(middle)) <= limit:
            fits = middle
        else:
            too_long = middle
    return fits
