"""verl's LangGraph agent loop, in files as verl's users have them."""

import json

import numpy as np
import pytest

from ajet import BaseJudge, Task
from ajet.cli.preflight import check_agents
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.samples import to_samples
from ajet.core.workflow import registry
from ajet.core.workflow.registry import WorkflowFactory
from tests.agents.agent_runs import call, texts
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
EXPRESSION = '''
from langchain_core.tools import tool

from ajet.compat.verl import ReactAgentLoop


@tool(parse_docstring=True)
def calculate(a: int, b: int, operand: str) -> int:
    """Compute the result of an operation on two integers.

    Args:
        a: the first number
        b: the second number
        operand: '+' or '@'
    """
    assert operand in ("+", "@"), f"unknown operand {operand}"
    return a + b if operand == "+" else 3 * a - 2 * b


class ExpressionLoop(ReactAgentLoop):
    @classmethod
    def init_class(cls, config, tokenizer, **kwargs):
        cls.tools = [calculate]
        super().init_class(config, tokenizer)


class NoTools(ReactAgentLoop):
    pass
'''
OWN_GRAPH = """
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from ajet.compat.verl import (
    AgentLoopBase, AgentLoopOutput, ChatModel, convert_to_agent_output
)
from expression import calculate


async def ask(state: MessagesState, config: RunnableConfig):
    given = config["configurable"]
    reply = await given["model"].ainvoke(
        state["messages"], sampling_params=given["sampling_params"]
    )
    return {"messages": [reply]}


class OwnGraph(AgentLoopBase):
    def __init__(self, config, server_manager, tokenizer):
        super().__init__(config, server_manager, tokenizer)

    @classmethod
    def init_class(cls, config, tokenizer):
        workflow = StateGraph(MessagesState)
        workflow.add_node("agent", ask)
        workflow.add_node("tools", ToolNode([calculate]))
        workflow.set_entry_point("agent")
        workflow.add_conditional_edges(
            "agent", lambda state: "tools" if state["messages"][-1].tool_calls else END
        )
        workflow.add_edge("tools", "agent")
        cls.graph = workflow.compile()

    async def run(self, messages, sampling_params) -> AgentLoopOutput:
        rollout = self.config.actor_rollout_ref.rollout
        model_path = self.config.actor_rollout_ref.model.path
        model = ChatModel(
            model="/".join(model_path.split("/")[-2:]),
            client=self.server_manager,
            tokenizer=self.tokenizer,
            max_tokens=rollout.response_length,
            max_parallel_calls=rollout.multi_turn.max_parallel_calls,
            tool_parser=rollout.multi_turn.format,
        )
        model = model.bind_tools([calculate], tool_choice="any")
        given = {"model": model, "sampling_params": sampling_params}
        state = await self.graph.ainvoke({"messages": messages}, config={"configurable": given})
        return convert_to_agent_output(state["messages"], rollout.response_length)
"""


class One(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return 1.0, True


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_WORKFLOWS", {})
    (tmp_path / "expression.py").write_text(EXPRESSION)
    (tmp_path / "own_graph.py").write_text(OWN_GRAPH)
    (tmp_path / "agent.yaml").write_text(
        "- name: expression\n  _target_: expression.py->ExpressionLoop\n"
        "- name: no_tools\n  _target_: expression.py->NoTools\n"
        "- name: own_graph\n  _target_: own_graph.py->OwnGraph\n"
    )

    def make(**multi_turn):
        rollout = {
            "agent": {"agent_loop_config_path": "agent.yaml"},
            "multi_turn": {"max_parallel_calls": 1, **multi_turn},
        }
        ajet = {"model": {"path": "org/model"}, "rollout": rollout}
        (tmp_path / "run.yaml").write_text(json.dumps({"ajet": ajet}))
        return load_config(tmp_path / "run.yaml")

    return make


async def group_of(config, *replies, agent="expression", num=1):
    row = {"agent_name": agent, "prompt": [{"role": "user", "content": "2 @ 3?"}]}
    task = Task("t", "2 @ 3?", metadata=row)
    workflows = WorkflowFactory.from_config(config)
    check_agents(config, workflows, [task])
    workflow = workflows.class_for(task)
    endpoint = ScriptedEndpoint(TOKENIZER, lambda _, name: replies[int(name[-4:])])
    runner = episode_runner(workflow, endpoint, TOKENIZER, One(), debug=True, config=config)
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="train", num_repeat=num))
    return group


CALL = call("calculate", a=2, b=3, operand="@")


@pytest.mark.parametrize("agent", ["expression", "own_graph"])
async def test_a_langgraph_loop_trains_with_its_tools_and_only_what_was_sampled(config, agent):
    group = await group_of(config(), CALL, "It is 0.", agent=agent)
    t = group.trajectories[0]
    assert (t.status, t.reward, texts(t)) == ("ok", 1.0, ["0"])
    assert [each["function"]["name"] for each in t.turns[0].tools] == ["calculate"]
    assert t.output.metadata == {"final_answer": "It is 0.", "num_turns": 4}
    assert t.output.log_metrics["sampled_tokens_left_out"] == 0
    ones = [np.ones(len(turn.completion.token_ids), np.float32) for turn in t.turns]
    [sample] = to_samples([group], {t.episode_id: ones})
    sampled = [token for turn in t.turns for token in turn.completion.token_ids]
    trained = [token for token, m in zip(sample.token_ids, sample.loss_mask, strict=True) if m]
    assert trained == sampled


async def test_of_several_calls_in_a_reply_verls_model_makes_as_many_as_the_config_says(config):
    both = f"{CALL}\n{call('calculate', a=1, b=1, operand='+')}"
    one = (await group_of(config(), both, "0")).trajectories[0]
    two = (await group_of(config(max_parallel_calls=2), both, "0")).trajectories[0]
    assert (texts(one), texts(two)) == (["0"], ["0", "2"])


async def test_a_tool_that_fails_answers_with_its_error_and_turns_are_limited(config):
    wrong = call("calculate", a=2, b=3, operand="?")
    group = await group_of(config(max_assistant_turns=2), wrong, CALL)
    t = group.trajectories[0]
    assert texts(t) == ["Error: AssertionError: unknown operand ?"]
    assert (t.status, len(t.turns)) == ("ok", 2)


async def test_a_loop_without_tools_says_so(config):
    with pytest.raises(ConfigError, match=r"expression\.py:\d+: NoTools has no tools: set cls\.to"):
        await group_of(config(), "It is 0.", agent="no_tools")
