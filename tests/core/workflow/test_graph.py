"""Agent graphs in ChatLearn's form: how they are made, what reaches them, what they return."""

import re
from typing import Annotated, TypedDict

import pytest

from ajet import (
    AgentGraphOutput,
    BaseAgentGraph,
    BaseJudge,
    CustomChatModel,
    Task,
    Workflow,
    WorkflowOutput,
    register,
)
from ajet.cli.preflight import check_agents, check_classes
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.rollout.request import RolloutRequest
from ajet.core.text.install import install_command
from ajet.core.workflow import registry
from ajet.core.workflow.agent_cfg import read_agent_cfg
from ajet.core.workflow.graph import as_workflow, check_graph
from ajet.core.workflow.registry import WorkflowFactory
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
CALL = '<tool_call>\n{"name": "check", "arguments": {"answer": "5"}}\n</tool_call>'
ROW = {
    "agent_name": "math_eval",
    "data_source": "made up",
    "prompt": [{"role": "user", "content": "2+3?"}],
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"index": 7},
}


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_WORKFLOWS", {})


class One(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return 1.0, True


async def run(kind, *replies, row=ROW, agent_name="math_eval", **limits):
    """One episode of the graph class, on a model that gives these replies."""
    endpoint = ScriptedEndpoint(TOKENIZER, lambda _, name: replies[int(name[-4:])])
    workflow = as_workflow(kind, agent_name)
    runner = episode_runner(workflow, endpoint, TOKENIZER, One(), debug=True, **limits)
    task = Task("t", "2+3?", metadata=dict(row))
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0]


class MathEval(BaseAgentGraph):
    """Written as ChatLearn's users write theirs: constructor, model in the config, tool node."""

    def __init__(self, agent_name, cfg, llm, tokenizer, **kwargs):
        super().__init__(agent_name, cfg, llm, tokenizer, **kwargs)
        self.build_graph()

    def build_graph(self):
        from langchain_core.messages import BaseMessage, ToolMessage
        from langchain_core.runnables import RunnableConfig
        from langchain_core.tools import tool
        from langgraph.graph import END, StateGraph
        from langgraph.graph.message import add_messages

        class AgentState(TypedDict):
            messages: Annotated[list[BaseMessage], add_messages]

        self.chatmodel = CustomChatModel(
            model=self.agent_name, llm=self.llm, tokenizer=self.tokenizer
        )

        async def call_model(state: AgentState, config: RunnableConfig):
            chatmodel = config["configurable"]["chat_model"]
            sampling_params = config["configurable"]["sampling_params"]
            reply = await chatmodel.ainvoke(state["messages"], sampling_params=sampling_params)
            return {"messages": [reply]}

        @tool
        def check(answer: str, **kwargs):
            """Check the answer."""
            return "right" if answer == kwargs["ground_truth"] else "wrong"

        async def tool_node(state: AgentState, config: RunnableConfig):
            truth = config["configurable"]["ground_truth"]
            return {
                "messages": [
                    ToolMessage(
                        check.func(**call["args"], ground_truth=truth), tool_call_id=call["id"]
                    )
                    for call in state["messages"][-1].tool_calls
                ]
            }

        def should_continue(state: AgentState):
            replies = [message for message in state["messages"] if message.type == "ai"]
            total = len(replies[-1].response_metadata["loss_mask"])
            turns, tokens = self.cfg.max_ai_message_turn, self.cfg.max_total_token_length
            over = not replies[-1].tool_calls or len(replies) >= turns or total >= tokens
            return "end" if over else "continue"

        workflow = StateGraph(AgentState)
        self.chatmodel = self.chatmodel.bind_tools([check])
        workflow.add_node("agent", call_model)
        workflow.add_node("tools", tool_node)
        workflow.set_entry_point("agent")
        workflow.add_conditional_edges("agent", should_continue, {"continue": "tools", "end": END})
        workflow.add_edge("tools", "agent")
        self.graph = workflow.compile()

    async def run(self, messages, sampling_params, **kwargs):
        import asyncio

        given = {
            "chat_model": self.chatmodel,
            "sampling_params": sampling_params,
            "ground_truth": kwargs["ground_truth"],
        }
        output = await self.graph.ainvoke({"messages": messages}, {"configurable": given})
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: self.convert_agent_graph_output(output))


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "math_eval.yaml"
    file.write_text("max_total_token_length: 2000\nmax_ai_message_turn: 3\nown: {key: 4}\n")
    return ROW | {"agent_cfg_path": str(file)}


