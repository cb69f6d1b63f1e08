"""Environments of the real package verifiers, written as its documentation says.

AJET_VERIFIERS_PYTHON names an interpreter that has the package, and uv beside it; without one the
tests are skipped. The first one takes a minute: the package prepares its conversation program.
AJET_CLASSIC_VERIFIERS_PYTHON names one that has a release with `load_environment`, 0.1.14 to 0.3.
"""

import os
from pathlib import Path

import pytest

from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.agents.test_verifiers_agent import config_in, play, tasks_of

PYTHON = os.environ.get("AJET_VERIFIERS_PYTHON")
CLASSIC_PYTHON = os.environ.get("AJET_CLASSIC_VERIFIERS_PYTHON")
needs_package = pytest.mark.skipif(PYTHON is None, reason="set AJET_VERIFIERS_PYTHON")
needs_classic = pytest.mark.skipif(
    CLASSIC_PYTHON is None, reason="set AJET_CLASSIC_VERIFIERS_PYTHON"
)
HEAD = "import verifiers.v1 as vf\n"
SINGLE = """
class SumData(vf.TaskData):
    answer: str = ""

class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def right(self, trace):
        return float(self.data.answer in str(trace.last_reply))

class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        rows = [SumData(prompt=f"{i}+1", answer=str(i + 1)) for i in range(4)]
        return [SumTask(row, self.config.task) for row in rows]
"""
TOOL = """
class AddToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "calc"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        '''Adds two numbers.'''
        return f"sum {a + b}"

if __name__ == "__main__":
    AddToolset.run()
"""
TOOLS = """
from adds.tools import AddToolset

class AddConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()

class AddTask(vf.Task[vf.TaskData, vf.State, AddConfig]):
    @classmethod
    def toolsets(cls, config):
        return [AddToolset(config.tools)]

    @vf.reward(weight=0.5)
    async def done(self, trace):
        return float(str(trace.last_reply) == "done")

class AddTasksetConfig(vf.TasksetConfig):
    task: AddConfig = AddConfig()

class AddTaskset(vf.Taskset[AddTask, AddTasksetConfig]):
    def load(self):
        return [AddTask(vf.TaskData(prompt="add 2 and 3"), self.config.task)]
"""
TURNS = """
class QuizTask(vf.Task[vf.TaskData]):
    pass

class QuizConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class QuizEnv(vf.Env[QuizConfig]):
    async def run(self, task, agents):
        right = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            right += segment.last_reply == "one"
            segment = await interaction.turn("and now?")
            right += segment.last_reply == "two"
        interaction.trace.record_reward("quiz", right, 0.5)

class QuizTaskset(vf.Taskset[QuizTask, vf.TasksetConfig]):
    def load(self):
        return [QuizTask(vf.TaskData(prompt="say one"), self.config.task)]
"""
CLASSIC = """
import verifiers as vf
from datasets import Dataset

def add(a: int, b: int) -> str:
    '''Adds two numbers.'''
    return f"sum {a + b}"

def is_done(completion, answer, **kwargs) -> float:
    return float(completion[-1]["content"] == answer)

class Asking(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"and {len(state['trajectory'])}?"}]

def load_environment(kind="tools"):
    rows = [{"question": "add 2 and 3", "answer": "done"}]
    settings = {
        "dataset": Dataset.from_list(rows),
        "eval_dataset": Dataset.from_list([{"question": "add 4 and 5", "answer": "done"}]),
        "rubric": vf.Rubric(funcs=[is_done], weights=[0.5]),
    }
    if kind == "tools":
        return vf.ToolEnv(tools=[add], max_turns=3, **settings)
    return Asking(max_turns=2, **settings)
"""


def installed(folder, monkeypatch, code, names, **files):
    package = folder / "adds"
    package.mkdir()
    (package / "__init__.py").write_text(f"{HEAD}{code}\n__all__ = {names}\n")
    for name, text in files.items():
        (package / f"{name}.py").write_text(HEAD + text)
    monkeypatch.chdir(folder)
    return config_in(folder, python=str(Path(PYTHON).absolute()))


@needs_package
async def test_a_single_turn_task_is_scored_by_its_rewards(tmp_path, monkeypatch):
    config = installed(tmp_path, monkeypatch, SINGLE, ["SumTaskset"])
    tasks = tasks_of(config)
    assert [task.main_query for task in tasks] == ["0+1", "1+1", "2+1", "3+1"]
    right, wrong = await play(config, tasks[:2], "1")
    assert (right.reward, wrong.reward, right.error) == (1.0, 0.0, None)
    assert right.output.metadata["final_answer"] == "1"


@needs_package
async def test_a_tool_is_offered_to_the_model_and_called(tmp_path, monkeypatch):
    config = installed(tmp_path, monkeypatch, TOOLS, ["AddTaskset"], tools=TOOL)
    call = '<tool_call>\n{"name": "calc_add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    [episode] = await play(config, tasks_of(config), call, "done")
    assert episode.status is EpisodeStatus.OK, episode.error
    assert episode.reward == 0.5
    assert episode.turns[1].messages[-1]["content"] == "sum 5"


@needs_package
async def test_an_environment_that_plays_the_user_goes_on_in_one_conversation(
    tmp_path, monkeypatch
):
    config = installed(tmp_path, monkeypatch, TURNS, ["QuizTaskset", "QuizEnv"])
    [episode] = await play(config, tasks_of(config), "one", "two")
    assert episode.reward == 1.0, episode.error
    assert [m["role"] for m in episode.turns[1].messages] == ["user", "assistant", "user"]


def classic(folder, monkeypatch, **args):
    (folder / "asks.py").write_text(CLASSIC)
    monkeypatch.chdir(folder)
    section = {"env": {"id": "asks", "args": args}, "validation_env": {"split": "eval"}}
    return config_in(folder, python=str(Path(CLASSIC_PYTHON).absolute()), **section)


@needs_classic
async def test_a_tool_of_a_classic_environment_is_called(tmp_path, monkeypatch):
    config = classic(tmp_path, monkeypatch)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    [episode] = await play(config, tasks_of(config), call, "done")
    assert (episode.status, episode.reward) == (EpisodeStatus.OK, 0.5), episode.error
    assert episode.turns[1].messages[-1]["content"] == "sum 5"
    assert episode.output.log_metrics["verifiers/is_done"] == 1.0


@needs_classic
async def test_a_limit_of_calls_cuts_a_classic_environment_and_its_rubric_counts(
    tmp_path, monkeypatch
):
    config = classic(tmp_path, monkeypatch, kind="turns")
    [whole] = await play(config, tasks_of(config), "one", "done")
    assert (whole.status, whole.reward) == (EpisodeStatus.OK, 0.5), whole.error
    assert [m["content"] for m in whole.turns[1].messages] == ["add 2 and 3", "one", "and 1?"]
    [cut] = await play(config, tasks_of(config), "done", max_steps=1)
    assert (cut.status, cut.reward) == (EpisodeStatus.TRUNCATED, 0.5), cut.error
    assert len(cut.turns) == 1
