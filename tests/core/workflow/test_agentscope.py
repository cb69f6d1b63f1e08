"""AgentScope agents on the trained model: what they get, and what is recorded of it."""

import copy

import pytest
from pydantic import BaseModel

from ajet import AjetTuner, ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASK = Task("t0", "What is 2+3?", metadata={"answer": "#### 5"})
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def scripted(*replies):
    return ScriptedEndpoint(TOKENIZER, lambda _prompt, name: replies[int(name.rpartition("/")[2])])


async def run(workflow, endpoint, judge=None, **limits):
    runner = episode_runner(workflow, endpoint, TOKENIZER, judge, debug=True, **limits)
    [group] = await runner.rollout(RolloutRequest([TASK], step=0, mode="train", num_repeat=1))
    return group.trajectories[0]


def react_agent(model, name="solver", **options):
    from agentscope.agent import ReActAgent
    from agentscope.formatter import DashScopeChatFormatter
    from agentscope.memory import InMemoryMemory
    from agentscope.message import TextBlock
    from agentscope.tool import Toolkit, ToolResponse

    def add(a: int, b: int) -> ToolResponse:
        """Add two numbers.

        Args:
            a (int): one
            b (int): the other
        """
        return ToolResponse(content=[TextBlock(type="text", text=str(a + b))])

    toolkit = Toolkit()
    toolkit.register_tool_function(add)
    agent = ReActAgent(
        name=name,
        sys_prompt="You add.",
        model=model,
        formatter=DashScopeChatFormatter(),
        toolkit=toolkit,
        memory=InMemoryMemory(),
        **options,
    )
    agent.set_console_output_enabled(False)
    return agent


async def ask(agent, text, **options):
    from agentscope.message import Msg

    return await agent.reply(Msg("user", text, role="user"), **options)


class React(Workflow):
    def model(self, tuner):
        return tuner

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner):
        agent = react_agent(self.model(model_tuner), max_iters=2)
        result = await ask(agent, workflow_task.task.main_query)
        return WorkflowOutput(reward=None, metadata={"final_answer": str(result.content)})


async def test_a_react_agent_calls_its_tool_and_only_sampled_tokens_are_trained():
    from ajet.core.trajectory.samples import timelines
    from ajet.judges.math import MathJudge

    endpoint = scripted(CALL, r"It is \boxed{5}.")
    t = await run(React, endpoint, MathJudge())
    assert (t.status, t.reward, t.is_success) == (EpisodeStatus.OK, 1.0, True)
    first, second = t.turns
    assert first.reply["tool_calls"][0]["function"]["name"] == "add"
    assert second.messages[-1]["role"] == "tool"
    assert second.messages[-1]["content"] == "5"
    sampled = first.completion.prompt_ids + first.completion.token_ids
    assert second.completion.prompt_ids[: len(sampled)] == sampled

    [timeline] = timelines(t.turns)
    trained = [int(i) for i, m in zip(timeline.token_ids, timeline.loss_mask, strict=True) if m]
    assert trained == [*first.completion.token_ids, *second.completion.token_ids]
    assert TOKENIZER.decode(trained) == f"{CALL}<|im_end|>It is \\boxed{{5}}.<|im_end|>"
    assert sum(timeline.loss_mask) == t.num_sampled


@pytest.mark.parametrize("streams", [False, True])
async def test_the_adapter_gives_the_same_episode_plain_and_streamed(streams):
    class Adapted(React):
        def model(self, tuner):
            return tuner.as_agentscope_model(stream=streams)

    plain = await run(React, scripted(CALL, "It is 5."), _one())
    adapted = await run(Adapted, scripted(CALL, "It is 5."), _one())
    assert [t.completion for t in adapted.turns] == [t.completion for t in plain.turns]
    assert adapted.output == plain.output


def _one():
    from ajet import BaseJudge

    class One(BaseJudge):
        def compute_reward(self, workflow_task, workflow_output):
            return 1.0, True

    return One()


