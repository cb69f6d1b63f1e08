"""Tools and simulated users that hang, raise at the wrong time, or answer what is no text."""

import asyncio
import json
import threading

import pytest

from ajet.core.text.error_text import MAX_MESSAGE_LENGTH, one_line
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.user_code.importing import load_module
from ajet.tools.call import invoke
from tests.agents.agent_runs import call, config_in, run, texts

TOOLS = """
import asyncio

from ajet import BaseTool
from ajet.core.errors import EnvironmentFault

LOG = []


def numbers():
    yield 1
    yield 2


async def words():
    yield "a"


def thing():
    return {"made": object()}


def function():
    return [numbers]


def triple():
    return "a", "b", {}


def stops():
    return next(iter([]))


def wordless():
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    raise Wordless


async def slow():
    try:
        await asyncio.sleep(3600)
    finally:
        LOG.append("slow has ended")


async def down():
    await asyncio.sleep(0)
    raise EnvironmentFault("the sensor is off")
"""
NAMES = ("numbers", "words", "thing", "function", "triple", "stops", "wordless", "slow", "down")
NO_TEXT = "Error: the tool returned an object ({}) that has no text form"


@pytest.fixture
def config(tmp_path):
    listed = [{"function": f"tools.py->{name}"} for name in NAMES]
    files = {"tools.py": TOOLS, "tools.yaml": json.dumps({"tools": listed})}
    return config_in(tmp_path, files, tool_config_path="tools.yaml")


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("numbers", "[1, 2]"),
        ("words", '["a"]'),
        ("thing", NO_TEXT.format("object")),
        ("function", NO_TEXT.format("function")),
        ("triple", '["a", "b", {}]'),
        ("stops", "Error: RuntimeError: StopIteration"),
        ("wordless", "Error: Wordless"),
    ],
)
async def test_an_answer_is_the_same_in_each_process(config, tool, answer):
    t = await run(config, call(tool), "done")
    assert texts(t) == [answer]


async def test_tools_that_hang_hold_up_no_other_thread():
    release = threading.Event()
    hanging = [asyncio.create_task(invoke(release.wait)) for _ in range(40)]
    try:
        async with asyncio.timeout(10):
            assert await invoke(int, "7") == 7
            assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    finally:
        release.set()
        await asyncio.gather(*hanging)


async def test_a_call_that_ends_the_episode_ends_its_parallel_calls(config):
    t = await run(config, call("slow") + call("down"), "done", max_failure_rate=1.0)
    assert (t.status, t.error) == (
        EpisodeStatus.ENV_ERROR,
        "EnvironmentFault: the sensor is off (tools.py:52)",
    )
    assert load_module("tools.py", base_dirs=config.base_dirs, location="test").LOG == [
        "slow has ended"
    ]


ENDS = {
    "raises": "raise ValueError('the file is gone')",
    "env": "raise EnvironmentFault('down')",
    "hangs": "await asyncio.sleep(3600)",
}
CLASSES = """
import asyncio

from ajet import BaseInteraction, BaseTool
from ajet.core.errors import EnvironmentFault


class Tool(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return "x"

    async def calc_reward(self, instance_id, **kwargs):
        return 0.5

    async def release(self, instance_id, **kwargs):
        {end}


class User(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        {answer}

    async def calculate_score(self, instance_id, **kwargs):
        return 0.25

    async def finalize_interaction(self, instance_id, **kwargs):
        {end}
"""


def with_classes(folder, end="pass", answer='return True, "", None, {}'):
    schema = {"type": "function", "function": {"name": "tool"}}
    entry = {"class_name": "classes.py->Tool", "tool_schema": schema}
    files = {
        "classes.py": CLASSES.format(end=end, answer=answer),
        "tools.yaml": json.dumps({"tools": [entry]}),
        "users.yaml": json.dumps({"interaction": [{"class_name": "classes.py->User"}]}),
    }
    paths = {"tool_config_path": "tools.yaml", "interaction_config_path": "users.yaml"}
    return config_in(folder, files, None, **paths, tool_timeout_s=0.1)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_an_end_that_fails_is_counted_and_the_episode_keeps_its_reward(tmp_path, end):
    t = await run(with_classes(tmp_path, end), call("tool"), "done")
    assert (t.status, t.reward) == (EpisodeStatus.OK, 0.75)
    assert t.output.log_metrics["failed_ends"] == 2


async def test_an_end_that_fails_hides_no_error_of_the_episode(tmp_path):
    answer = "raise ValueError('no opinion')"
    made = with_classes(tmp_path, ENDS["raises"], answer)
    t = await run(made, "done", max_failure_rate=1.0)
    assert (t.status, t.error) == (
        EpisodeStatus.AGENT_ERROR,
        "ValueError: no opinion (classes.py:21)",
    )


async def test_a_simulated_user_has_as_long_as_a_tool(tmp_path):
    made = with_classes(tmp_path, answer="await asyncio.sleep(3600)")
    t = await run(made, "done", max_failure_rate=1.0)
    late = "TimeoutError: User.generate_response() did not answer within 0.1 s"
    assert (t.status, t.error) == (EpisodeStatus.AGENT_ERROR, late)


def test_the_line_of_an_error_is_no_longer_than_a_line():
    assert one_line(ValueError("x" * 50_000_000)) == "ValueError: " + "x" * MAX_MESSAGE_LENGTH
    assert one_line(ValueError("\n  bad move  \nand more")) == "ValueError: bad move"
