"""Makes the prompt of an episode's next call without encoding recorded tokens again.

An episode's calls make a tree of conversations. When an agent sends the messages of a recorded
call, that call's reply, and new messages, the next prompt is

    recorded prompt ids + recorded completion ids + ids of what the template writes for the new part

The new part is found in the *rendered text*, with a placeholder for every recorded reply:

    text of the recorded prompt     …<|im_start|>assistant⏎
    text with reply and new part    …<|im_start|>assistant⏎REPLY<|im_end|>⏎<|im_start|>user⏎…
                                                                ^ the new part begins here

The new part begins at the special token that ends the reply, so tokenizing it alone is exact. A
completion that ended with that token has it already; one that was cut short (`length`, `abort`)
gets it as context that was not sampled.

A fresh render begins a new branch, and `Prompt.reason` says why, in these cases: the template
changes the text before the reply, or drops the reply's thinking (Qwen3, once a new user message
comes), or writes no special token after a reply, or ends it with another one than the model did.
Tokens sampled on the old branch stay there.

Messages are matched by everything that the template may write. A recorded reply is matched by its
text and its calls: white space around it and the ids of its calls do not count. Thinking that the
agent does not send back counts as sent back; thinking that it changed does not match. Several
agents may share a session.

A compacted conversation begins with other messages and holds replies of the one before it.
`carry_reply` lets it continue with their recorded ids; `Prompt.continues` is false for its first
prompt, which begins a new branch.

Not covered: a reply that the agent edited. The longest match before it is continued.
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

COMPACTED = "the conversation was compacted"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of the next call.

    `continues` says that its first ids are those of a recorded call. `reason` says why a recorded
    call that matches was not continued. `opening` is the fixed beginning of the reply, if there is
    one. `drift` is the first position where rendering and tokenizing everything afresh would give
    another id. It is None if there is none, or if `drift_checked` is false: a fresh render cannot
    drift.
    """

    ids: list[int]
    continues: bool
    reason: str | None = None
    opening: str = ""
    drift: int | None = None
    drift_checked: bool = False


@dataclass(frozen=True, slots=True)
class _RenderedPrompt:
    """A prompt: its ids, and the rendered text that a continuation must begin with."""

    ids: tuple[int, ...]  # may end with the opening of the reply, which is not in `text`
    messages: list[dict[str, Any]]  # with a placeholder for every reply that `ids` holds as sampled
    text: str


@dataclass(frozen=True, slots=True)
class _AnsweredCall:
    prompt: _RenderedPrompt
    reply: dict[str, Any]
    completion: Completion
    is_carried: bool = False  # sampled after other messages

    @property
    def thinking(self) -> str:
        return _thinking(self.reply)


@dataclass(slots=True)
class _ConversationNode:
    """A conversation up to one message, with the prompts made for it and the calls whose reply is
    its last message."""

    children: dict[Hashable, _ConversationNode] = field(default_factory=dict)
    prompts: list[_RenderedPrompt] = field(default_factory=list)
    calls: list[_AnsweredCall] = field(default_factory=list)

    def child(self, key: Hashable) -> _ConversationNode:
        if key not in self.children:
            self.children[key] = _ConversationNode()
        return self.children[key]


@dataclass(frozen=True, slots=True)
class _MessageKey:
    """The keys of a message in the tree: `exact` holds everything that a template may write of it,
    `as_reply` what identifies a recorded reply (None if the message is no reply)."""

    exact: Hashable
    as_reply: Hashable = None

    def find_child(self, node: _ConversationNode) -> _ConversationNode | None:
        return node.children.get(self.as_reply) or node.children.get(self.exact)


