"""The trained model as LangChain's: what agents get, and that their next prompt continues it."""

import asyncio
import copy
import pickle
import re
from typing import TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from pydantic import BaseModel

from ajet import ModelTuner, Task, Workflow, WorkflowOutput
from ajet.core.errors import ConfigError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.rollout.request import RolloutRequest
from ajet.core.text.install import install_command
from ajet.core.trajectory.limits import EpisodeClosed, EpisodeLimits
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.samples import timelines
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner, recorder_parts

QWEN2_5, QWEN3 = chat_tokenizer("qwen2_5"), chat_tokenizer("qwen3")
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def recorder_of(*replies, tokenizer=QWEN2_5, **options):
    """A recorder whose endpoint gives these replies, one a call."""
    template = ChatTemplate(tokenizer)
    options = {"limits": EpisodeLimits(), "sampling": SamplingParams()} | options
    endpoint = ScriptedEndpoint(tokenizer, lambda _, name: replies[int(name[-4:])])
    return EpisodeRecorder(**recorder_parts(endpoint, template, **options))


def model_of(recorder, **options):
    return ModelTuner(recorder).as_langchain_model(**options)


def continues(earlier, later):
    """Whether the later turn's prompt begins with all that the earlier one saw and sampled."""
    seen = earlier.completion.prompt_ids + earlier.completion.token_ids
    return later.completion.prompt_ids[: len(seen)] == seen


async def test_a_reply_has_calls_usage_and_the_tokens_of_the_call():
    recorder = recorder_of(CALL)
    reply = await model_of(recorder).bind_tools([add]).ainvoke("2+3?")
    [turn] = recorder.turns
    prompt, sampled = turn.completion.prompt_ids, turn.completion.token_ids
    assert reply.content == "I add."
    [call] = reply.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 2, "b": 3})
    assert reply.usage_metadata == {
        "input_tokens": len(prompt),
        "output_tokens": len(sampled),
        "total_tokens": len(prompt) + len(sampled),
    }
    meta = reply.response_metadata
    assert (meta["finish_reason"], meta["model_name"]) == ("tool_calls", "ajet")
    assert meta["token_ids"] == [*prompt, *sampled]
    assert meta["loss_mask"] == [0] * len(prompt) + [1] * len(sampled)
    assert meta["logprobs"] == [-0.5] * len(sampled)


async def test_the_loss_mask_covers_the_earlier_replies_of_the_timeline():
    recorder = recorder_of("ab", "c")
    model = model_of(recorder)
    first = await model.ainvoke("x")
    second = await model.ainvoke([HumanMessage("x"), first, HumanMessage("y")])
    [timeline] = timelines(recorder.turns)
    assert second.response_metadata["loss_mask"] == [int(m) for m in timeline.loss_mask]
    assert sum(second.response_metadata["loss_mask"]) == 3 + 2  # "ab" and "c", with their ends


async def test_another_agents_tokens_are_not_in_the_loss_mask():
    recorder = recorder_of("ab", trainable_targets=["solver"])
    reply = await model_of(recorder, agent_name="critic").ainvoke("x")
    assert set(reply.response_metadata["loss_mask"]) == {0}


async def test_create_agent_continues_the_recorded_ids_through_several_turns():
    from langchain.agents import create_agent

    recorder = recorder_of(CALL, f"{CALL}\n{CALL}", " It is 5. \n")
    agent = create_agent(model_of(recorder), [add], system_prompt="You add.", name="adder")
    state = await agent.ainvoke({"messages": [("user", "2+3?")]})
    assert state["messages"][-1].content == " It is 5. \n"
    one, two, three = recorder.turns
    assert continues(one, two)
    assert continues(two, three)
    assert [m["content"] for m in three.messages if m["role"] == "tool"] == ["5", "5", "5"]


async def test_a_state_graph_with_thinking_continues_the_recorded_ids():
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    thinking = f"<think>\nTwo and three.\n</think>\n\n{CALL}"
    recorder = recorder_of(thinking, thinking, "It is 5.", tokenizer=QWEN3)
    model = model_of(recorder).bind_tools([add])

    async def call_model(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", call_model)
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition, ["tools", END])
    graph.add_edge("tools", "agent")
    state = await graph.compile().ainvoke({"messages": [("user", "2+3?")]})
    thoughts = [m.additional_kwargs.get("reasoning_content") for m in state["messages"]]
    assert thoughts == [None, "Two and three.", None, "Two and three.", None, None]
    one, two, three = recorder.turns
    assert continues(one, two)
    assert continues(two, three)


