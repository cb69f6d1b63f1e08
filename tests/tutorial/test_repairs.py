"""The tutorial of repairs: its tasks are what its script writes, and each can be solved."""

import json
import sys
from types import ModuleType

from ajet.testing import play, tool_call
from tutorial.example_repairs import data

CONF = "tutorial/example_repairs/repairs.yaml"


def failed_tests(function, code, monkeypatch):
    """How many of the function's hidden tests this code fails."""
    module = ModuleType(function.name)
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, function.name, module)
    num_failed = 0
    for given, result in function.cases:
        try:
            exec(f"from {function.name} import *\nassert {function.name}({given}) == {result}", {})
        except (AssertionError, ArithmeticError, NameError):
            num_failed += 1
    return num_failed


def test_each_right_function_passes_its_hidden_tests_and_each_bug_fails_one(monkeypatch):
    for function in data.FUNCTIONS:
        assert failed_tests(function, function.code, monkeypatch) == 0, function.name
        for right, wrong in function.bugs:
            buggy = function.code.replace(right, wrong, 1)
            assert buggy != function.code
            assert failed_tests(function, buggy, monkeypatch), (function.name, wrong)


def test_the_files_hold_the_scripts_tasks_and_no_held_out_function_is_trained():
    names = []
    for name, rows in zip(("train", "test"), data.tasks(), strict=True):
        lines = (data.FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows
        names.append({next(iter(row["files"])) for row in rows})
    assert not names[0] & names[1]


def test_the_agent_repairs_a_held_out_file_with_its_tool_and_the_hidden_tests_pass():
    row = data.tasks()[1][0]
    (path,) = row["files"]
    function = next(each for each in data.FUNCTIONS if f"{each.name}.py" == path)
    replies = [tool_call("write_file", path=path, text=function.code), "done"]
    episode = play(CONF, replies, row, overrides=["ajet.harness.sandbox=none"])
    assert (episode.reward, episode.is_success) == (1.0, True)
    assert episode.turns[1].messages[-1]["content"] == "written"
    assert row["files"][path] in episode.turns[0].messages[1]["content"]
