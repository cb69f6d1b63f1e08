"""`ajet init --from-agent`: the agent is found without being run, and plays with given replies."""

import ast
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.errors import ConfigError
from ajet.projects.found_agent import chosen_agent, found_agents
from ajet.testing import play, tool_call
from tests.warm_start import warm_run

ROW = {"question": "What is 6 times 7?", "answer": "42"}

LANGCHAIN_BUILDER = '''
from langchain.agents import create_agent


def times(a: int, b: int) -> int:
    """Multiply."""
    return a * b


def build(model, *, style="short"):
    return create_agent(model, [times], system_prompt=f"Be {style}.")


if __name__ == "__main__":
    raise SystemExit("the file was run")
'''
LANGCHAIN_VARIABLE = '''
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel as SomeModel

PROMPT = "You multiply."


def times(a: int, b: int) -> int:
    """Multiply."""
    return a * b


agent = create_agent(SomeModel(responses=["no"]), tools=[times], system_prompt=PROMPT)
'''
LANGGRAPH_BUILDER = """
from langgraph.graph import END, START, MessagesState, StateGraph


def build_graph(llm):
    async def ask(state):
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph.compile()
"""
AGENTSCOPE_VARIABLE = """
from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.model import DashScopeChatModel

memory = InMemoryMemory()
agent = ReActAgent(
    name="solver",
    sys_prompt="Answer.",
    model=DashScopeChatModel("qwen-max", api_key="none"),
    formatter=DashScopeChatFormatter(),
    memory=memory,
)
"""
AGENTSCOPE_BUILDER = """
from agentscope.agent import ReActAgent
from agentscope.formatter import DashScopeChatFormatter


def make(model):
    return ReActAgent(
        name="solver", sys_prompt="Answer.", model=model, formatter=DashScopeChatFormatter()
    )
"""
OPENAI_FUNCTION = """
from openai import AsyncOpenAI


async def solve(question: str, client: AsyncOpenAI, model: str = "gpt-5") -> str:
    said = [{"role": "user", "content": question}]
    reply = await client.chat.completions.create(model=model, messages=said)
    return reply.choices[0].message.content
"""
OPENAI_CLASS = """
from openai import OpenAI


class Solver:
    def __init__(self, api: OpenAI, model):
        self.client, self.model = api, model

    def _say(self, text):
        return [{"role": "user", "content": text}]

    def run(self, text):
        create = self.client.chat.completions.create
        return create(model=self.model, messages=self._say(text)).choices[0].message.content
"""
ADDRESS_CLASS = """
from openai import OpenAI


class Solver:
    def __init__(self, base_url="https://api.example.org/v1", api_key=None, temperature=0.0):
        self.client = OpenAI(base_url=base_url, api_key=api_key)

    def answer(self, text):
        said = [{"role": "user", "content": text}]
        reply = self.client.chat.completions.create(model="gpt-5", messages=said)
        return reply.choices[0].message.content
"""
LANGCHAIN_CLASS = """
from langchain.agents import create_agent


class Solver:
    def __init__(self, llm, style="short"):
        self.graph = create_agent(llm, [], system_prompt=style)

    def ask(self, text):
        said = {"messages": [{"role": "user", "content": text}]}
        return self.graph.invoke(said)["messages"][-1].text
"""
LANGCHAIN_FUNCTION = """
from langchain_core.messages import HumanMessage


async def solve(text, llm, model_name="some"):
    return (await llm.ainvoke([HumanMessage(text)])).text
"""
PROGRAM = """
import json
import os
import sys
import urllib.request

if __name__ == "__main__":
    said = [{"role": "user", "content": QUESTION}]
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "gpt-5", "messages": said}).encode(),
        {
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        print(json.load(answer)["choices"][0]["message"]["content"])
"""
AGENTS = {
    "langchain_builder": (LANGCHAIN_BUILDER, "langchain", "build"),
    "langchain_variable": (LANGCHAIN_VARIABLE, "langchain", "agent"),
    "langgraph_builder": (LANGGRAPH_BUILDER, "langchain", "build_graph"),
    "langchain_class": (LANGCHAIN_CLASS, "langchain", "Solver"),
    "langchain_function": (LANGCHAIN_FUNCTION, "langchain", "solve"),
    "agentscope_variable": (AGENTSCOPE_VARIABLE, "agentscope", "agent"),
    "agentscope_builder": (AGENTSCOPE_BUILDER, "agentscope", "make"),
    "openai_function": (OPENAI_FUNCTION, "openai", "solve"),
    "openai_class": (OPENAI_CLASS, "openai", "Solver"),
    "address_class": (ADDRESS_CLASS, "address", "Solver"),
    "program": (PROGRAM.replace("QUESTION", "sys.argv[1]"), "program", "program.py"),
    "piped": (PROGRAM.replace("QUESTION", "sys.stdin.read()"), "program", "piped.py"),
}