async def test_a_graph_as_chatlearns_users_write_it_runs_and_is_recorded(settings):
    t = await run(MathEval, CALL, "It is 5.", row=settings)
    assert (t.status, t.reward) == ("ok", 1.0)
    assert t.output.metadata == {"final_answer": "It is 5."}
    first, second = t.turns
    assert second.messages[-1]["content"] == "right"
    assert list(first.tools[0]["function"]["parameters"]["properties"]) == ["answer"]
    seen = first.completion.prompt_ids + first.completion.token_ids
    assert second.completion.prompt_ids[: len(seen)] == seen
    assert {turn.agent_name for turn in t.turns} == {"math_eval"}
    assert not first.notes.sampling_not_taken  # the run's own settings, passed on, ask nothing


class WithProcessor(MathEval):
    """As ChatLearn's present users write theirs: a processor for all four arguments' sake."""

    def __init__(self, agent_name, cfg, llm, tokenizer, processor, **kwargs):
        BaseAgentGraph.__init__(self, agent_name, cfg, llm, tokenizer, processor, **kwargs)
        assert (self.processor, self.model_type) == (None, "llm")
        self.build_graph()
        self.chatmodel = CustomChatModel(
            model=self.agent_name,
            llm=self.llm,
            tokenizer=self.tokenizer,
            processor=self.processor,
            model_type=self.model_type,
        )


async def test_a_graph_whose_constructor_takes_a_processor_runs(settings):
    check_graph(WithProcessor, "here")
    t = await run(WithProcessor, "It is 5.", row=settings)
    assert t.output.metadata == {"final_answer": "It is 5."}


async def test_of_several_calls_in_a_reply_chatlearns_model_makes_one(settings):
    t = await run(MathEval, f"{CALL}\n{CALL}", "It is 5.", row=settings)
    assert [message["role"] for message in t.turns[1].messages] == ["user", "assistant", "tool"]


async def test_the_output_is_that_of_the_recorded_timeline(settings):
    outputs = []

    class Kept(MathEval):
        async def run(self, messages, sampling_params, **kwargs):
            outputs.append(await super().run(messages, sampling_params, **kwargs))
            return outputs[0]

    t = await run(Kept, CALL, "It is 5.", row=settings)
    [output] = outputs
    first, last = (turn.completion for turn in t.turns)
    assert output.prompt_ids == list(first.prompt_ids)
    assert output.all_token_ids == [*last.prompt_ids, *last.token_ids]
    assert sum(output.loss_mask) == len(first.token_ids) + len(last.token_ids)
    assert output.str_output.startswith(CALL)
    assert output.num_turns == 4  # user, assistant, tool, assistant


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("max_ai_message_turn: 1", "1 calls"), ("max_total_token_length: 330", "330")],
)
async def test_limits_of_the_cfg_hold_for_a_graph_that_ignores_them(tmp_path, limit, reason):
    (tmp_path / "limits.yaml").write_text(limit)

    class Endless(BaseAgentGraph):
        async def run(self, messages, **kwargs):
            while True:
                reply = await self.llm.ainvoke(messages)
                messages = [*messages, reply, ("user", "go on " * 20)]

    row = ROW | {"agent_cfg_path": str(tmp_path / "limits.yaml")}
    t = await run(Endless, *["word " * 20] * 9, row=row)
    assert t.status == "truncated"
    assert reason in t.error
    assert all(
        len(turn.completion.prompt_ids + turn.completion.token_ids) <= 330 for turn in t.turns
    )


async def test_limits_of_the_cfg_never_raise_the_runs(tmp_path):
    (tmp_path / "limits.yaml").write_text("max_ai_message_turn: 100")

    class Twice(BaseAgentGraph):
        async def run(self, messages, **kwargs):
            await self.llm.ainvoke(messages)
            await self.llm.ainvoke(messages)

    row = ROW | {"agent_cfg_path": str(tmp_path / "limits.yaml")}
    t = await run(Twice, "one", "two", row=row, max_steps=1)
    assert (t.status, len(t.turns)) == ("truncated", 1)


