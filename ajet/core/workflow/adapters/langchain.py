"""The trained model as a LangChain chat model.

    messages (LangChain's) -> OpenAI's form -> recorder.chat -> AIMessage

    model = model_tuner.as_langchain_model()
    agent = create_agent(model, tools=[…])                      # or model.bind_tools([…])
    reply = await model.ainvoke("2+2?", max_tokens=64)

`response_metadata` has `token_ids` (prompt and reply) and `loss_mask` of the same length: 1 where
the token was sampled and is trained, in earlier replies of the same timeline too. `invoke`,
`stream` (one chunk) and `batch` work in every thread except the event loop's. Importing this module
imports LangChain, so tuner.py does it late.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    ToolCall,
    convert_to_openai_messages,
)
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel, Field

from ajet.core.trajectory.base_recorder import SamplingOverrides
from ajet.core.workflow.bridge import run_blocking, run_on_loop
from ajet.core.workflow.sampling_params import own_sampling

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.language_models.base import LangSmithParams
    from langchain_core.runnables import Runnable

    from ajet.core.trajectory.turn import Turn

T = TypeVar("T")
Tool = dict[str, Any] | type | Callable[..., Any] | BaseTool

NOT_MADE = "calls_not_made"
NON_TEXT_BLOCKS = ("reasoning", "thinking", "tool_call", "tool_use", "invalid_tool_call")
"""Content blocks of a reply that OpenAI's form has in other fields than `content`."""