def init(*arguments: object):
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


def written(folder: Path, text: str, name: str = "my_agent") -> Path:
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", AGENTS)
def test_the_written_workflow_gives_the_agent_the_model_and_its_answer_is_judged(name, tmp_path):
    text, interface, agent = AGENTS[name]
    file = written(tmp_path, text, name)
    found = chosen_agent(found_agents(file), None, file)
    assert (found.interface, found.name) == (interface, agent)
    result = init("--from-agent", file)
    assert result.exit_code == 0, result.output
    assert f"found: {file}:{found.line}: " in result.stdout
    assert file.read_text() == text
    episode = play(tmp_path / "train.yaml", ["The answer is 42."], ROW)
    assert episode.is_success
    assert "6 times 7" in str(episode.turns[0].messages)
    assert not play(tmp_path / "train.yaml", ["I do not know."], ROW).is_success


def test_tools_and_prompt_of_a_call_that_is_repeated_are_the_users_own(tmp_path):
    file = written(tmp_path, LANGCHAIN_VARIABLE)
    assert init("--from-agent", file).exit_code == 0
    episode = play(tmp_path / "train.yaml", [tool_call("times", a=6, b=7), "It is 42"], ROW)
    prompt, answer = episode.turns[0].messages, episode.turns[1].messages[-1]
    assert (prompt[0]["content"], answer["content"]) == ("You multiply.", "42")
    assert [tool["function"]["name"] for tool in episode.turns[0].tools or ()] == ["times"]


def test_what_the_workflow_leaves_out_is_said(tmp_path):
    text = "async def cook(dish, client, diet='vegan', *, spicy=False):\n    yield dish\n"
    file = written(tmp_path, text)
    answer = json.loads(init("--from-agent", file, "--json").stdout)
    assert "workflow.py leaves diet, spicy at the default" in answer["to_do"]
    assert "takes the last of other events: is it the answer?" in answer["to_do"]


def test_an_agents_memory_is_not_shared_by_episodes(tmp_path):
    file = written(tmp_path, AGENTSCOPE_VARIABLE)
    call = chosen_agent(found_agents(file), None, file).call
    keywords = [each.arg for each in ast.parse(call).body[0].value.keywords]
    assert keywords == ["name", "sys_prompt", "model", "formatter"]


def test_the_files_are_checked_and_their_test_passes(tmp_path):
    file = written(tmp_path, OPENAI_FUNCTION)
    assert init("--from-agent", file, "--model", "embedded:math").exit_code == 0
    checked = CliRunner().invoke(app, ["check", "--conf", str(tmp_path / "train.yaml")])
    assert checked.exit_code == 0, checked.output
    [warning] = [line for line in checked.output.splitlines() if line.startswith("warning")]
    assert "data: 80 of 80 tasks are placeholders" in warning
    with_pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_workflow.py"]
    for test in (with_pytest, ["-m", "test_workflow"]):
        ended = warm_run(test, cwd=tmp_path, env=os.environ)
        assert ended.returncode == 0, ended.stdout


def test_without_a_model_the_check_says_which_key_is_missing(tmp_path):
    assert init("--from-agent", written(tmp_path, OPENAI_FUNCTION)).exit_code == 0
    checked = CliRunner().invoke(app, ["check", "--conf", str(tmp_path / "train.yaml")])
    assert checked.exit_code == 1
    assert "ajet.model.path" in checked.stderr


def test_a_module_of_a_package_is_imported_by_its_whole_name(tmp_path):
    package = tmp_path / "agents" / "maths"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    file = written(package, "from .ask import solve_with as solve\n" + ADDRESS_CLASS)
    (package / "ask.py").write_text("def solve_with(text): return text\n")
    assert init("--from-agent", file).exit_code == 0
    assert "import agents.maths.my_agent as mine" in (tmp_path / "workflow.py").read_text()
    assert play(tmp_path / "train.yaml", ["42"], ROW).is_success


def test_two_agents_are_named_and_one_is_chosen(tmp_path):
    file = written(tmp_path, OPENAI_FUNCTION + ADDRESS_CLASS)
    result = init("--from-agent", file)
    assert result.exit_code == 1
    assert "found: solve (line 5), Solver (line 13); give --agent" in result.stderr
    assert not (tmp_path / "workflow.py").exists()
    assert "no agent of this name" in init("--from-agent", file, "--agent", "Solve").stderr
    assert init("--from-agent", file, "--agent", "Solver").exit_code == 0
    assert "mine.Solver(base_url=base_url" in (tmp_path / "workflow.py").read_text()


