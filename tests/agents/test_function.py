"""What the model is shown of a Python function, and what the function is called with."""

import datetime
from enum import Enum

import pytest
from pydantic import BaseModel, field_validator

from ajet.core.errors import ConfigError
from ajet.tools.call import as_text
from ajet.tools.function import FunctionTool
from ajet.tools.tool import ToolResponse


def google(city: str, days: int = 1):
    """The weather.

    Longer words.

    Args:
        city: its name
        days (int): how many
            days ahead
    """
    return f"{city} {days}"


def numpy_style(city: str, days: int = 1):
    """The weather.

    Parameters
    ----------
    city : str
        its name
    """


def sphinx(city: str, days: int = 1):
    """The weather.

    :param city: its name
    """


def test_a_schema_comes_from_signature_and_docstring():
    assert FunctionTool(google, None, "here").schema == {
        "type": "function",
        "function": {
            "name": "google",
            "parameters": {
                "properties": {
                    "city": {"description": "its name", "type": "string"},
                    "days": {
                        "default": 1,
                        "description": "how many\ndays ahead",
                        "type": "integer",
                    },
                },
                "required": ["city"],
                "type": "object",
            },
            "description": "The weather.\nLonger words.",
        },
    }


@pytest.mark.parametrize("function", [numpy_style, sphinx])
def test_other_styles_of_docstrings_are_read(function):
    schema = FunctionTool(function, "weather", "here").schema["function"]
    assert schema["name"] == "weather"
    assert schema["description"] == "The weather."
    assert schema["parameters"]["properties"]["city"]["description"] == "its name"


def test_the_sandbox_tool_shows_what_agentscopes_toolkit_shows():
    from agentscope.tool import Toolkit

    from ajet.tools import execute_python_code, run_python

    toolkit = Toolkit()
    toolkit.register_tool_function(execute_python_code)
    [theirs] = toolkit.get_json_schemas()
    ours = FunctionTool(run_python, "execute_python_code", "here").schema
    assert str(ours) == str(theirs)  # the order of keys, too: a template writes them as they stand


class Unit(Enum):
    CELSIUS = "C"


class Place(BaseModel):
    title: str


async def typed(place: Place, day: datetime.date, unit: Unit = Unit.CELSIUS, **more: int):
    return place, day, unit, more


async def test_arguments_get_the_types_of_their_annotations():
    tool = FunctionTool(typed, None, "here")
    given = {"place": {"title": "Oslo"}, "day": "2026-11-21", "extra": 1}
    assert tool.problem(given) is None
    place, day, unit, more = await tool.call(given)
    assert (place.title, day.year, unit, more) == ("Oslo", 2026, Unit.CELSIUS, {"extra": 1})
    assert "title" in str(tool.schema["function"]["parameters"]["$defs"]["Place"]["properties"])
    assert tool.problem({"place": {}, "day": "2026-11-21"}) == "place.title: Field required"


def test_a_function_without_types_is_taken_and_a_broken_annotation_is_one_line():
    def loose(text, times=2):
        return text * times

    assert FunctionTool(loose, None, "here").schema["function"]["parameters"]["required"] == [
        "text"
    ]

    def broken(city: "Nowhere"):  # noqa: F821
        """An annotation that names nothing."""

    with pytest.raises(ConfigError, match=r"here: .*'Nowhere' is not defined"):
        FunctionTool(broken, None, "here")


class AgentScopeLike:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"),
        (None, ""),
        (b"\xff\xc3\xa9", "\ufffdé"),
        (7, "7"),
        ({"n": "é"}, '{"n": "é"}'),
        ({"text": "plain"}, "plain"),
        (ToolResponse("said"), "said"),
        (AgentScopeLike(), "ab"),
        ([datetime.date(2026, 1, 2)], '["2026-01-02"]'),
    ],
)
def test_whatever_a_tool_returns_becomes_text(value, text):
    assert as_text(value) == text


class EvenNumber(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _is_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n


def halve(number: EvenNumber) -> int:
    """Halves a number."""
    return number.n // 2


def test_the_error_of_a_users_argument_check_keeps_its_words():
    tool = FunctionTool(halve, None, "here")
    assert tool.problem({"number": {"n": 3}}) == "number.n: 3 is odd"
