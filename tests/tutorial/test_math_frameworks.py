"""The math agent in five ways: the same task, judge and scripted replies, the same ids.

A prompt's ids hold the system prompt, the tool's schema and the tools' answers, word for word.
"""

import asyncio
import subprocess
import sys

import pytest

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.judge import make_judge
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.trajectory.samples import timelines
from ajet.tools import PYTHON_TOOL, execute_python_code, python_tool, run_python
from tests.fakes import ScriptedEndpoint

TUTORIALS = ("math_agent", "math_langgraph", "math_langchain", "math_openai", "math_http")
REPLIES = {
    "right": (
        '<tool_call>\n{"name": "execute_python_code", "arguments": {"code": "print(2+3)"}}'
        "\n</tool_call>",
        "The answer is \\boxed{5}.",
    ),
    "at once": ("The answer is \\boxed{5}.",),
    "with words and two calls": (
        "I try.\n" + '<tool_call>\n{"name": "execute_python_code", "arguments": {"code": "1/0"}}'
        "\n</tool_call>\n" + '<tool_call>\n{"name": "execute_python_code", "arguments": '
        '{"timeout": "x", "code": "print(1)"}}\n</tool_call>',
        "The answer is \\boxed{7}.",
    ),
    "malformed": ('<tool_call>{"name": execute}</tool_call>',),
    "an argument too many": (
        '<tool_call>\n{"name": "execute_python_code", "arguments": {"code": "print(3)", "lang": 1}}'
        "\n</tool_call>",
        "The answer is \\boxed{3}.",
    ),
}


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained("ajet/embedded/math")


def episodes(tutorial, replies, tokenizer, num_tasks=1, num_repeat=1):
    config = load_config(f"tutorial/example_{tutorial}/demo.yaml")
    endpoint = ScriptedEndpoint(tokenizer, lambda _, name: replies[int(name[-4:])])
    judge, gateway = make_judge(config), assembly.make_gateway(config)
    template = ChatTemplate(tokenizer)
    runner = assembly.make_runner(config, endpoint, template, judge=judge, gateway=gateway)
    tasks = make_reader(config).get_training_tasks()[:num_tasks]
    groups = asyncio.run(
        runner.rollout(RolloutRequest(tasks, step=1, mode="train", num_repeat=num_repeat))
    )
    gateway.close()
    return [trajectory for group in groups for trajectory in group.trajectories]


@pytest.mark.parametrize("tutorial", TUTORIALS[1:])
@pytest.mark.parametrize("case", REPLIES)
def test_the_ids_of_all_turns_are_those_of_the_agentscope_version(tutorial, case, tokenizer):
    [expected] = episodes("math_agent", REPLIES[case], tokenizer)
    [actual] = episodes(tutorial, REPLIES[case], tokenizer)
    assert len(actual.turns) == len(REPLIES[case])
    assert [turn.completion for turn in actual.turns] == [
        turn.completion for turn in expected.turns
    ]
    assert (actual.status, actual.reward) == (expected.status, expected.reward)
    assert actual.output.metadata["final_answer"] == expected.output.metadata["final_answer"]


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_wrong_arguments_of_a_call_are_told_to_the_model(tutorial, tokenizer):
    wrong = REPLIES["right"][0].replace('"code"', '"program"')
    [trajectory] = episodes(tutorial, [wrong, REPLIES["right"][1], "never"], tokenizer)
    assert (trajectory.status, len(trajectory.turns)) == ("ok", 2)
    assert "code" in str(trajectory.turns[1].messages[-1]["content"])


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_sampled_ids_are_the_trained_ids_in_two_episodes_of_each_of_63_tasks(tutorial, tokenizer):
    for trajectory in episodes(tutorial, REPLIES["right"], tokenizer, 63, 2):
        sampled = [turn.completion.token_ids for turn in trajectory.turns]
        [timeline] = timelines(trajectory.turns)
        trained = [i for i, m in zip(timeline.token_ids, timeline.loss_mask, strict=True) if m]
        assert tuple(trained) == sum(sampled, ())


@pytest.mark.parametrize("tutorial", TUTORIALS[1:])
def test_a_third_call_is_not_made(tutorial, tokenizer):
    [trajectory] = episodes(tutorial, [REPLIES["right"][0]] * 3, tokenizer)
    assert len(trajectory.turns) == 2


def test_the_tools_schema_is_what_agentscope_writes():
    import json

    from agentscope.tool import Toolkit

    toolkit = Toolkit()
    toolkit.register_tool_function(execute_python_code)
    [schema] = toolkit.get_json_schemas()
    assert json.dumps(PYTHON_TOOL) == json.dumps(schema)  # the order of the keys too


async def test_the_tools_text_is_what_agentscope_gets():
    for arguments in ({"code": "print('é')"}, {"code": "1/0"}, {"code": "1", "timeout": "x"}):
        response = await execute_python_code(**arguments)
        assert await run_python(**arguments) == response.content[0]["text"]
        assert await python_tool().ainvoke(arguments) == response.content[0]["text"]


@pytest.mark.parametrize("tutorial", TUTORIALS[1:])
def test_the_settings_are_those_of_the_math_agents_demo(tutorial):
    demo = load_config("tutorial/example_math_agent/demo.yaml").to_dict()["ajet"]
    mine = load_config(f"tutorial/example_{tutorial}/demo.yaml").to_dict()["ajet"]
    own = ("experiment_name", "rollout")
    assert {k: v for k, v in mine.items() if k not in own} == {
        k: v for k, v in demo.items() if k not in own
    }
    ours, theirs = mine["rollout"], demo["rollout"]
    assert ours | {"user_workflow": theirs["user_workflow"]} == theirs


@pytest.mark.parametrize("tutorial", TUTORIALS[1:])
def test_check_loads_no_framework(tutorial):
    script = (
        "import sys\nfrom ajet.cli.preflight import check_classes\n"
        "from ajet.core.config import load_config\n"
        f"check_classes(load_config('tutorial/example_{tutorial}/demo.yaml'))\n"
        "print([m for m in ('langgraph', 'langchain_core', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