def test_of_functions_that_use_each_other_the_outermost_is_the_agent(tmp_path):
    """`main`, which shows it, is none: it takes no question."""
    uses = (
        "\n\nasync def twice(client: AsyncOpenAI, question: str):\n"
        "    return await again(question, client)\n"
        "\n\ndef again(text, client):\n    return solve(text, client)\n"
        "\n\nasync def main():\n    print(await twice(AsyncOpenAI(), '6 times 7?'))\n"
    )
    file = written(tmp_path, OPENAI_FUNCTION + uses)
    [found] = found_agents(file)
    assert found.name == "twice"
    assert [agent.name for agent in found_agents(file, "solve")] == ["solve", "twice", "again"]


@pytest.mark.parametrize(
    ("yielded", "answer"),
    [("'The answer '\n        yield str(40 + 2)", "The answer 42"), ("1\n        yield 42", "42")],
)
def test_an_agent_that_yields_answers_with_the_text_or_the_last_event(yielded, answer, tmp_path):
    generator = (
        "class Solver:\n    def __init__(self, client): self.client = client\n"
        "    async def lesson(self, text):\n"
        "        said = [{'role': 'user', 'content': text}]\n"
        "        await self.client.chat.completions.create(model='m', messages=said)\n"
        f"        yield {yielded}\n"
    )
    assert init("--from-agent", written(tmp_path, generator), "--model", "x").exit_code == 0
    episode = play(tmp_path / "train.yaml", ["so"], {"question": "6 times 7?", "answer": "42"})
    assert episode.output.metadata["final_answer"] == answer and episode.is_success


AGENTS_SDK = """
from agents import Agent, Runner, function_tool


@function_tool
def times(a: int, b: int) -> int:
    return a * b


agent = Agent(name="Calculator", model="gpt-5", tools=[times])


def make():
    return Agent(name="Other", instructions="Say it in French.")


async def main():
    clerk = Agent(name="Clerk", model="gpt-5", tools=[times], handoffs=[agent])
    print(await Runner.run(clerk, "6 times 7?"))
"""


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("agent", "mine.agent"),
        ("make", "mine.make()"),
        ("main", "mine.Agent(name='Clerk', tools=[mine.times], handoffs=[mine.agent])"),
    ],
)
def test_an_agent_of_the_agents_sdk_gets_its_model_from_its_run(name, call, tmp_path):
    file = written(tmp_path, AGENTS_SDK)
    found = chosen_agent(found_agents(file, name), name, file)
    assert (found.interface, found.call) == ("agents_sdk", call)
    assert init("--from-agent", file, "--agent", name).exit_code == 0
    workflow = (tmp_path / "workflow.py").read_text()
    assert f"agent = {call}\n        result = await Runner.run(agent, " in workflow
    assert 'model = OpenAIChatCompletionsModel("any name", client)' in workflow


def test_a_class_of_the_users_own_that_is_called_agent_is_not_the_agents_sdks(tmp_path):
    text = "from agents import maths\nclass Agent: pass\nagent = Agent()\n" + OPENAI_FUNCTION
    (found,) = found_agents(written(tmp_path, text))
    assert found.interface == "openai"


