"""Builds the prompt of an episode's next call without encoding recorded tokens again.

An episode's calls form a tree of conversations. When an agent sends the messages of a recorded
call, that call's reply, and new messages, the next prompt is

    recorded prompt ids + recorded completion ids + ids of what the template writes for the new part
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.core.inference.chat_template import ChatTemplate, Message, Tools, normalised
from ajet.core.inference.endpoint import Completion
from ajet.core.model.attention.trie import common_length

COMPACTED = "the conversation was compacted"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of the next call.

    `continues`: the first ids are those of a recorded call. `reason`: why a matching recorded call
    was not continued. `opening`: a fixed beginning of the reply, if any. `drift`: the first
    position where a fresh render would have another id; None if there is none, or it was not
    checked.
    """

    ids: list[int]
    continues: bool
    reason: str | None = None
    opening: str = ""
    drift: int | None = None
    drift_checked: bool = False


@dataclass(frozen=True, slots=True)
class _RenderedPrompt:
    """A prompt with the rendered text that a continuation must begin with."""

    ids: tuple[int, ...]  # may end with the opening of the reply, which is not in `text`
    messages: list[dict[str, Any]]  # with a placeholder for every reply that `ids` holds as sampled
    text: str


@dataclass(frozen=True, slots=True)
class _AnsweredCall:
    prompt: _RenderedPrompt
    reply: dict[str, Any]
    completion: Completion
    is_carried: bool = False  # it was sampled after other messages, before a compaction

    @property
    def thinking(self) -> str:
        return _thinking(self.reply)


@dataclass(slots=True)
class _ConversationNode:
    """A conversation up to one message, with its prompts and the calls whose reply is that
    message."""

    children: dict[Hashable, _ConversationNode] = field(default_factory=dict)
    prompts: list[_RenderedPrompt] = field(default_factory=list)
    calls: list[_AnsweredCall] = field(default_factory=list)

    def child(self, key: Hashable) -> _ConversationNode:
        if key not in self.children:
            self.children[key] = _ConversationNode()
        return self.children[key]


@dataclass(frozen=True, slots=True)
class _MessageKey:
    """The keys of a message in the tree: `exact` has everything that a template may write,
    `as_reply` what identifies a recorded reply (None for other messages)."""

    exact: Hashable
    as_reply: Hashable = None

    def find_child(self, node: _ConversationNode) -> _ConversationNode | None:
        return node.children.get(self.as_reply) or node.children.get(self.exact)


