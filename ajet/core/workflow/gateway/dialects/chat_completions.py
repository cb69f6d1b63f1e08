"""OpenAI's Chat Completions: ``POST /v1/chat/completions``.

Temperature, `top_p` and `top_k` apply to agents that are not trained; the others get the run's, and
are counted. The fields in `UNSERVED` are refused. vLLM's `structured_outputs` is another
name for `response_format`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet.core.task.chat_messages import checked_messages
from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.dialects.dialect import event, openai_error
from ajet.core.workflow.gateway.keys import Grant
from ajet.core.workflow.gateway.request import (
    MAX_CHOICES,
    ChatRequest,
    Fields,
    RequestError,
    Unserved,
    object_list,
    overrides,
)

IGNORED_FIELDS = (
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
NOT_MODERATED = "ajet moderates nothing; leave it out"
SAMPLED_ALONE = "only the sampled tokens' are known; leave it out"
_FORMER = "it is the former form of tools; send tools and tool_choice"
_NOT_APPLIED = "no engine here applies it; leave it out"
_STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""The fields of vLLM's `structured_outputs`, and the types of `response_format` for them."""
UNSERVED = {
    "audio": Unserved("replies are text; leave it out"),
    "frequency_penalty": Unserved(_NOT_APPLIED, [0]),
    "function_call": Unserved(_FORMER),
    "functions": Unserved(_FORMER),
    "logit_bias": Unserved(_NOT_APPLIED, [{}]),
    "modalities": Unserved("replies are text; leave it out", [["text"]]),
    "moderation": Unserved(NOT_MODERATED),
    "presence_penalty": Unserved(_NOT_APPLIED, [0]),
    "reasoning_effort": Unserved(
        "the chat template decides how the model thinks; if it reads such a variable, send "
        "chat_template_kwargs"
    ),
    "top_logprobs": Unserved(SAMPLED_ALONE, [0]),
    "verbosity": Unserved("ask for short or long replies in the prompt", ["medium"]),
    "web_search_options": Unserved("ajet does not search the web; leave it out"),
}
"""The fields of the API that are known and refused."""


class ChatCompletions:
    """Translates OpenAI's Chat Completions."""

    path = "/chat/completions"

    def parse(self, body: Mapping[str, Any], grant: Grant) -> ChatRequest:
        fields = Fields(body, IGNORED_FIELDS)
        tools = object_list(fields.take("tools", list, []), "tools")
        options = fields.take("stream_options", dict, {})
        request = ChatRequest(
            messages=read_messages(fields.take("messages", list)),
            tools=tools or None,
            tool_choice=read_tool_choice(fields.take("tool_choice", (str, dict)), tools),
            parallel_tool_calls=fields.take("parallel_tool_calls", bool, True),
            num_choices=_num_choices(fields.take("n", int, 1)),
            overrides=overrides(
                temperature=fields.take("temperature", (int, float)),
                top_p=fields.take("top_p", (int, float)),
                top_k=fields.take("top_k", int),
                max_tokens=_max_tokens(fields),
                stop=read_stop(fields.take("stop", (str, list)), "stop"),
                seed=fields.take("seed", int),
                chat_template_kwargs=fields.take("chat_template_kwargs", dict),
                response_format=_response_format(fields),
            ),
            stream=fields.take("stream", bool, False),
            stream_usage=bool(options.get("include_usage")),
            logprobs=fields.take("logprobs", bool, False),
            model=fields.take("model", str, "ajet"),
        )
        fields.refuse_rest(UNSERVED)
        if request.logprobs and not grant.recorder.shows_tokens:
            raise RequestError("logprobs: this endpoint shows no tokens", param="logprobs")
        return request

    def reply(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", **_message(turn), "refusal": None},
                "finish_reason": finish_reason(turn),
                "logprobs": _logprobs(turn, grant) if request.logprobs else None,
            }
            for index, turn in enumerate(turns)
        ]
        head = _common_fields(request, turns, grant, "chat.completion")
        return {**head, "choices": choices, "usage": _usage(turns)}

    def events(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> Iterator[str]:
        head = _common_fields(request, turns, grant, "chat.completion.chunk")
        usage = {"usage": None} if request.stream_usage else {}
        for index, turn in enumerate(turns):
            for number, delta in enumerate(_deltas(turn)):
                choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
                # All log-probabilities come with the first delta that has content.
                if request.logprobs and number == 1:
                    choice["logprobs"] = _logprobs(turn, grant)
                yield event({**head, "choices": [choice], **usage})
            last = {"index": index, "delta": {}, "finish_reason": finish_reason(turn)}
            yield event({**head, "choices": [last], **usage})
        if request.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(turns)})
        yield event("[DONE]")

    def error_body(self, error: RequestError) -> dict[str, Any]:
        return openai_error(error)


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Returns the checked messages in OpenAI's form; the role "developer" becomes "system"."""
    if not value:
        raise RequestError("messages must be a list of at least one message", param="messages")
    try:
        messages = checked_messages(object_list(value, "messages"))
    except ValueError as error:
        raise RequestError(str(error), param="messages") from error
    return [{key: message[key] for key in message if key != "annotations"} for message in messages]


