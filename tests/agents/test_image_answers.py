"""Images in the answers of tools are parts of the tool's message for a model that sees them."""

import base64
import json
from types import SimpleNamespace

import pytest
from PIL import Image

from ajet import ModelTuner, Task
from ajet.core.config import load_config
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.workflow.registry import registered_workflow
from ajet.tools import mcp_session
from ajet.tools.call import as_tool_result
from ajet.tools.tool import ToolResponse
from tests.agents.agent_runs import call, config_in
from tests.seeing_recorder import SeeingRecorder, png

DATA = base64.b64encode(png()).decode()
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}


def text(value):
    return {"type": "text", "text": value}


def test_each_kind_of_answer_has_the_same_parts():
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    answers = [
        ToolResponse("a cat", image=[png()]),
        (ToolResponse("a cat", image=[{"bytes": png()}]), 0.5, {"n": 1}),
        SimpleNamespace(content=[text("a cat"), {"type": "image", "source": source}]),
    ]
    assert [as_tool_result(each).parts for each in answers] == [[text("a cat"), PART]] * 3
    assert as_tool_result(answers[1]).reward == 0.5


def test_an_image_of_pil_needs_no_text():
    [part] = as_tool_result(ToolResponse("", image=[Image.new("RGB", (4, 4), "red")])).parts
    assert part["type"] == "image_url"


def test_a_refused_image_is_named():
    result = as_tool_result(ToolResponse("a cat", image=["/etc/passwd"]))
    assert result.parts == [
        text("a cat"),
        text("(an image is refused: messages may not name files; give its data, as a data URL)"),
    ]


SERVER = f"""\
from mcp.server.fastmcp import FastMCP
from mcp.types import ImageContent, TextContent

server = FastMCP("s")


@server.tool()
def picture() -> list:
    image = ImageContent(type="image", data="{DATA}", mimeType="image/png")
    return [TextContent(type="text", text="a cat"), image]


server.run()
"""


@pytest.fixture
def asked(tmp_path):
    """``await asked(sees)``: the content of the tool's message and the output of the episode."""

    async def asked(sees):
        entry = {"mcp": {"command": "python", "args": ["server.py"]}, "tools": ["picture"]}
        files = {"server.py": SERVER, "tools.yaml": json.dumps({"tools": [entry]})}
        config_in(tmp_path, files, tool_config_path="tools.yaml")
        config = load_config(tmp_path / "run.yaml", [f"ajet.model.images.enabled={sees}"])
        recorder = SeeingRecorder(call("picture"), "A cat.")
        plan = WorkflowTask(Task("t", "What is it?"), "e", "0-0", 0, 0, "train", 1)
        agent = registered_workflow("tool_agent")()
        output = await agent.execute(plan, ModelTuner(recorder, config=config))
        [answer] = [m["content"] for m in recorder.seen[-1] if m["role"] == "tool"]
        return answer, output

    yield asked
    mcp_session.close_all()


async def test_an_image_of_an_mcp_server_is_shown(asked):
    answer, output = await asked("true")
    assert answer == [text("a cat"), PART]
    assert output.log_metrics["tool_errors"] == 0


async def test_a_model_of_text_is_told_that_an_image_is_left_out(asked):
    answer, output = await asked("false")
    assert answer == "a cat\n(image left out: only text can be read)"
    assert output.log_metrics["tool_errors"] == 0