class TokenSession:
    """Builds and records the prompts of one episode, whose agents may share it.

    The new part of a prompt is found in the *rendered text*, with a placeholder for every recorded
    reply. It begins at the special token that ends the reply, so it can be tokenized separately:

        text of the recorded prompt     …<|im_start|>assistant⏎
        text with reply and new part    …<|im_start|>assistant⏎REPLY<|im_end|>⏎<|im_start|>user⏎…
                                                                    ^ the new part begins here

    Messages match if everything that the template may write is equal. A recorded reply matches by
    its stripped text and its calls without ids; thinking matches if it is equal or was not sent
    back. After a reply that the agent edited, the longest match before it is continued.
    """

    def __init__(self, template: ChatTemplate, check_drift: bool = False) -> None:
        self._template = template
        self._check_drift = check_drift
        self._root = _ConversationNode()
        self._ids_are_written = (
            re.search(r"tool_call_id|\.id\b|\[.id.\]", template.text) is not None
        )
        # Random, so that they occur in no message. They are searched for, never tokenized.
        self._reply_placeholder = f"R{secrets.token_hex(8)}"
        self._thinking_placeholder = f"T{secrets.token_hex(8)}"

    def prompt_for(
        self, messages: Sequence[Message], tools: Tools | None, opening: str = ""
    ) -> Prompt:
        """Returns the prompt for these messages: a continuation of the longest recorded match if
        the template allows it, else a fresh render. `opening` is a fixed beginning of the reply,
        which becomes the end of the prompt, as context that was not sampled."""
        path = self._path(messages, tools)
        call, num_matched = self._longest_match(messages, path)
        rendered = self._continue(call, messages[num_matched:], tools) if call else None
        reason = rendered if isinstance(rendered, str) else None
        continues = isinstance(rendered, _RenderedPrompt)
        if not isinstance(rendered, _RenderedPrompt):
            rendered = self._render_fresh(messages, tools)
        drift = self._drift(rendered, messages, tools) if continues else None
        if opening:
            if rendered.text.rstrip().endswith("<think>"):  # the template begins with thinking
                opening = f"\n</think>\n\n{opening}"
            rendered = replace(rendered, ids=(*rendered.ids, *self._template.encode(opening)))
        prompts = self._node(path).prompts
        if not any(earlier.ids == rendered.ids for earlier in prompts):
            prompts.append(rendered)
        # The ids of a carried reply continue, but the messages before it are new: a new branch.
        is_carried = call is not None and call.is_carried
        if continues and is_carried:
            reason = COMPACTED
        return Prompt(
            ids=list(rendered.ids),
            continues=continues and not is_carried,
            reason=reason,
            opening=opening,
            drift=drift,
            drift_checked=continues and self._check_drift,
        )

    def record(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        reply: Message,
        completion: Completion,
    ) -> None:
        """Records that `completion` followed these messages; the agent received it as `reply`."""
        node = self._node(self._path(messages, tools))
        prompt = next((p for p in node.prompts if p.ids == completion.prompt_ids), None)
        if prompt is None:  # not a prompt of this session: keep the recorded ids
            prompt = replace(self._render_fresh(messages, tools), ids=completion.prompt_ids)
        plain = normalised(reply)
        node.child(_reply_key(plain)).calls.append(_AnsweredCall(prompt, plain, completion))

    def carry_reply(
        self, source: Sequence[Message], target: Sequence[Message], tools: Tools | None
    ) -> None:
        """Makes the recorded reply at the end of `source` continue with its ids at the end of
        `target` too: a compacted conversation, with new first messages and some replies of the
        previous one. Its first prompt starts a new branch. Does nothing if the reply was not
        recorded."""
        call, num_matched = self._longest_match(source, self._path(source, tools))
        if call is None or num_matched < len(source):
            return
        prompt = self.prompt_for(target[:-1], tools)
        node = self._node(self._path(target[:-1], tools))
        rendered = next(p for p in node.prompts if p.ids == tuple(prompt.ids))
        completion = replace(call.completion, prompt_ids=rendered.ids)
        carried = _AnsweredCall(rendered, call.reply, completion, is_carried=True)
        node.child(_reply_key(call.reply)).calls.append(carried)

    def _longest_match(
        self, messages: Sequence[Message], path: Sequence[_MessageKey]
    ) -> tuple[_AnsweredCall | None, int]:
        """Returns the recorded call that covers most of `messages`, and how many it covers; the
        latest of several calls with the same reply."""
        best: tuple[_AnsweredCall | None, int] = (None, 0)
        node = path[0].find_child(self._root)
        for num_matched, (message, step) in enumerate(zip(messages, path[1:], strict=True), 1):
            node = step.find_child(node) if node else None
            if node is None:
                break
            sent_thinking = _thinking(message)
            same = [call for call in node.calls if sent_thinking in ("", call.thinking)]
            if same:
                best = same[-1], num_matched
            elif node.calls:  # the agent changed the thinking of this reply
                break
        return best

    def _node(self, path: Sequence[_MessageKey]) -> _ConversationNode:
        node = self._root
        for step in path:
            node = step.find_child(node) or node.child(step.exact)
        return node

    def _path(self, messages: Sequence[Message], tools: Tools | None) -> list[_MessageKey]:
        """Returns the keys from the tree's root (the tools) to this conversation."""
        path = [_MessageKey(json.dumps(list(tools), default=str) if tools else "")]
        for message in messages:
            plain = normalised(message)
            as_reply = _reply_key(plain)
            if not self._ids_are_written:  # ids that the template ignores need not match
                plain.pop("tool_call_id", None)
                for call in plain.get("tool_calls", ()):
                    call.pop("id", None)
            path.append(_MessageKey(json.dumps(plain, sort_keys=True, default=str), as_reply))
        return path

    def _continue(
        self, call: _AnsweredCall, new: Sequence[Message], tools: Tools | None
    ) -> _RenderedPrompt | str:
        """Returns the recorded call continued with new messages, or why a fresh render starts a new
        branch instead: the template changes the text before the reply, drops its thinking (Qwen3,
        after a new user message), or ends a reply differently than the model did."""
        placeholder = self._placeholder_reply(call.reply)
        # `before` and `reply` are positions in `text`: where the recorded prompt ends, and where
        # the placeholder of its reply is.
        messages = [*call.prompt.messages, placeholder, *map(normalised, new)]
        text = self._template.render_marked(messages, tools)
        before = len(call.prompt.text)
        reply = text.rfind(self._reply_placeholder, before)
        if not text.startswith(call.prompt.text) or reply < 0:
            return "the template changes earlier messages when new ones come"
        if call.thinking and text.find(self._thinking_placeholder, before) < 0:
            return "the template drops the thinking of an earlier reply"
        new_ids = self._new_ids(call.completion.token_ids, text, reply)
        if isinstance(new_ids, str):
            return new_ids
        ids = (*call.completion.prompt_ids, *call.completion.token_ids, *new_ids)
        return _RenderedPrompt(ids, messages, text)

    def _new_ids(self, sampled: Sequence[int], text: str, reply: int) -> list[int] | str:
        """Returns the ids that follow `sampled`, or why there are none. `reply` is the position of
        the reply's placeholder in `text`. A completion that ended with the template's special token
        has it already; one that was cut short (`length`, `abort`) gets it as context that was not
        sampled."""
        end_of_turn = self._template.find_reply_end(text, reply)
        ids = self._template.encode(text[end_of_turn[0] :]) if end_of_turn else []
        if not end_of_turn or ids[0] != end_of_turn[1]:
            return "the template writes no special token after a reply"
        # `ended`: the stop token that the model sampled, None if the reply was cut short.
        stops = self._template.stop_token_ids
        ended = sampled[-1] if sampled and sampled[-1] in stops else None
        if ended == ids[0]:
            return ids[1:]
        if ended is None and ids[0] in stops:
            return ids
        written = self._template.token_text(ids[0])
        how = "was cut short"
        if ended is not None:
            how = f"ended its reply with {self._template.token_text(ended)}"
        return f"the model {how}, the template continues with {written}"

    def _placeholder_reply(self, reply: Message) -> dict[str, Any]:
        """Returns a message like the reply, with placeholders as its texts."""
        placeholder: dict[str, Any] = {"role": "assistant", "content": self._reply_placeholder}
        if "</think>" in str(reply.get("content")):
            placeholder["content"] = (
                f"<think>\n{self._thinking_placeholder}\n</think>\n\n{self._reply_placeholder}"
            )
        elif _thinking(reply):
            placeholder["reasoning_content"] = self._thinking_placeholder
        if reply.get("tool_calls"):
            if self._template.writes_content_last and not str(reply["content"]).strip():
                placeholder["content"] = ""  # else text would follow the tools' results
            arguments = {self._reply_placeholder: self._reply_placeholder}
            placeholder["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": arguments}}
                for call in reply["tool_calls"]
            ]
        return placeholder

    def _render_fresh(self, messages: Sequence[Message], tools: Tools | None) -> _RenderedPrompt:
        text = self._template.render_marked(messages, tools)
        return _RenderedPrompt(
            self._template.encode_cached(text), list(map(normalised, messages)), text
        )

    def _drift(
        self, rendered: _RenderedPrompt, messages: Sequence[Message], tools: Tools | None
    ) -> int | None:
        if not self._check_drift:
            return None
        fresh = self._template.encode(self._template.render_marked(messages, tools))
        num_equal = common_length(rendered.ids, tuple(fresh))
        return None if num_equal == len(fresh) == len(rendered.ids) else num_equal


def _thinking(message: Message) -> str:
    """Returns the reply's thinking, which a parser has split off or its content still has."""
    split_off = message.get("reasoning_content")
    if isinstance(split_off, str) and split_off.strip():
        return split_off.strip()
    content = message.get("content")
    if isinstance(content, str) and "</think>" in content:
        return content.partition("</think>")[0].strip()
    return ""


def _reply_key(plain: dict[str, Any]) -> Hashable:
    """Returns what every agent sends back of a reply: its text and its calls without ids."""
    if plain.get("role") != "assistant":
        return None
    calls = tuple(
        (
            call["function"]["name"],
            json.dumps(call["function"]["arguments"], sort_keys=True, default=str),
        )
        for call in plain.get("tool_calls", ())
    )
    content = plain["content"]
    return content.strip() if isinstance(content, str) else str(content), calls
