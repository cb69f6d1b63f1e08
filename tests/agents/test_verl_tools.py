"""verl's tools and interactions, in files as verl's users have them."""

import json
from pathlib import Path

import pytest

from ajet.cli.preflight import check_classes
from ajet.core.errors import ConfigError
from ajet.tools.tool import OpenAIFunctionToolSchema, plain_schema
from tests.agents.agent_runs import call, config_in, run, texts

USERS_FILES = Path(__file__).parents[1] / "data" / "users" / "verl"
TOOL = """
from typing import Any, Optional
from uuid import uuid4

from ajet.compat.verl import BaseTool, OpenAIFunctionToolSchema, ToolResponse, rollout_trace_op


class GuessTool(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._guesses = {}
        assert self.name == self.tool_schema.function.name == "guess"
        assert self.tool_schema.model_dump(exclude_unset=True, exclude_none=True)["function"]

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(
        self, instance_id: Optional[str] = None, **kwargs
    ) -> tuple[str, ToolResponse]:
        instance_id = instance_id or str(uuid4())
        truth = kwargs.get("create_kwargs", {}).get("ground_truth")
        self._guesses[instance_id] = {"truth": truth, "last": None}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs
    ) -> tuple[ToolResponse, float, dict]:
        state = self._guesses[instance_id]
        state["last"] = parameters["number"]
        image = ["a picture"] if self.config.get("draws") else None
        return ToolResponse(text=f"heard {state['last']}", image=image), -0.05, {}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        state = self._guesses[instance_id]
        return float(str(state["last"]) == state["truth"])

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._guesses[instance_id]
"""
FOREIGN = """
from pydantic import BaseModel


class Property(BaseModel):
    type: str
    description: str | None = None


class Parameters(BaseModel):
    type: str
    properties: dict[str, Property]
    required: list[str] = []


class Function(BaseModel):
    name: str
    description: str
    parameters: Parameters
    strict: bool = False


class Schema(BaseModel):
    type: str
    function: Function


class Response(BaseModel):
    text: str | None = None
    image: list | None = None
    video: list | None = None


class ForeignBase:
    def __init__(self, config, tool_schema):
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    async def create(self, instance_id=None, **kwargs):
        return instance_id, Response()

    async def calc_reward(self, instance_id, **kwargs):
        return 0.5

    async def release(self, instance_id, **kwargs):
        pass


class GuessTool(ForeignBase):
    def get_openai_tool_schema(self):
        number = Property(type="integer")
        parameters = Parameters(type="object", properties={"number": number})
        return Schema(
            type="function",
            function=Function(name="guess", description="Guess.", parameters=parameters),
        )

    async def execute(self, instance_id, parameters, **kwargs):
        return Response(text=f"heard {parameters['number']}"), None, {}


class Half:
    def __init__(self, config, tool_schema):
        pass

    async def execute(self, instance_id, parameters, **kwargs):
        return "x"

    async def release(self, instance_id, **kwargs):
        pass
"""
SCHEMA = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}
ROW = {"extra_info": {"tools_kwargs": {"guess": {"create_kwargs": {"ground_truth": "7"}}}}}


def with_tool(folder, class_name, **entry):
    tools = {"tools": [{"class_name": class_name, **entry}]}
    files = {"guess.py": TOOL, "foreign.py": FOREIGN, "tools.yaml": json.dumps(tools)}
    return config_in(folder, files, None, tool_config_path="tools.yaml")


async def test_a_tool_of_verl_needs_another_import_line_alone(tmp_path):
    config = with_tool(tmp_path, "guess.GuessTool", config={"type": "native"}, tool_schema=SCHEMA)
    t = await run(config, call("guess", number=7), "It is 7.", row=ROW)
    assert texts(t) == ["heard 7"]
    assert t.reward == 1.0
    assert t.turns[0].tools == [SCHEMA]