async def test_a_plain_class_without_a_constructor_gets_the_settings(settings):
    seen = {}

    class Plain:
        def build_graph(self):
            assert self.llm is self.chatmodel
            seen["built"] = self.cfg.own.key

        async def run(self, messages, sampling_params, ground_truth, extra_info, agent_name):
            seen.update(locals())
            return (await self.llm.ainvoke(messages)).content

    t = await run(Plain, "5", row=settings)
    assert t.output.metadata["final_answer"] == "5"
    assert seen["built"] == 4
    assert seen["messages"] == [{"role": "user", "content": "2+3?"}]
    assert (seen["ground_truth"], seen["extra_info"]) == ("5", {"index": 7})
    assert sorted(seen["sampling_params"]) == ["max_new_tokens", "temperature", "top_k", "top_p"]


async def test_a_class_on_the_base_without_a_constructor_gets_its_graph_built():
    class Echo(BaseAgentGraph):
        def build_graph(self):
            from langgraph.graph import END, START, MessagesState, StateGraph

            async def agent(state: MessagesState):
                return {"messages": [await self.chatmodel.ainvoke(state["messages"])]}

            graph = StateGraph(MessagesState)
            graph.add_node("agent", agent)
            graph.add_edge(START, "agent")
            graph.add_edge("agent", END)
            return graph

        async def run(self, messages, **kwargs):
            return await self.graph.ainvoke({"messages": messages})

    t = await run(Echo, "five")
    assert t.output.metadata == {"final_answer": "five"}


def returning(result):
    class Returns(BaseAgentGraph):
        async def run(self, messages, **kwargs):
            await self.llm.ainvoke(messages)
            return result

    return Returns


@pytest.mark.parametrize(
    ("result", "reward", "metadata"),
    [
        ("five", 1.0, {"final_answer": "five"}),
        ({"messages": []}, 1.0, {"final_answer": ""}),
        (AgentGraphOutput("five", reward_score=0.5), 0.5, {"final_answer": "five"}),
        (AgentGraphOutput("five", extra_fields={"n": 2}), 1.0, {"final_answer": "five", "n": 2}),
        (WorkflowOutput(reward=0.25, metadata={"a": 1}), 0.25, {"a": 1}),
    ],
)
async def test_run_returns_a_workflow_output_or_a_plain_value(result, reward, metadata):
    t = await run(returning(result), "x")
    assert (t.reward, t.output.metadata) == (reward, metadata)


async def test_anything_else_that_run_returns_is_an_error_in_one_line():
    with pytest.raises(TypeError, match=r"run\(\) returned a int: return an AgentGraphOutput"):
        await run(returning(5), "x")


async def test_each_episode_has_a_graph_of_its_own():
    made = []

    class Counts(BaseAgentGraph):
        async def run(self, messages, **kwargs):
            made.append(self)
            return "x"

    workflow = as_workflow(Counts, "counts")
    runner = episode_runner(workflow, ScriptedEndpoint(TOKENIZER, None), TOKENIZER, One())
    await runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode="eval", num_repeat=3))
    assert len({id(graph) for graph in made}) == 3


# --- registering and checking


def test_register_takes_a_graph_and_gives_it_back_unchanged():
    kind = register("math_eval")(MathEval)
    assert kind is MathEval
    workflow = WorkflowFactory(None).class_for(Task("t", "q", metadata={"agent_name": "math_eval"}))
    assert issubclass(workflow, Workflow)
    assert (workflow.__name__, workflow.__module__) == ("MathEval", __name__)
    register("math_eval")(MathEval)  # the same class again, as when a file is loaded twice
    with pytest.raises(ConfigError, match="registered twice"):
        register("math_eval")(returning("x"))


def test_trainable_targets_of_a_graph_hold():
    class Two(MathEval):
        trainable_targets = ["solver"]

    assert as_workflow(Two, "two").trainable_targets == ["solver"]