async def test_a_malformed_call_reaches_the_agent_as_text():
    t = await run(React, scripted('<tool_call>{"name": add}</tool_call>'), _one())
    assert len(t.turns) == 1
    assert "tool_calls" not in t.turns[0].reply
    assert "add" in t.output.metadata["final_answer"]


async def test_responses_carry_blocks_and_real_token_counts():
    seen = []

    class Direct(Workflow):
        async def execute(self, workflow_task, model_tuner):
            tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
            messages = [{"role": "user", "content": "2+3"}]
            seen.append(await model_tuner(messages, tools=tools, tool_choice="required"))
            return WorkflowOutput(reward=1.0)

    t = await run(Direct, scripted(CALL))
    [response] = seen
    assert [block["type"] for block in response.content] == ["text", "tool_use"]
    assert response.content[1]["input"] == {"a": 2, "b": 3}
    completion = t.turns[0].completion
    assert response.usage.input_tokens == len(completion.prompt_ids)
    assert response.usage.output_tokens == len(completion.token_ids)


async def test_an_unknown_tool_choice_or_sampling_setting_is_an_error():
    class Wrong(Workflow):
        settings = {"tool_choice": "subtract"}

        async def execute(self, workflow_task, model_tuner):
            await model_tuner([{"role": "user", "content": "2+3"}], **self.settings)

    with pytest.raises(ValueError, match="subtract"):
        await run(Wrong, scripted("ok"))
    Wrong.settings = {"frequency_penalty": 1.0}
    with pytest.raises(TypeError, match="frequency_penalty"):
        await run(Wrong, scripted("ok"))


class Answer(BaseModel):
    value: int


@pytest.mark.parametrize(
    ("reply", "metadata"),
    [
        ('{"value": 5}}\n</tool_call>', {"value": 5}),
        ('{"value": 5}', {"value": 5}),
        ("five", None),
        ('{"value": "five"}', None),
        ('{"value": "\\ud83d"}', None),
    ],
)
async def test_a_structured_model_gives_validated_metadata_or_none(reply, metadata):
    seen = []

    class Structured(Workflow):
        async def execute(self, workflow_task, model_tuner):
            messages = [{"role": "user", "content": "2+3"}]
            seen.append(await model_tuner(messages, structured_model=Answer))
            return WorkflowOutput(reward=1.0)

    t = await run(Structured, scripted(reply))
    assert seen[0].metadata == metadata
    assert t.turns[0].tools is not None
    assert t.turns[0].tools[0]["function"]["name"] == "generate_structured_output"


async def test_a_react_agent_gives_structured_output():
    class Structured(Workflow):
        async def execute(self, workflow_task, model_tuner):
            agent = react_agent(model_tuner)
            result = await ask(agent, "2+3?", structured_model=Answer)
            return WorkflowOutput(reward=1.0, metadata={"value": result.metadata["value"]})

    call = '{"name": "generate_response", "arguments": {"value": 5}}\n</tool_call>'
    t = await run(Structured, scripted(call, "It is five."))
    assert t.output is not None
    assert t.output.metadata == {"value": 5}
    assert t.turns[1].reply["content"] == "It is five."
    sampled = t.turns[0].completion.prompt_ids + t.turns[0].completion.token_ids
    assert t.turns[1].completion.prompt_ids[: len(sampled)] == sampled


async def test_two_agents_share_an_episode_and_only_the_target_is_trained():
    class Debate(Workflow):
        trainable_targets = ["solver"]

        async def execute(self, workflow_task, tuner: AjetTuner):
            solver = react_agent(tuner.as_agentscope_model(agent_name="solver"))
            critic = react_agent(tuner.as_agentscope_model(agent_name="critic"), name="critic")
            said = await ask(solver, workflow_task.task.main_query)
            await ask(critic, f"Is this right? {said.get_text_content()}")
            return WorkflowOutput(reward=1.0)

    t = await run(Debate, scripted("5", "yes"))
    assert [(turn.agent_name, turn.trainable) for turn in t.turns] == [
        ("solver", True),
        ("critic", False),
    ]
    assert t.num_sampled == len(t.turns[0].completion.token_ids)


