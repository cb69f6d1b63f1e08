"""A model behind an OpenAI-compatible address, for evaluation.

The client retries rate limits, 5xx and broken connections with back-off. Servers may ignore the
seed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import (
    ChatCompletion,
    ContextOverflow,
    FinishReason,
    SamplingParams,
)

KEY_VARIABLES = ("AJET_ENDPOINT_API_KEY", "OPENAI_API_KEY")
NO_KEY = "none"  # local servers need no key, but the client requires one
BUILT_IN_CHOICES = ("auto", "none", "required")
MAX_RETRIES = 3
OPENAI_FORMATS = ("json_object", "json_schema")


def api_key(variables: Sequence[str] = KEY_VARIABLES) -> str:
    """Returns the key from the environment; configs have none, since the run folder records
    them."""
    return next((os.environ[name] for name in variables if os.environ.get(name)), NO_KEY)


class OpenAIEngine:
    """A `ChatEndpoint` over HTTP."""

    def __init__(
        self, base_url: str, *, model: str, api_key: str = NO_KEY, timeout_s: float = 600.0
    ) -> None:
        from openai import AsyncOpenAI

        from ajet.core.net.http_client import openai_http_client

        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"endpoint {base_url!r}: an address begins with http:// or https://",
                code=Code.CHAT_ADDRESS,
            )
        self._model = model
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout_s,
            max_retries=MAX_RETRIES,
            http_client=openai_http_client(),
        )

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        sampling: SamplingParams,
        tool_choice: str | None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> ChatCompletion:
        """Returns one reply; vLLM and SGLang take `chat_template_kwargs`, and vLLM formats that
        OpenAI does not have. Raises `ContextOverflow` if the prompt is too long for the server."""
        from openai import BadRequestError

        request = _request(messages, tools, sampling, tool_choice)
        extra: dict[str, Any] = {}
        if chat_template_kwargs:
            extra["chat_template_kwargs"] = dict(chat_template_kwargs)
        if response_format is not None:
            kind = response_format["type"]
            if kind in OPENAI_FORMATS:
                request["response_format"] = dict(response_format)
            else:
                extra["structured_outputs"] = {kind: response_format[kind]}
        if extra:
            request["extra_body"] = extra
        try:
            completion = await self._client.chat.completions.create(model=self._model, **request)
        except BadRequestError as error:
            if error.code == "context_length_exceeded" or "context length" in error.message:
                raise ContextOverflow(error.message) from error
            raise
        if not getattr(completion, "choices", None):
            raise ConnectionError(f"no choices in the answer of {self._client.base_url}")
        choice, usage = completion.choices[0], completion.usage
        finish: FinishReason = "length" if choice.finish_reason == "length" else "stop"
        return ChatCompletion(
            choice.message.model_dump(exclude_none=True),
            finish,
            usage.prompt_tokens if usage else None,
            usage.completion_tokens if usage else None,
        )

    async def close(self) -> None:
        await self._client.close()


def _request(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    sampling: SamplingParams,
    tool_choice: str | None,
) -> dict[str, Any]:
    """Returns the fields of one request, with `top_k` only if it cuts."""
    request: dict[str, Any] = {
        "messages": messages,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed % 2**31,  # some servers refuse larger seeds
    }
    if sampling.stop:
        request["stop"] = list(sampling.stop)
    if tools:
        request["tools"] = tools
    if tool_choice is not None:
        tool_choice = "required" if tool_choice == "any" else tool_choice  # AgentScope's name
        by_name = {"type": "function", "function": {"name": tool_choice}}
        request["tool_choice"] = tool_choice if tool_choice in BUILT_IN_CHOICES else by_name
    if sampling.top_k > 0:
        request["extra_body"] = {"top_k": sampling.top_k}  # an extension that most servers have
    return request