def test_a_class_that_is_neither_is_refused():
    with pytest.raises(ConfigError, match=r"@register\('x'\): .*: Task is not a Workflow"):
        register("x")(Task)


class NoRun(BaseAgentGraph):
    pass


class NotAsync(BaseAgentGraph):
    def run(self, messages, **kwargs):
        return "x"


class NeedsMore(BaseAgentGraph):
    def __init__(self, agent_name, cfg, llm, tokenizer, secret):
        super().__init__(agent_name, cfg, llm, tokenizer)

    async def run(self, messages, **kwargs):
        return "x"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (NoRun, "NoRun does not define async run(self, messages, **kwargs)"),
        (NotAsync, "NotAsync.run is not async: write async def run"),
        (
            NeedsMore,
            "NeedsMore is made with agent_name, cfg, llm, tokenizer, processor, model_type: give "
            "secret",
        ),
    ],
)
def test_a_mistake_in_a_graph_class_is_one_line(kind, says):
    with pytest.raises(ConfigError) as error:
        check_graph(kind, "here")
    assert says in str(error.value)
    assert str(error.value).startswith("here: ")
    assert "\n" not in str(error.value)


GRAPH_FILE = """
from ajet import BaseAgentGraph, register

@register("from_file")
class FromFile(BaseAgentGraph):
    async def run(self, messages, **kwargs):
        return "x"

class Broken(BaseAgentGraph):
    pass
"""


@pytest.fixture
def config_of(tmp_path):
    (tmp_path / "graphs.py").write_text(GRAPH_FILE)

    def config(name):
        (tmp_path / "run.yaml").write_text("ajet: {model: {path: x}}")
        return load_config(tmp_path / "run.yaml", [f"ajet.rollout.user_workflow=graphs.py->{name}"])

    return config


def test_the_config_may_name_a_graph_class(config_of):
    from ajet.assembly import user_files
    from ajet.core.workflow.registry import WorkflowFactory

    config = config_of("FromFile")
    check_classes(config)
    workflows = WorkflowFactory.from_config(config)
    workflow = workflows.default
    assert (workflow.__name__, workflow.agent_name) == ("FromFile", "from_file")
    assert [file.name for file in user_files(config, workflows)] == ["graphs.py"]


def test_preflight_says_what_is_wrong_with_a_graph(config_of, tmp_path):
    with pytest.raises(ConfigError, match=r"graphs\.py:\d+: Broken does not define async run"):
        check_classes(config_of("Broken"))
    task = Task("t", "q", metadata={"agent_cfg_path": "absent.yaml"})
    with pytest.raises(ConfigError, match=r"agent_cfg_path 'absent\.yaml' of a task: no such file"):
        made = config_of("FromFile")
        check_agents(made, WorkflowFactory.from_config(made), [task])


def test_without_langgraph_preflight_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "langgraph", None)
    said = f"MathEval needs langgraph: {install_command('langgraph')}"
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_graph(MathEval, "here")


# --- the settings file


def test_settings_are_found_beside_the_yaml_and_read_by_attribute(tmp_path):
    (tmp_path / "a.yaml").write_text("tools: {names: [x, y], n: 2}\nalso: ${tools.n}\n")
    cfg = read_agent_cfg("a.yaml", [tmp_path / "elsewhere", tmp_path])
    assert (cfg.tools.names[1], cfg["tools"].n, cfg.also) == ("y", 2, 2)
    with pytest.raises(AttributeError, match="misspelt"):
        _ = cfg.misspelt
    with pytest.raises(Exception, match="read-only"):
        cfg.tools.n = 3
    assert read_agent_cfg(None, [tmp_path]).get("max_ai_message_turn") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "holds no keys with values"),
        ("a: [1", "not valid YAML"),
        ("max_ai_message_turn: many", "max_ai_message_turn is 'many', not a positive number"),
        ("max_total_token_length: 0", "max_total_token_length is 0, not a positive number"),
    ],
)
def test_a_settings_file_that_is_wrong_is_one_line(tmp_path, text, says):
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        read_agent_cfg("wrong.yaml", [tmp_path])
    assert "\n" not in str(error.value)