async def test_a_debug_model_answers_for_agents_that_are_not_trained():
    from agentscope.model import ChatModelBase, ChatResponse

    class Stub(ChatModelBase):
        async def __call__(self, *args, **kwargs):
            return ChatResponse(content=[{"type": "text", "text": "stub"}])

    class Opponents(Workflow):
        trainable_targets = ["solver"]

        async def execute(self, workflow_task, tuner):
            stub = Stub("stub", False)
            assert tuner.as_agentscope_model("critic", debug_model=stub) is stub
            assert tuner.as_agentscope_model("solver", debug_model=stub) is not stub
            return WorkflowOutput(reward=1.0)

    assert (await run(Opponents, scripted())).reward == 1.0


async def test_turns_beyond_the_limit_truncate_and_the_last_words_are_judged():
    from ajet.judges.math import MathJudge

    endpoint = scripted(f"\\boxed{{5}} {CALL}", "never said")
    t = await run(React, endpoint, MathJudge(), max_steps=1)
    assert t.status is EpisodeStatus.TRUNCATED
    assert t.is_valid
    assert (t.reward, len(t.turns)) == (1.0, 1)
    assert t.error == "the episode used its 1 calls (max_steps)"
    t = await run(React, scripted(CALL), None, max_steps=1)
    assert (t.status, t.reward, t.is_success) == (EpisodeStatus.TRUNCATED, 0.0, False)


async def test_a_workflow_written_for_agentjet_runs_unchanged():
    seen = {}

    class Legacy(Workflow):
        name: str = "legacy_workflow"
        trainable_targets: list[str] | None = ["math_agent"]

        async def execute(self, task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
            seen["ids"] = (task.episode_uuid, task.task_thread_index, task.task_batch_index)
            seen["rest"] = (task.task_tag, task.gym_env, task.env_type, task.task_id)
            model = tuner.as_agentscope_model(
                agent_name="math_agent", target_tag="math_agent", debug_model=None
            )
            result = await ask(react_agent(copy.deepcopy(model)), task.task.main_query)
            return WorkflowOutput(reward=1, is_success=True, metadata={"said": str(result)})

    t = await run(Legacy, scripted("5"))
    assert seen["ids"] == ("000000-train-0000-00", 0, 0)
    assert seen["rest"] == ("", None, "no_env", "t0")
    assert (t.reward, t.is_success, t.turns[0].trainable) == (1.0, True, True)


async def test_a_memory_beyond_the_context_is_compacted(tmp_path):
    from types import SimpleNamespace

    from ajet.core.config.rollout import CompactionConfig

    class Asked(Workflow):
        async def execute(self, workflow_task, model_tuner):
            agent = react_agent(model_tuner)
            for number in range(4):
                await ask(agent, f"Room {number}. {'x' * 150}")
            return WorkflowOutput(reward=1.0)

    def reply(prompt, _name):
        return "Rooms were seen." if "Sum up." in prompt.rpartition("user\n")[2] else "on"

    compaction = CompactionConfig(enable=True, at=1100, prompt="Sum up.", max_summary_tokens=40)
    config = SimpleNamespace(ajet=SimpleNamespace(rollout=SimpleNamespace(compaction=compaction)))
    limits = {"max_prompt_length": 4000, "max_response_length_in_one_turn": 100}
    t = await run(Asked, ScriptedEndpoint(TOKENIZER, reply), config=config, **limits)
    assert t.status is EpisodeStatus.OK
    summaries = [number for number, turn in enumerate(t.turns) if turn.notes.is_summary]
    shown = [message["content"] for message in t.turns[summaries[0] + 1].messages]
    assert shown[2] == "Rooms were seen." and len(shown) == 4