def read_tool_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns "auto", "none", "required", a tool's name, or None."""
    names = []
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"tools[{index}] has no function with a name", param="tools")
        names.append(function["name"])
    if isinstance(value, dict):
        choice = value.get("function") or value
        value = choice.get("name") if isinstance(choice, dict) else choice
        if value not in names:
            raise RequestError(f"tool_choice: there is no tool {value!r}", param="tool_choice")
        return value
    if value not in (None, "auto", "none", "required"):
        raise RequestError(f"tool_choice: unknown value {value!r}", param="tool_choice")
    if value == "required" and not names:
        raise RequestError("tool_choice is required, but there are no tools", param="tool_choice")
    return value


def _response_format(fields: Fields) -> dict[str, Any] | None:
    """Returns the form of the reply, which vLLM's clients name otherwise than OpenAI's."""
    chosen = fields.take("response_format", dict)
    structured = fields.take("structured_outputs", dict, {})
    names = [name for name in _STRUCTURED if structured.get(name) is not None]
    if not names:
        return chosen
    if chosen is not None or len(names) > 1 or structured.keys() - set(names):
        raise RequestError(
            f"structured_outputs takes one of {', '.join(_STRUCTURED)}, without response_format",
            param="structured_outputs",
        )
    (name,) = names
    kind, value = _STRUCTURED[name], structured[name]
    return {"type": kind, kind: {"schema": value} if kind == "json_schema" else value}


def read_stop(value: Any, name: str) -> tuple[str, ...] | None:
    texts = [value] if isinstance(value, str) else value
    if texts is not None and not all(isinstance(text, str) for text in texts):
        raise RequestError(f"{name} must be text or a list of texts", param=name)
    return tuple(texts) if texts else None


def finish_reason(turn: Turn) -> str:
    """Returns OpenAI's finish reason. A reply that was cut is "length", also if it has calls."""
    if turn.is_cut:
        return "length"
    return "tool_calls" if turn.reply.get("tool_calls") else "stop"


def _num_choices(value: int) -> int:
    if not 1 <= value <= MAX_CHOICES:
        raise RequestError(f"n must be 1 to {MAX_CHOICES}, not {value}", param="n")
    return value


def _max_tokens(fields: Fields) -> int | None:
    old = fields.take("max_tokens", int)
    new = fields.take("max_completion_tokens", int)
    return old if new is None else new


def _common_fields(
    request: ChatRequest, turns: Sequence[Turn], grant: Grant, object_type: str
) -> dict[str, Any]:
    # OpenAI's field for the backend's configuration has the policy's version.
    version = f"version-{turns[0].completion.policy_version}"
    return {
        "id": grant.response_id("chatcmpl-"),
        "object": object_type,
        "created": int(time.time()),
        "model": request.model,
        **({"system_fingerprint": version} if grant.shows_version else {}),
    }


def _message(turn: Turn) -> dict[str, Any]:
    """Returns the fields of the assistant's message but its role."""
    calls = turn.reply.get("tool_calls")
    message: dict[str, Any] = {"content": turn.reply["content"] or (None if calls else "")}
    if turn.reply.get("reasoning_content"):
        message["reasoning_content"] = turn.reply["reasoning_content"]
    return message | ({"tool_calls": calls} if calls else {})


def _deltas(turn: Turn) -> Iterator[dict[str, Any]]:
    message = _message(turn)
    yield {"role": "assistant", "content": ""}
    if "reasoning_content" in message:
        yield {"reasoning_content": message["reasoning_content"]}
    if message["content"]:
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": index, **call}]}


def _usage(turns: Sequence[Turn]) -> dict[str, int]:
    prompt = turns[0].num_prompt_tokens
    sampled = sum(turn.num_sampled_tokens for turn in turns)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _logprobs(turn: Turn, grant: Grant) -> dict[str, Any]:
    """Returns one entry for each sampled token, the end token included. `bytes` is null if a token
    holds only a part of a character."""
    entries = []
    for token_id, logprob in zip(turn.completion.token_ids, turn.completion.logprobs, strict=True):
        text = grant.recorder.template.decode_one(token_id)
        utf8 = None if "\ufffd" in text else list(text.encode())
        entries.append({"token": text, "logprob": logprob, "bytes": utf8, "top_logprobs": []})
    return {"content": entries, "refusal": None}
