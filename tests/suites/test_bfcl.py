"""The function-calling suites: rows, how the model is asked, decoding of text, official scoring."""

import json
import math
import sys
from types import ModuleType

import pytest

from ajet.core.errors import ConfigError, DataError
from ajet.core.rollout.request import RolloutRequest
from ajet.suites.bfcl import (
    BfclJudge,
    FunctionCallingAgent,
    as_tools,
    decode_calls,
    read_rows,
    read_tasks,
    system_prompt,
)
from ajet.suites.bfcl_checker import call_problem
from tests.agents.agent_runs import call, config_in
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner
from tests.suites.bfcl_package import AREA, write_bfcl_data


def test_a_category_is_its_own_file_and_not_one_whose_name_ends_alike(bfcl_package):
    write_bfcl_data(bfcl_package / "data", "live_irrelevance", num=5)
    rows = read_rows("irrelevance")
    assert [row["task_id"] for row in rows] == ["irrelevance_0", "irrelevance_1"]
    assert rows[0]["ground_truth"] == []
    with pytest.raises(DataError, match=r"there is no BFCL_v…_multiple\.json"):
        read_rows("multiple")  # there is a parallel_multiple


def test_the_newest_version_of_a_folder_is_read(bfcl_package, tmp_path):
    write_bfcl_data(tmp_path / "own", num=3)
    for folder in (tmp_path / "own", tmp_path / "own/possible_answer"):
        file = folder / "BFCL_v4_simple_python.json"
        (folder / "BFCL_v10_simple_python.json").write_text(file.read_text().split("\n")[0])
    [task] = read_tasks("simple_python", tmp_path / "own")
    assert (task.task_id, task.main_query) == ("simple_python_0", "The area of 0 times 2?")


def test_a_question_without_its_answer_is_one_line(bfcl_package):
    file = bfcl_package / "data/possible_answer/BFCL_v4_simple_python.json"
    file.write_text(file.read_text().splitlines()[0])
    with pytest.raises(DataError, match="row simple_python_1: possible_answer has no such id"):
        read_rows("simple_python")


def test_without_the_package_the_command_that_installs_it_is_said(monkeypatch):
    monkeypatch.setattr("ajet.suites.suite.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="BFCL needs bfcl_eval: pip install --no-deps bfcl-eval"):
        read_rows("simple_python")


def test_functions_become_tools_with_the_types_of_json_schema(bfcl_package):
    [tool] = as_tools([AREA])
    function = tool["function"]
    assert function["name"] == "geometry_area"
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "One side."},
            "b": {
                "type": "number",
                "format": "float",
                "description": "The other. This is a float type value.",
            },
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Labels."},
        },
        "required": ["a", "b"],
    }
    assert AREA["name"] == "geometry.area"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f(a=1)]", [{"f": {"a": 1}}]),
        ("f(a=1)", [{"f": {"a": 1}}]),
        ("`f(a=-1.5, b='x'), g.h()`", [{"f": {"a": -1.5, "b": "x"}}, {"g.h": {}}]),
        ("[f(a=[1, (2, True)], b={'k': None})]", [{"f": {"a": [1, (2, True)], "b": {"k": None}}}]),
        (
            "[f(a=true, b=g(1), c=g(x=1))]",
            [{"f": {"a": "true", "b": "g(1)", "c": {"g": {"x": 1}}}}],
        ),
        ("[f(7, a=2*3+1)]", [{"f": {"a": 7}}]),  # an argument without a name is dropped
        ("[]", []),
        ("[f(a=...)]", [{"f": {"a": "..."}}]),
    ],
)
def test_calls_in_python_are_decoded(text, calls):
    assert decode_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "I cannot help.",
        "[f]",
        "[f(a=1)] is my answer",
        "[f(**x)]",
        "[f(a=9**9**9)]",
        "[f(a=1/0)]",
        "[f(a=1+__import__('os').getpid())]",
        "[f(a=(lambda: 1))]",
        "[" * 5000,
        "x" * 60_000,
    ],
)
def test_text_that_is_not_a_list_of_calls_is_never_executed(text):
    assert decode_calls(text) is None


