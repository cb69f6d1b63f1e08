"""Every request field that the installed clients of OpenAI and Anthropic define is served, ignored
on purpose, or refused with what to do: a client's new field fails here until a dialect lists it."""

from typing import get_type_hints

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from ajet.core.workflow.gateway.dialects import (
    ChatCompletions,
    Messages,
    Responses,
    chat_completions,
    messages,
    responses,
)
from ajet.core.workflow.gateway.request import RequestError
from tests.core.workflow.gateway.episode import HI

HELLO = {"messages": HI}


def refusal(dialect, body, **fields):
    """The error of a request with these fields, or None if it is taken."""
    try:
        dialect.parse({**body, **fields}, None)
    except RequestError as error:
        return error
    return None


def unknown_fields(dialect, body, parameters):
    # A value of no JSON type: a field that is read or refused is an error that names it.
    errors = {
        name: refusal(dialect, body, **{name: object()}) for name in get_type_hints(parameters)
    }
    return {name for name, error in errors.items() if error and error.code == "unknown_parameter"}


def test_every_field_of_openais_chat_completions_is_known():
    assert unknown_fields(ChatCompletions(), HELLO, CompletionCreateParamsNonStreaming) == set()


def test_every_field_of_openais_responses_is_known():
    body = {"input": "hi"}
    assert unknown_fields(Responses(), body, ResponseCreateParamsNonStreaming) == set()


def test_every_field_of_anthropics_messages_is_known():
    params = pytest.importorskip("anthropic.types.message_create_params")
    parameters = params.MessageCreateParamsNonStreaming
    assert unknown_fields(Messages(), HELLO, parameters) == set()


@pytest.mark.parametrize(
    ("dialect", "body", "fields", "line"),
    [
        (
            ChatCompletions(),
            HELLO,
            {"web_search_options": {}},
            "web_search_options is not served: ajet does not search the web; leave it out",
        ),
        (
            ChatCompletions(),
            HELLO,
            {"functions": [{"name": "now"}]},
            "functions is not served: it is the former form of tools; send tools and tool_choice",
        ),
        (
            ChatCompletions(),
            HELLO,
            {"reasoning_effort": "low"},
            "reasoning_effort is not served: the chat template decides how the model thinks; "
            "if it reads such a variable, send chat_template_kwargs",
        ),
        (
            Responses(),
            {"input": "hi"},
            {"text": {"verbosity": "low"}},
            "text.verbosity is not served: ask for short or long replies in the prompt",
        ),
        (
            Responses(),
            {"input": "hi"},
            {"conversation": "conv_1"},
            "conversation is not served: ajet stores none; send input, or previous_response_id",
        ),
        (Responses(), {"input": "hi"}, {"text": {"colour": "red"}}, "unknown field text.colour"),
        (ChatCompletions(), HELLO, {"colour": "red"}, "unknown field colour"),
    ],
)
def test_a_refused_field_is_one_line_with_what_to_do(dialect, body, fields, line):
    assert str(refusal(dialect, body, **fields)) == line


@pytest.mark.parametrize(
    ("dialect", "body", "unserved"),
    [
        (ChatCompletions(), HELLO, chat_completions.UNSERVED),
        (Responses(), {"input": "hi"}, responses.UNSERVED),
        (Messages(), HELLO, messages.UNSERVED),
    ],
)
def test_a_value_that_changes_nothing_is_taken(dialect, body, unserved):
    for name, entry in unserved.items():
        outer, _, inner = name.partition(".")
        for value in entry.harmless:
            field = {outer: {inner: value} if inner else value}
            assert refusal(dialect, body, **field) is None, name