async def test_a_tool_on_verls_own_base_class_runs_unchanged(tmp_path, verl_core_algos):
    files = {"python_tool.py": (USERS_FILES / "python_tool.py").read_text()}
    files["tools.yaml"] = (USERS_FILES / "config" / "tool_config.yaml").read_text()
    config = config_in(tmp_path, files, None, tool_config_path="tools.yaml")
    check_classes(config)
    row = {"execute_python_code": {"create_kwargs": {"ground_truth": "7"}}}
    row = {"extra_info": {"tools_kwargs": row}}
    t = await run(config, call("execute_python_code", code="print(3+4)"), "It is 7.", row=row)
    assert texts(t) == ["<returncode>0</returncode><stdout>7\n</stdout><stderr></stderr>"]
    assert t.reward == 1.0


@pytest.mark.parametrize("entry", [{}, {"tool_schema": SCHEMA}])
async def test_a_tool_with_verls_methods_and_schema_models_derives_from_nothing_of_ours(
    tmp_path, entry
):
    config = with_tool(tmp_path, "foreign.GuessTool", config={}, **entry)
    check_classes(config)
    t = await run(config, call("guess", number=7), "It is 7.", row=ROW)
    assert texts(t) == ["heard 7"]
    assert t.reward == 0.5
    shown = t.turns[0].tools[0]["function"]
    assert shown["parameters"]["properties"] == {"number": {"type": "integer"}}
    assert "strict" not in shown  # a default of the model's class, which nobody wrote


ASKS = [
    (
        "parameters: dict[str, Any], **kwargs",
        "parameters: dict[str, Any], agent_data=None, **kwargs",
    ),
    ('state["last"] = ', 'kwargs.get("agent_data"); state["last"] = '),
    ('state["last"] = ', 'kwargs["agent_data"].messages; state["last"] = '),
]


@pytest.mark.parametrize(("written", "asks"), ASKS)
def test_a_tool_that_asks_for_agent_data_is_one_line_before_a_launch(tmp_path, written, asks):
    config = with_tool(tmp_path, "guess.GuessTool", tool_schema=SCHEMA)
    check_classes(config)
    assert TOOL.count(written) == 1
    (tmp_path / "asking.py").write_text(TOOL.replace(written, asks))
    tools = {"tools": [{"class_name": "asking.GuessTool", "tool_schema": SCHEMA}]}
    (tmp_path / "tools.yaml").write_text(json.dumps(tools))
    with pytest.raises(ConfigError) as error:
        check_classes(config)
    assert "GuessTool.execute asks for agent_data, the state of verl's loop" in str(error.value)
    assert "keep the episode's state by instance_id" in str(error.value)
    assert "\n" not in str(error.value)


async def test_an_image_from_a_tool_is_an_error_of_the_call_and_counted(tmp_path):
    config = with_tool(tmp_path, "guess.GuessTool", config={"draws": True}, tool_schema=SCHEMA)
    t = await run(config, call("guess", number=7), "It is 7.", row=ROW)
    assert texts(t) == ["Error: the tool answered with an image or a video: answers are text"]
    assert t.output.log_metrics["tool_errors"] == 1


def test_the_methods_that_a_tool_lacks_are_one_line_before_a_launch(tmp_path):
    config = with_tool(tmp_path, "foreign.Half", tool_schema=SCHEMA)
    with pytest.raises(ConfigError) as error:
        check_classes(config)
    assert "Half has no create and no calc_reward: derive it from ajet.BaseTool" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_schema_is_a_dict_with_attributes_and_keeps_every_key():
    schema = OpenAIFunctionToolSchema.model_validate(
        {"type": "function", "function": {"name": "a", "parameters": {"oneOf": [{"title": None}]}}}
    )
    assert schema.function.name == schema["function"]["name"] == "a"
    assert schema.function.parameters.oneOf[0].title is None
    assert schema.model_dump(exclude_none=True)["function"]["parameters"] == {"oneOf": [{}]}
    assert type(plain_schema(schema)["function"]) is dict
    with pytest.raises(AttributeError, match="the tool's schema has no 'functon'; it has type, fu"):
        _ = schema.functon


FUNCTIONS = '''
from ajet.compat.verl import function_tool


@function_tool
def double(number: int) -> str:
    """Doubles a number.

    Args:
        number: The number.
    """
    return str(2 * number)


@function_tool()
async def half(number: int) -> str:
    """Halves a number.

    Args:
        number: The number.
    """
    return str(number // 2)
'''