def test_the_checker_is_loaded_without_the_table_of_handlers(bfcl_package):
    answer = [{"geometry.area": {"a": [3], "b": [2.0]}}]
    right = {"a": 3, "b": 2.0}

    def problem(name, arguments, prompting):
        calls = [{name: arguments}]
        return call_problem("simple_python", [AREA], calls, answer, prompting)

    assert problem("geometry_area", right, "tools") is None
    assert problem("geometry.area", right, "tools") == "wrong_func_name"
    assert problem("geometry.area", right, "text") is None
    assert problem("geometry.area", right | {"a": 4}, "text") == "value_error"
    assert problem("geometry.area", right | {"a": "4"}, "text") == "checker:AttributeError"
    assert "bfcl_eval.constants.model_config" not in sys.modules


async def played(reply, config, family="qwen2_5", category="simple_python"):
    tokenizer = chat_tokenizer(family)
    endpoint = ScriptedEndpoint(tokenizer, lambda prompt, request_id: reply)
    runner = episode_runner(
        FunctionCallingAgent, endpoint, tokenizer, BfclJudge(config), config=config
    )
    task = read_tasks(category, None)[1]
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0]


async def test_a_template_with_tools_is_asked_with_tools_and_its_calls_are_scored(
    bfcl_package, tmp_path
):
    right = await played(call("geometry_area", a=1, b=2.0), config_in(tmp_path))
    assert (right.reward, right.is_success) == (1.0, True)
    assert right.turns[0].tools is not None
    assert "geometry_area" in chat_tokenizer("qwen2_5").decode(right.turns[0].completion.prompt_ids)
    assert right.output.metadata["function_calls"] == [{"geometry_area": {"a": 1, "b": 2.0}}]

    wrong = await played(call("geometry_area", a=2, b=2.0), config_in(tmp_path))
    assert (wrong.reward, wrong.output.metadata["problem"]) == (0.0, "value_error")
    silent = await played("I do not know.", config_in(tmp_path))
    assert (silent.reward, silent.output.metadata["problem"]) == (0.0, "wrong_count")


async def test_a_template_without_tools_gets_the_leaderboards_prompt(bfcl_package, tmp_path):
    t = await played("[geometry.area(a=1, b=2.0)]", config_in(tmp_path), family="llama3")
    assert (t.reward, t.turns[0].tools) == (1.0, None)
    first = t.turns[0].messages[0]
    assert first["role"] == "system"
    assert first["content"].startswith("PERSONA. TASK. FORMAT [f(a=1)]. TURNS. LIST json: [")
    assert "area of a rectangle. Note that the provided function is in Python 3" in first["content"]
    unreadable = await played("The area is 2.", config_in(tmp_path), family="llama3")
    assert unreadable.output.metadata["problem"] == "ast_decoder:decoder_failed"


async def test_irrelevance_is_won_by_making_no_call(bfcl_package, tmp_path):
    silent = await played("No function fits.", config_in(tmp_path), category="irrelevance")
    calling = await played(
        call("geometry_area", a=1, b=2), config_in(tmp_path), category="irrelevance"
    )
    assert (silent.reward, calling.reward) == (1.0, 0.0)


def suite_config(folder, **suite):
    config_in(folder)
    yaml = json.loads((folder / "run.yaml").read_text())
    (folder / "run.yaml").write_text(json.dumps(yaml | {"suite": suite}))
    from ajet.core.config import load_config

    return load_config(folder / "run.yaml")


async def test_a_config_may_ask_for_text_where_the_template_has_tools(bfcl_package, tmp_path):
    t = await played("[geometry.area(a=1, b=2.0)]", suite_config(tmp_path, prompting="text"))
    assert (t.reward, t.turns[0].tools) == (1.0, None)


@pytest.mark.parametrize("suite", [{"prompting": "toolz"}, {"promting": "text"}])
def test_a_misspelt_key_or_value_of_suite_is_one_line(bfcl_package, tmp_path, suite):
    with pytest.raises(ConfigError, match=r"^suite\.\w+: .*; suite has name, data, prompting$"):
        FunctionCallingAgent.check_config(suite_config(tmp_path, **suite))