@pytest.mark.parametrize("key", ["", "sk-1"])
def test_a_key_is_asked_for_where_the_file_makes_a_model_of_its_own(key, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    own = "from langchain_openai import ChatOpenAI\nown = ChatOpenAI()\n"
    result = init("--from-agent", written(tmp_path, own + LANGGRAPH_BUILDER))
    assert result.exit_code == 0
    says_so = "export OPENAI_API_KEY=none      # line 2 makes a model" in result.stdout
    assert says_so is not bool(key)


REFUSED = {
    "its nodes have their model already": (
        "from langgraph.graph import StateGraph\nb = StateGraph(dict)\ngraph = b.compile()\n"
    ),
    "'toolkit' in this call is only defined where the call is": (
        "from agentscope.agent import ReActAgent\ndef main():\n    toolkit = 1\n"
        "    agent = ReActAgent(name='a', model=object(), toolkit=toolkit)\n"
    ),
    "it takes no model: give it an argument `model`": (
        "import langgraph\ndef build(size):\n    graph = object()\n    return graph.compile()\n"
    ),
    "it also needs tools: give them defaults": (
        "from langchain.agents import create_agent\n"
        "def build(model, tools):\n    return create_agent(model, tools)\n"
    ),
    "it takes a, b in addition to the model, where one": "def solve(client, a, b): pass\n",
    "which method answers a question?": (
        "class Solver:\n    def __init__(self, client): pass\n"
        "    def first(self, a): pass\n    def second(self, a): pass\n"
    ),
    "give it an argument `client`, or `base_url` and `api_key`": (
        "from openai import OpenAI\ndef solve(question):\n    return OpenAI()\n"
    ),
    "solve(), which uses client of line 2: give it an argument `client`, or `base_url`": (
        "from openai import OpenAI\nclient = OpenAI()\ndef solve(question):\n    return client\n"
        'if __name__ == "__main__":\n    print(solve("1 + 1?"))\n'
    ),
    "whose __init__ makes ChatOpenAI(…): give it an argument `model`": (
        "from langchain_openai import ChatOpenAI\nclass Desk:\n    def __init__(self, name='m'):\n"
        "        self.llm = ChatOpenAI(model=name)\n    def answer(self, text): pass\n"
    ),
    "no agent was found in it, and it does nothing when it is run": "x = 1\n",
    "it reads no question": 'if __name__ == "__main__":\n    print("OPENAI_BASE_URL")\n',
    "it does not ask the environment for the model's address": (
        'import sys\nif __name__ == "__main__":\n    print(sys.argv)\n'
    ),
    "line 4 writes the model's address": (
        "import sys\nfrom openai import OpenAI\nif __name__ == '__main__':\n"
        "    OpenAI(base_url='https://api.example.org/v1'); print(sys.argv)\n"
    ),
    "my_agent.py:3: AgentTrainer(…): it trains an agent with rLLM, and ajet takes its place": (
        "from rllm.trainer.agent_trainer import AgentTrainer\ndef main(config):\n"
        "    AgentTrainer(config=config).train()\nif __name__ == '__main__':\n    main(1)\n"
    ),
    "agl.Trainer(…): it trains an agent with agent-lightning, and ajet takes its place": (
        "import sys\nimport agentlightning as agl\nif __name__ == '__main__':\n"
        "    agl.Trainer(n_runners=1).fit(sys.argv[1])\n"
    ),
    "it is a game (reset, step), which needs no workflow: `ajet init DIR --kind environment`": (
        "class Game:\n    def reset(self, seed): pass\n    def step(self, action): pass\n"
        "if __name__ == '__main__':\n    print(Game().reset(1))\n"
    ),
    "not valid Python": "def solve(:\n",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_an_agent_whose_model_cannot_be_replaced_is_one_line(reason, tmp_path):
    result = init("--from-agent", written(tmp_path, REFUSED[reason]))
    assert result.exit_code == 1
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["my_agent.py"]


@pytest.mark.parametrize(
    ("name", "reason"), [("no.py", "no such file"), ("an-agent.py", "cannot be imported")]
)
def test_a_file_that_cannot_be_the_agents_is_said(name, reason, tmp_path):
    if name == "an-agent.py":
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=reason):
        found_agents(tmp_path / name)


def test_an_agent_that_is_named_and_cannot_be_given_the_model_is_refused_with_its_reason(tmp_path):
    unusable = "\n\ndef compare(client, first, second):\n    pass\n"
    file = written(tmp_path, OPENAI_FUNCTION + unusable)
    result = init("--from-agent", file, "--agent", "compare")
    assert result.exit_code == 1
    assert "it takes first, second in addition to the model, where one" in result.stderr


def test_a_client_is_of_the_kind_that_its_annotation_says(tmp_path):
    found = {}
    for kind in ("AsyncOpenAI", "OpenAI"):
        file = written(tmp_path, f"def solve(question, client: {kind} | None = None): pass\n")
        (found[kind],) = found_agents(file)
    assert (found["AsyncOpenAI"].has_sync_client, found["OpenAI"].has_sync_client) == (False, True)


def test_nothing_is_written_over(tmp_path):
    file = written(tmp_path, OPENAI_FUNCTION)
    (tmp_path / "judge.py").write_text("mine")
    result = init("--from-agent", file)
    assert (result.exit_code, (tmp_path / "judge.py").read_text()) == (1, "mine")
    assert "judge.py is there already, and nothing was written" in result.stderr
    assert not (tmp_path / "workflow.py").exists()


def test_options_that_do_not_fit_are_wrong_usage(tmp_path):
    file = written(tmp_path, OPENAI_FUNCTION)
    for arguments in (
        ["--from-agent", file, "--kind", "openai"],
        [tmp_path / "elsewhere", "--from-agent", file],
        ["--kind", "openai", "--model", "some"],
        ["--kind", "openal"],
    ):
        assert init(*arguments).exit_code == 2, arguments