@pytest.mark.parametrize("keeps", ["blocks", "pieces", "no thinking"])
async def test_a_reply_is_known_again_however_the_agent_keeps_it(keeps):
    recorder = recorder_of(f"<think>\nhm\n</think>\n\nSo\n\n{CALL}", "5", tokenizer=QWEN3)
    model = model_of(recorder).bind_tools([add])
    reply = await model.ainvoke("2+3?")
    if keeps == "blocks":
        reply = reply.model_copy(update={"content": reply.content_blocks, "additional_kwargs": {}})
    elif keeps == "pieces":
        reply = reply.model_copy(update={"content": ["So", {"type": "text", "text": "\n\nI add."}]})
    else:
        reply = reply.model_copy(update={"additional_kwargs": {}})
    told = ToolMessage([{"type": "text", "text": "5"}], tool_call_id=reply.tool_calls[0]["id"])
    await model.ainvoke([HumanMessage("2+3?"), reply, told])
    assert continues(*recorder.turns)
    sent_back = recorder.turns[1].messages[1].get("reasoning_content")
    assert sent_back == (None if keeps == "no thinking" else "hm")


async def test_every_kind_of_message_reaches_the_template():
    from langchain_core.messages import ChatMessage

    recorder = recorder_of("ok")
    await model_of(recorder).ainvoke(
        [
            SystemMessage([{"type": "text", "text": "Be"}, "brief."]),
            ("user", "hi"),
            {"role": "assistant", "content": ""},
            ChatMessage("again", role="user"),
        ]
    )
    assert [(m["role"], m["content"]) for m in recorder.turns[0].messages] == [
        ("system", "Be\nbrief."),
        ("user", "hi"),
        ("assistant", ""),
        ("user", "again"),
    ]


async def test_a_picture_is_refused_and_not_dropped():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(Exception, match="content that is not text"):
        await model_of(recorder_of("ok")).ainvoke([HumanMessage([picture])])
    with pytest.raises(Exception, match="content that is not text"):
        await model_of(recorder_of("ok")).ainvoke([AIMessage([picture]), ("user", "hi")])


async def test_chunks_add_up_to_the_message():
    plain = await model_of(recorder_of(CALL)).bind_tools([add]).ainvoke("2+3?")
    stream = model_of(recorder_of(CALL)).bind_tools([add]).astream("2+3?")
    whole = AIMessageChunk("")
    async for chunk in stream:
        whole += chunk
    same = ("content", "tool_calls", "usage_metadata", "response_metadata", "invalid_tool_calls")
    for name in same:
        assert getattr(whole, name) == getattr(plain, name), name


@pytest.mark.parametrize(
    ("choice", "ending"),
    [
        ("auto", ""),
        ("none", ""),
        (None, ""),
        (False, ""),
        ("any", '<tool_call>\n{"name": "add", "arguments":'),
        ("required", '<tool_call>\n{"name": "add", "arguments":'),
        (True, '<tool_call>\n{"name": "add", "arguments":'),
        ("add", '<tool_call>\n{"name": "add", "arguments":'),
        ({"type": "any"}, '<tool_call>\n{"name": "add", "arguments":'),
        ({"type": "tool", "name": "add"}, '<tool_call>\n{"name": "add", "arguments":'),
        (
            {"type": "function", "function": {"name": "add"}},
            '<tool_call>\n{"name": "add", "arguments":',
        ),
    ],
)
async def test_tool_choice_in_every_form(choice, ending):
    recorder = recorder_of("2")
    await model_of(recorder).bind_tools([add], tool_choice=choice).ainvoke("2+3?")
    prompt = QWEN2_5.decode(recorder.turns[0].completion.prompt_ids)
    assert prompt.endswith(f"<|im_start|>assistant\n{ending}")


async def test_an_unknown_tool_choice_says_what_there_is():
    with pytest.raises(ValueError, match="'subtract' is none of add"):
        await model_of(recorder_of("2")).bind_tools([add], tool_choice="subtract").ainvoke("?")


async def test_without_parallel_calls_the_first_is_made_and_the_ids_still_continue():
    recorder = recorder_of(f"{CALL}\n{CALL}", "5")
    model = model_of(recorder).bind_tools([add], parallel_tool_calls=False)
    reply = await model.ainvoke("2+3?")
    assert len(reply.tool_calls) == 1
    told = ToolMessage("5", tool_call_id=reply.tool_calls[0]["id"])
    await model.ainvoke([HumanMessage("2+3?"), reply, told])
    assert continues(*recorder.turns)