class LangChainModel(BaseChatModel):
    """The LangChain chat model of one agent. Copies and bindings share the episode's recorder."""

    recorder: Any = Field(exclude=True, repr=False)
    conversations: Any = Field(default=None, exclude=True, repr=False)  # compacted, if not None
    agent_name: str = "default"
    target_tag: str = "default"
    model_name: str = "ajet"
    temperature: float | None = None
    max_tokens: int | None = None
    max_parallel_calls: int | None = None
    heeds_tool_choice: bool = True
    strict_output: bool = True
    cache: bool | None = Field(default=False, exclude=True)  # pyright: ignore

    @property
    def _llm_type(self) -> str:
        return "ajet"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name, "agent_name": self.agent_name}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return {**super()._get_ls_params(stop, **kwargs), "ls_provider": "ajet"}

    def __reduce__(self) -> NoReturn:
        raise TypeError("the model of a running episode cannot be pickled: keep it out of state")

    # --- what LangChain calls

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = await self._reply(messages, stop, **kwargs)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = run_blocking(self.recorder, self._reply(messages, stop, **kwargs))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield _as_chunk(await self._reply(messages, stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield _as_chunk(run_blocking(self.recorder, self._reply(messages, stop, **kwargs)))

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: str | dict[str, Any] | bool | None = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Returns the model with these tools. `tool_choice` is auto, none, any (or required), or a
        tool, by name or as OpenAI's dict. With `parallel_tool_calls=False` only the first of
        several calls in one reply is made. With `strict` a call has the tool's schema."""
        if strict is None and "ls_structured_output_format" in kwargs:
            strict = self.strict_output
        # verl's `ChatModel` ignores `tool_choice`: the model is free to answer.
        options = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        if not self.heeds_tool_choice:
            del options["tool_choice"]
        kwargs |= {name: value for name, value in options.items() if value is not None}
        schemas = [openai_schema(tool) for tool in tools]
        if strict:
            schemas = [{**s, "function": {**s["function"], "strict": True}} for s in schemas]
        return self.bind(tools=schemas, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: str = "function_calling",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Returns a runnable whose output has the schema's fields: those of a forced call, or with
        "json_schema" of the reply itself. "json_mode" is any JSON object. A forced call has the
        schema, unless `strict` is false."""
        if method == "function_calling":
            model = self.model_copy(update={"strict_output": strict is not False})
            with_output = super(LangChainModel, model).with_structured_output
            return with_output(schema, include_raw=include_raw, **kwargs)
        if method not in ("json_schema", "json_mode"):
            raise ValueError(
                f"with_structured_output(method={method!r}): there are function_calling, "
                "json_schema and json_mode"
            )
        form: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            json_schema = convert_to_json_schema(schema)
            form = {
                "type": "json_schema",
                "json_schema": {"schema": json_schema, "strict": strict is not False},
            }
        parser = JsonOutputParser()
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            parser = PydanticOutputParser(pydantic_object=schema)
        model = self.bind(response_format=form, **kwargs)
        if not include_raw:
            return model | parser
        parsed = RunnablePassthrough.assign(
            parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
        )
        failed = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap(raw=model) | parsed.with_fallbacks(
            [failed], exception_key="parsing_error"
        )

    # --- one call

    async def _reply(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: str | dict[str, Any] | bool | None = None,
        parallel_tool_calls: bool | None = None,
        **sampling: Any,
    ) -> AIMessage:
        sampling.pop("stream", None)  # LangChain's own stream() sets it
        sent, offered = openai_messages(messages), [openai_schema(tool) for tool in tools or ()]
        overrides = self._overrides(stop, **sampling)
        agent = {"agent_name": self.agent_name, "target_tag": self.target_tag}
        if self.conversations is not None:
            longest = overrides.max_tokens
            sent = await self.conversations.shown(sent, offered, **agent, max_tokens=longest)
        call = self.recorder.chat(
            sent,
            offered or None,
            **agent,
            tool_choice=_tool_choice(tool_choice),
            overrides=overrides,
        )
        turn = await run_on_loop(self.recorder.loop, call)
        return self._message(turn, 1 if parallel_tool_calls is False else self.max_parallel_calls)

    def _overrides(
        self, stop: list[str] | None, sampling_params: dict[str, Any] | None = None, **settings: Any
    ) -> SamplingOverrides:
        """Returns the call's changes to the run's sampling. ChatLearn's graphs and verl's loops
        pass all settings in `sampling_params`, of which most are the run's."""
        passed = own_sampling(sampling_params, self.recorder.sampling)
        stop = stop or passed.pop("stop", None)
        if "max_completion_tokens" in settings:
            settings["max_tokens"] = settings.pop("max_completion_tokens")
        if unknown := settings.keys() - SamplingOverrides.__dataclass_fields__.keys():
            names = ", ".join(sorted(unknown))
            raise TypeError(f"the model of as_langchain_model() takes no {names}")
        defaults = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return SamplingOverrides(**defaults | passed | settings, stop=tuple(stop) if stop else None)

    def _message(self, turn: Turn, max_calls: int | None) -> AIMessage:
        reply, completion = turn.reply, turn.completion
        # Calls beyond the first stay with the message, because the next prompt must have them.
        calls = list(reply.get("tool_calls", ()))
        first_calls = calls[:max_calls]
        extra = {
            "reasoning_content": reply.get("reasoning_content"),
            NOT_MADE: calls[len(first_calls) :],
        }
        return AIMessage(
            content=reply["content"],
            tool_calls=[_tool_call(call) for call in first_calls],
            invalid_tool_calls=[_invalid(text) for text in turn.notes.malformed_calls],
            additional_kwargs={name: value for name, value in extra.items() if value},
            usage_metadata={
                "input_tokens": turn.num_prompt_tokens,
                "output_tokens": turn.num_sampled_tokens,
                "total_tokens": turn.num_prompt_tokens + turn.num_sampled_tokens,
            },
            response_metadata={
                "finish_reason": "tool_calls" if first_calls else completion.finish_reason,
                "model_name": self.model_name,
                "token_ids": [*completion.prompt_ids, *completion.token_ids],
                "loss_mask": _loss_mask(turn, self.recorder.turns),
                "logprobs": list(completion.logprobs),
            },
        )


def openai_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Returns the conversation in OpenAI's form. A reply is restored as recorded, with its thinking
    and the calls that were not made; otherwise its tokens would not be continued."""
    converted: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, AIMessage):
            converted.append(_openai_reply(message))
        else:
            converted += convert_to_openai_messages([message])  # may become several results
    return converted


def _openai_reply(message: AIMessage) -> dict[str, Any]:
    [form] = convert_to_openai_messages([message])
    thinking = message.additional_kwargs.get("reasoning_content")
    if isinstance(message.content, list):
        blocks = [_block(item) for item in message.content]
        thinking = thinking or "".join(_thinking_text(block) for block in blocks)
        rest = [block for block in blocks if block.get("type") not in NON_TEXT_BLOCKS]
        form["content"] = rest  # text alone is joined without a line break between its blocks
    if thinking:
        form["reasoning_content"] = thinking
    if missing_calls := message.additional_kwargs.get(NOT_MADE):
        form["tool_calls"] = [*form.get("tool_calls", ()), *missing_calls]
    return form


def _block(item: str | dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": item} if isinstance(item, str) else item


def _thinking_text(block: dict[str, Any]) -> str:
    block_type = block.get("type")
    return str(block.get(block_type) or "") if block_type in ("reasoning", "thinking") else ""


def openai_schema(tool: Tool) -> dict[str, Any]:
    """Returns the tool's schema in OpenAI's form: its `extras["openai_schema"]` unchanged, or the
    one that LangChain derives, without a function's `**kwargs`, which the model cannot fill."""
    ready_schema = (getattr(tool, "extras", None) or {}).get("openai_schema")
    if ready_schema is not None:
        return ready_schema
    if isinstance(tool, dict) and tool.get("type") == "function" and "function" in tool:
        return tool
    schema = convert_to_openai_tool(tool)
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    if function is not None:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                schema["function"]["parameters"]["properties"].pop(parameter.name, None)
    return schema


def _tool_choice(tool_choice: str | dict[str, Any] | bool | None) -> str | None:
    """Returns the choice as the recorder takes it: "required", a tool's name, …"""
    if isinstance(tool_choice, bool):
        return "required" if tool_choice else None
    if isinstance(tool_choice, dict):
        function = tool_choice.get("function") or tool_choice
        return _tool_choice(str(function.get("name") or function.get("type")))
    return "required" if tool_choice == "any" else tool_choice


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(name=function["name"], args=json.loads(function["arguments"]), id=call["id"])


def _invalid(text: str) -> InvalidToolCall:
    return InvalidToolCall(
        type="invalid_tool_call", name=None, args=text, id=None, error="not a well-formed call"
    )


def _loss_mask(turn: Turn, turns: Sequence[Turn]) -> list[int]:
    """Returns the loss mask over the call's prompt and reply: 1 for tokens that are trained."""
    prompt = turn.completion.prompt_ids
    mask = [0] * len(prompt)
    # Replies of earlier calls that this prompt continues: same prefix and same sampled ids.
    for earlier in turns if turn.notes.continues else ():
        seen, sampled = earlier.completion.prompt_ids, earlier.completion.token_ids
        start, end = len(seen), len(seen) + len(sampled)
        if end <= len(prompt) and prompt[start:end] == sampled and prompt[:start] == seen:
            mask[start:end] = [int(earlier.trainable)] * len(sampled)
    return mask + [int(turn.trainable)] * len(turn.completion.token_ids)


def _as_chunk(message: AIMessage) -> ChatGenerationChunk:
    chunk = AIMessageChunk(
        content=message.content,
        tool_calls=message.tool_calls,
        invalid_tool_calls=message.invalid_tool_calls,
        additional_kwargs=message.additional_kwargs,
        usage_metadata=message.usage_metadata,
        response_metadata=message.response_metadata,
        chunk_position="last",
    )
    return ChatGenerationChunk(message=chunk)