# --- with the package installed ------------------------------------------------------------------

SIZES = {"simple_python": 400, "multiple": 200, "parallel": 200, "irrelevance": 240}


def reference_calls(row):
    """The calls of a row's answer, with the first value that is allowed for each argument."""
    calls = []
    for answer in row["ground_truth"]:
        [(name, allowed)] = answer.items()
        calls.append({name: {key: _first(of[0]) for key, of in allowed.items() if of[0] != ""}})
    return calls


def _first(value):
    """A value of an answer; inside of one, objects list what is allowed for each of their keys."""
    if isinstance(value, dict):
        return {key: of[0] for key, of in value.items() if of[0] != ""}
    return [_first(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("category", SIZES)
def test_the_official_checker_accepts_the_reference_answers(real_bfcl, category):
    rows = read_rows(category)
    assert len(rows) == SIZES[category]
    if category == "irrelevance":
        return
    problems = {}
    for row in rows:
        written = ", ".join(
            f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
            for calls in reference_calls(row)
            for name, arguments in calls.items()
        )
        decoded = decode_calls(f"[{written}]")
        assert decoded == reference_calls(row)
        problem = call_problem(category, row["function"], decoded, row["ground_truth"], "text")
        if problem:
            problems[row["task_id"]] = problem
    # of one row, "" is the first value allowed for an argument that the function requires
    assert len(problems) <= 1


def test_a_wrong_value_type_or_name_is_refused_by_the_official_checker(real_bfcl):
    row = read_rows("simple_python")[0]  # calculate_triangle_area(base=10, height=5)

    def problem(**arguments):
        calls = [{"calculate_triangle_area": arguments}]
        return call_problem("simple_python", row["function"], calls, row["ground_truth"], "tools")

    assert problem(base=10, height=5) is None
    assert problem(base=10, height=6) == "value_error:others"
    assert problem(base="10", height=5) == "type_error:simple"
    assert problem(base=10) == "simple_function_checker:missing_required"
    assert problem(base=10, height=5, depth=1) == "simple_function_checker:unexpected_param"


def test_the_prompt_and_the_decoder_are_those_of_the_leaderboard(real_bfcl, tmp_path, monkeypatch):
    pytest.importorskip("tenacity")
    pytest.importorskip("filelock")
    monkeypatch.setenv("BFCL_PROJECT_ROOT", str(tmp_path))  # the package makes folders there
    for name, function in (
        ("java", "parse_java_function_call"),
        ("js", "parse_javascript_function_call"),
    ):
        parser = ModuleType(f"bfcl_eval.model_handler.parser.{name}_parser")
        setattr(parser, function, None)  # they need tree_sitter, and read other languages
        monkeypatch.setitem(sys.modules, parser.__name__, parser)
    from bfcl_eval.constants.default_prompts import DEFAULT_SYSTEM_PROMPT_FORMAT
    from bfcl_eval.model_handler.utils import default_decode_ast_prompting, formulate_system_prompt

    row = read_rows("simple_python")[0]
    official = formulate_system_prompt(DEFAULT_SYSTEM_PROMPT_FORMAT, row["function"])
    assert system_prompt(row["function"]) == official
    for text in (
        "[f(a=1)]",
        "f(a=1), g.h(b=-2.5)",
        "```[f(a=[1, 'x'], b=(1, 2), c={'k': [None]})]```",
        "[f(7, a=2*3+1, b=true, c=g(1), d=g(x=1), e=x[0], f=...)]",
    ):
        assert decode_calls(text) == default_decode_ast_prompting(text), text
    for text in (
        "I cannot help.",
        "[f]",
        "[f(a=1)] is my answer",
        "The area (in m2) is 7.",
        "'[f(a=1)]'",
    ):
        with pytest.raises((SyntaxError, AssertionError, AttributeError)):
            default_decode_ast_prompting(text)
        assert decode_calls(text) is None
    assert math.isclose(decode_calls("f(a=1/3)")[0]["f"]["a"], 1 / 3)