async def test_a_malformed_call_is_text_and_an_invalid_call():
    recorder = recorder_of('<tool_call>{"name": add}</tool_call>', "5")
    model = model_of(recorder).bind_tools([add])
    reply = await model.ainvoke("2+3?")
    assert reply.tool_calls == []
    assert reply.invalid_tool_calls[0]["args"] == '<tool_call>{"name": add}</tool_call>'
    assert reply.content == '<tool_call>{"name": add}</tool_call>'
    await model.ainvoke([HumanMessage("2+3?"), reply, HumanMessage("again")])
    assert continues(*recorder.turns)


async def test_tools_of_every_form_are_offered():
    class Add(BaseModel):
        """Add two numbers."""

        a: int
        b: int

    def plus(a: int, b: int, **options: object) -> int:
        """Add two numbers."""
        return a + b

    as_dict = {"type": "function", "function": {"parameters": {}, "name": "sum"}}
    word_for_word = add.model_copy(update={"extras": {"openai_schema": as_dict}})
    recorder = recorder_of("2")
    offered = [add, Add, plus, tool(plus), as_dict, word_for_word]
    await model_of(recorder).bind_tools(offered).ainvoke("2+3?")
    functions = [schema["function"] for schema in recorder.turns[0].tools]
    names = [function["name"] for function in functions]
    assert names == ["add", "Add", "plus", "plus", "sum", "sum"]
    assert list(functions[3]["parameters"]["properties"]) == ["a", "b"]
    assert recorder.turns[0].tools[5] == as_dict


class Answer(BaseModel):
    """The answer."""

    value: int


class AnswerDict(TypedDict):
    """The answer."""

    value: int


SCHEMA = {"title": "answer", "type": "object", "properties": {"value": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [(Answer, Answer(value=5)), (AnswerDict, {"value": 5}), (SCHEMA, {"value": 5})],
)
async def test_structured_output_by_a_forced_call(schema, value):
    recorder = recorder_of(' {"value": 5}}\n</tool_call>')
    assert await model_of(recorder).with_structured_output(schema).ainvoke("2+3?") == value
    recorder = recorder_of(' {"value": "many"}}\n</tool_call>')
    model = model_of(recorder).with_structured_output(schema, include_raw=True)
    result = await model.ainvoke("2+3?")
    assert isinstance(result["raw"], AIMessage)
    if schema is Answer:
        assert (result["parsed"], result["parsing_error"] is None) == (None, False)


async def test_create_agent_with_a_response_format():
    from langchain.agents import create_agent

    recorder = recorder_of('\n{"name": "Answer", "arguments": {"value": 5}}\n</tool_call>')
    agent = create_agent(model_of(recorder), [add], response_format=Answer)
    state = await agent.ainvoke({"messages": [("user", "2+3?")]})
    assert state["structured_response"] == Answer(value=5)


def test_unsupported_langchain_options_are_refused_in_one_line():
    model = model_of(recorder_of())
    with pytest.raises(ValueError, match=r"xml.*there are function_calling, json_schema"):
        model.with_structured_output(Answer, method="xml")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(model)


async def test_a_stop_string_ends_the_reply():
    reply = await model_of(recorder_of("one\ntwo")).ainvoke("hi", stop=["\n"])
    assert reply.content == "one"


async def test_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="frequency_penalty"):
        await model_of(recorder_of("ok")).ainvoke("hi", frequency_penalty=1.0)


async def test_sampling_settings_of_a_call_are_taken_or_noted():
    recorder = recorder_of("hello", "hello", "hello")
    model = model_of(recorder)
    await model.ainvoke("hi", max_tokens=2, temperature=0.1)
    run = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 3}
    await model.ainvoke("hi", sampling_params=run)  # as ChatLearn's graphs pass them on
    await model.bind(max_tokens=4).ainvoke("hi")
    assert recorder.turns[0].notes.sampling == {"max_tokens": 2}
    assert recorder.turns[0].notes.sampling_not_taken == {"temperature": 0.1}
    assert recorder.turns[1].notes.sampling == {"max_tokens": 3}
    assert not recorder.turns[1].notes.sampling_not_taken
    assert len(recorder.turns[2].completion.token_ids) == 4


async def test_copies_bindings_and_configurations_record_in_the_same_place():
    from langchain_core.runnables import ConfigurableField

    recorder = recorder_of("a", "b", "c", "d")
    model = model_of(recorder)
    await copy.copy(model).ainvoke("1")
    await copy.deepcopy(model).ainvoke("2")
    await model.bind(max_tokens=4).ainvoke("3")
    limited = model.configurable_fields(max_tokens=ConfigurableField(id="max_tokens"))
    await limited.with_config(configurable={"max_tokens": 1}).ainvoke("4")
    assert [turn.notes.sampling for turn in recorder.turns] == [
        {},
        {},
        {"max_tokens": 4},
        {"max_tokens": 1},
    ]
    assert "recorder" not in repr(model) and "recorder" not in model.model_dump()