async def test_functions_of_verl_are_tools_once_the_tools_file_names_them(tmp_path):
    entries = [{"function": f"fns.py->{name}"} for name in ("double", "half")]
    files = {"fns.py": FUNCTIONS, "tools.yaml": json.dumps({"tools": entries})}
    config = config_in(tmp_path, files, tool_config_path="tools.yaml")
    calls = [call("double", number=4), call("half", number=4)]
    t = await run(config, *calls, "8 and 2.")
    assert texts(t) == ["8", "2"]
    assert t.turns[0].tools[0]["function"]["description"] == "Doubles a number."


@pytest.mark.parametrize("given", ['"twice"', "schema={}"])
def test_a_name_or_a_schema_of_such_a_function_is_one_line_before_a_launch(tmp_path, given):
    text = FUNCTIONS.replace("@function_tool()", f"@function_tool({given})")
    tools = {"tools": [{"function": "fns.py->half"}]}
    files = {"fns.py": text, "tools.yaml": json.dumps(tools)}
    with pytest.raises(ConfigError) as error:
        check_classes(config_in(tmp_path, files, tool_config_path="tools.yaml"))
    assert "function_tool takes no name and no schema here" in str(error.value)
    assert "\n" not in str(error.value)


USERS = """
from typing import Any, Optional
from uuid import uuid4

from ajet.compat.verl import BaseInteraction


class Examiner(BaseInteraction):
    def __init__(self, config: dict):
        super().__init__(config)
        self._truths = {}

    async def start_interaction(
        self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs
    ) -> str:
        instance_id = instance_id or str(uuid4())
        self._truths[instance_id] = ground_truth
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs
    ) -> tuple[bool, str, float, dict]:
        said = [each["content"] for each in messages if each["role"] == "assistant"][-1]
        is_right = said == self._truths[instance_id]
        return is_right, "Try again.", float(is_right), {}

    async def calculate_score(self, instance_id: str, **kwargs) -> float:
        return 1.0

    async def finalize_interaction(self, instance_id: str, **kwargs) -> None:
        del self._truths[instance_id]


class OwnBase:
    def __init__(self, config):
        self.name = config["name"]

    async def start_interaction(self, instance_id=None, **kwargs):
        return instance_id

    async def calculate_score(self):
        return 0.25

    async def finalize_interaction(self):
        pass


class Short(OwnBase):
    async def generate_response(self, instance_id, messages, **kwargs):
        return messages[-1]["content"] == "20", "Again.", 0.0, {}


class NoEnd:
    def __init__(self, config):
        pass

    async def generate_response(self, instance_id, messages, **kwargs):
        return True, "", 0.0, {}
"""


def with_user(folder, class_name):
    users = {"interaction": [{"name": "gsm8k", "class_name": class_name, "config": {}}]}
    files = {"users.py": USERS, "user.yaml": json.dumps(users)}
    return config_in(folder, files, None, interaction_config_path="user.yaml")


@pytest.mark.parametrize(
    ("class_name", "says", "reward"),
    [("users.Examiner", "Try again.", 1.0), ("users.Short", "Again.", 0.25)],
)
async def test_an_interaction_of_verl_runs_by_its_methods(tmp_path, class_name, says, reward):
    row = {"extra_info": {"interaction_kwargs": {"name": "gsm8k", "ground_truth": "20"}}}
    t = await run(with_user(tmp_path, class_name), "18", "20", row=row)
    assert texts(t, "user") == [says]
    assert (t.reward, t.output.log_metrics["failed_ends"]) == (reward, 0)


def test_an_interaction_without_its_methods_is_one_line_before_a_launch(tmp_path):
    with pytest.raises(ConfigError) as error:
        check_classes(with_user(tmp_path, "users.NoEnd"))
    assert (
        "NoEnd has no start_interaction and no calculate_score and no finalize_interaction: derive "
        "it from ajet.BaseInteraction"
    ) in str(error.value)