class TokenSession:
    """Makes and records the prompts of one episode; see the module's docstring."""

    def __init__(self, template: ChatTemplate, check_drift: bool = False) -> None:
        self._template = template
        self._check_drift = check_drift
        self._root = _ConversationNode()
        self._ids_are_written = (
            re.search(r"tool_call_id|\.id\b|\[.id.\]", template.text) is not None
        )
        # Placeholders must not occur in any message. They are searched for, never tokenized.
        self._reply_placeholder = f"R{secrets.token_hex(8)}"
        self._thinking_placeholder = f"T{secrets.token_hex(8)}"

    def prompt_for(
        self, messages: Sequence[Message], tools: Tools | None, opening: str = ""
    ) -> Prompt:
        """Returns the prompt for these messages: a continuation of the longest recorded match if
        there is one and the template allows it, else a fresh render. `opening` is a fixed beginning
        of the reply: it ends the prompt, as context that was not sampled."""
        path = self._path(messages, tools)
        call, num_matched = self._longest_match(messages, path)
        continuation = self._continue(call, messages[num_matched:], tools) if call else None
        continues = isinstance(continuation, _RenderedPrompt)
        rendered = (
            continuation if isinstance(continuation, _RenderedPrompt) else self._render_fresh(messages, tools)
        )
        drift = self._drift(rendered, messages, tools) if continues else None
        if opening:
            if rendered.text.rstrip().endswith("<think>"):  # the template begins with thinking
                opening = f"\n</think>\n\n{opening}"
            rendered = replace(rendered, ids=(*rendered.ids, *self._template.encode(opening)))
        prompts = self._node(path).prompts
        if not any(earlier.ids == rendered.ids for earlier in prompts):
            prompts.append(rendered)
        is_carried = call is not None and call.is_carried
        reason = COMPACTED if continues and is_carried else None
        return Prompt(
            ids=list(rendered.ids),
            continues=continues and not is_carried,
            reason=continuation if isinstance(continuation, str) else reason,
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
        """Records that `completion` followed these messages; the agent got it as `reply`."""
        node = self._node(self._path(messages, tools))
        matches = [prompt for prompt in node.prompts if prompt.ids == completion.prompt_ids]
        prompt = matches[0] if matches else self._unseen_prompt(messages, tools, completion)
        plain = normalised(reply)
        node.child(_reply_key(plain)).calls.append(_AnsweredCall(prompt, plain, completion))

    def carry_reply(
        self, source: Sequence[Message], target: Sequence[Message], tools: Tools | None
    ) -> None:
        """Gives the reply at the end of `source` its recorded ids at the end of `target` too. Does
        nothing if it was not recorded there."""
        call, num_matched = self._longest_match(source, self._path(source, tools))
        if call is None or num_matched < len(source):
            return
        prompt = self.prompt_for(target[:-1], tools)
        node = self._node(self._path(target[:-1], tools))
        rendered = next(candidate for candidate in node.prompts if candidate.ids == tuple(prompt.ids))
        completion = replace(call.completion, prompt_ids=rendered.ids)
        carried = _AnsweredCall(rendered, call.reply, completion, is_carried=True)
        node.child(_reply_key(call.reply)).calls.append(carried)

    def _longest_match(
        self, messages: Sequence[Message], path: Sequence[_MessageKey]
    ) -> tuple[_AnsweredCall | None, int]:
        """Returns the recorded call that covers most of `messages`, and how many it covers. Of
        several calls with the same reply it is the last one recorded."""
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
            elif node.calls:
                break
        return best

    def _node(self, path: Sequence[_MessageKey]) -> _ConversationNode:
        node = self._root
        for step in path:
            node = step.find_child(node) or node.child(step.exact)
        return node

    def _path(self, messages: Sequence[Message], tools: Tools | None) -> list[_MessageKey]:
        """Returns the keys from the tree's root to this conversation."""
        offered = json.dumps(list(tools), default=str) if tools else ""
        return [
            _MessageKey(offered),
            *(self._message_key(normalised(message)) for message in messages),
        ]

    def _message_key(self, plain: dict[str, Any]) -> _MessageKey:
        as_reply = _reply_key(plain)
        if not self._ids_are_written:
            plain.pop("tool_call_id", None)
            for call in plain.get("tool_calls", ()):
                call.pop("id", None)
        return _MessageKey(json.dumps(plain, sort_keys=True, default=str), as_reply)

    def _continue(
        self, call: _AnsweredCall, new: Sequence[Message], tools: Tools | None
    ) -> _RenderedPrompt | str:
        """Returns the recorded call continued with new messages, or why it cannot be continued."""
        placeholder = self._placeholder_reply(call.reply)
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
        """Returns the ids that follow `sampled`, whose placeholder is at `reply` in `text`, or why
        there are none."""
        end_of_turn = self._template.find_reply_end(text, reply)
        ids = self._template.encode(text[end_of_turn[0] :]) if end_of_turn else []
        if not end_of_turn or ids[0] != end_of_turn[1]:
            return "the template writes no special token after a reply"
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
        return f"the model {how}, the template goes on with {written}"

    def _placeholder_reply(self, reply: Message) -> dict[str, Any]:
        """Returns a message of the reply's form whose texts are the placeholders."""
        placeholder: dict[str, Any] = {"role": "assistant", "content": self._reply_placeholder}
        if "</think>" in str(reply.get("content")):
            placeholder["content"] = (
                f"<think>\n{self._thinking_placeholder}\n</think>\n\n{self._reply_placeholder}"
            )
        elif _thinking(reply):
            placeholder["reasoning_content"] = self._thinking_placeholder
        if reply.get("tool_calls"):
            if self._template.writes_content_last and not str(reply["content"]).strip():
                placeholder["content"] = ""  # else the render has text after the tools' results
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

    def _unseen_prompt(
        self, messages: Sequence[Message], tools: Tools | None, completion: Completion
    ) -> _RenderedPrompt:
        """Returns the prompt of a completion that this session made no prompt for, with the ids as
        they were recorded."""
        rendered = self._render_fresh(messages, tools)
        return _RenderedPrompt(completion.prompt_ids, rendered.messages, rendered.text)

    def _drift(
        self, rendered: _RenderedPrompt, messages: Sequence[Message], tools: Tools | None
    ) -> int | None:
        if not self._check_drift:
            return None
        fresh = self._template.encode(self._template.render_marked(messages, tools))
        same = (a == b for a, b in zip(rendered.ids, fresh, strict=False))
        first = next((index for index, equal in enumerate(same) if not equal), None)
        if first is None and len(fresh) != len(rendered.ids):
            return min(len(fresh), len(rendered.ids))
        return first


def _thinking(message: Message) -> str:
    """Returns the reply's thinking, which a parser split off or which is still in its content."""
    split_off = message.get("reasoning_content")
    if isinstance(split_off, str) and split_off.strip():
        return split_off.strip()
    content = message.get("content")
    if isinstance(content, str) and "</think>" in content:
        return content.partition("</think>")[0].strip()
    return ""


def _reply_key(plain: dict[str, Any]) -> Hashable:
    """Returns the part of a reply that every agent sends back: its text and its calls."""
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