async def test_a_cached_reply_would_not_be_sampled_so_there_is_none():
    from langchain_core.caches import InMemoryCache
    from langchain_core.globals import set_llm_cache

    recorder = recorder_of("a", "b")
    set_llm_cache(InMemoryCache())
    try:
        replies = [await model_of(recorder).ainvoke("hi") for _ in range(2)]
    finally:
        set_llm_cache(None)
    assert [reply.content for reply in replies] == ["a", "b"]


async def test_other_threads_may_call_it_synchronously():
    recorder = recorder_of("hello", CALL, "hello", "hello")
    model = model_of(recorder)

    def in_a_thread():
        made_here = ModelTuner(recorder).as_langchain_model()
        plain = made_here.invoke("hi")
        chunks = list(model.bind_tools([add]).stream("2+3?"))
        batch = model.batch(["a", "b"])
        return plain, chunks, batch

    plain, chunks, batch = await asyncio.to_thread(in_a_thread)
    assert plain.content == "hello"
    assert [chunk.tool_calls[0]["name"] for chunk in chunks] == ["add"]
    assert [reply.content for reply in batch] == ["hello", "hello"]
    assert len(recorder.turns) == 4


async def test_a_synchronous_call_on_the_loops_own_thread_says_what_to_do():
    with pytest.raises(RuntimeError, match="would wait for itself: use the asynchronous form"):
        model_of(recorder_of("hello")).invoke("hi")


def test_a_synchronous_call_without_a_loop_says_so():
    with pytest.raises(RuntimeError, match="use the asynchronous form"):
        model_of(recorder_of("hello")).invoke("hi")


async def test_a_thread_that_waits_is_released_when_the_episode_closes():
    started = asyncio.Event()

    class Hangs(ModelEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            started.set()
            await gone.wait()
            raise EpisodeClosed("gone")

        def abort(self, request_id):
            gone.set()

    gone = asyncio.Event()
    recorder = recorder_of()
    recorder._endpoint = Hangs()
    waiting = asyncio.create_task(asyncio.to_thread(model_of(recorder).invoke, "hi"))
    await started.wait()
    recorder.close()
    with pytest.raises(Exception, match="gone"):
        await waiting


async def test_callbacks_see_the_call_and_nothing_is_sent_anywhere(monkeypatch):
    import socket

    from langchain_core.callbacks import AsyncCallbackHandler
    from langchain_core.tracers.context import tracing_v2_enabled  # noqa: F401  the tracer is there

    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2", "LANGCHAIN_TRACING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it phones home"))
    seen = []

    class Handler(AsyncCallbackHandler):
        async def on_chat_model_start(self, serialized, messages, **options):
            seen.append(options["metadata"])

        async def on_llm_end(self, response, **options):
            seen.append(response.generations[0][0].text)

    model = model_of(recorder_of("hello"), agent_name="solver")
    await model.ainvoke("hi", config={"callbacks": [Handler()]})
    assert (seen[0]["ls_provider"], seen[0]["ls_model_name"]) == ("ajet", "ajet")
    assert seen[1] == "hello"


async def test_a_debug_model_answers_for_agents_that_are_not_trained():
    from langchain_core.language_models import FakeListChatModel

    stub = FakeListChatModel(responses=["stub"])
    recorder = recorder_of(trainable_targets=["solver"])
    assert model_of(recorder, agent_name="critic", debug_model=stub) is stub
    assert model_of(recorder, agent_name="solver", debug_model=stub) is not stub


async def test_a_limit_ends_the_agent_as_truncated_with_its_last_words():
    from langchain.agents import create_agent

    class Adder(Workflow):
        async def execute(self, workflow_task, model_tuner):
            agent = create_agent(model_tuner.as_langchain_model(), [add])
            await agent.ainvoke({"messages": [("user", workflow_task.task.main_query)]})
            return WorkflowOutput(reward=1.0)

    endpoint = ScriptedEndpoint(QWEN2_5, lambda *_: CALL)
    runner = episode_runner(Adder, endpoint, QWEN2_5, max_steps=2)
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "2+3?")], step=0, mode="eval", num_repeat=1)
    )
    [trajectory] = group.trajectories
    assert (trajectory.status, len(trajectory.turns)) == ("truncated", 2)
    assert trajectory.output.metadata["final_answer"] == "I add."


def test_without_langchain_it_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "langchain_core", None)
    said = f"needs langchain_core: {install_command('langgraph')}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        model_of(recorder_of())
