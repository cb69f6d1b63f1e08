"""The user's classes are found where the config says, and a mistake is one line with its place."""

import subprocess
import sys
from pathlib import Path

import pytest

from ajet.core.errors import ConfigError
from ajet.core.user_code.importing import (
    construct,
    load_object,
    require_method,
    require_no_arguments,
)
from ajet.core.workflow.workflow import Workflow

FLOW = "from ajet import Workflow\nclass Flow(Workflow):\n    name = {name!r}\n"


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch, tmp_path):
    """Leaves no module and no folder of a test behind; the current folder is empty."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(spec: str, *base_dirs: Path, kind: type = Workflow) -> type:
    return load_object(spec, base_dirs=base_dirs, base=kind, location="ajet.rollout.user_workflow")


def error_of(spec: str, *base_dirs: Path) -> str:
    with pytest.raises(ConfigError) as error:
        load(spec, *base_dirs)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"ajet.rollout.user_workflow: {spec!r}: ")
    return message.split(f"{spec!r}: ", 1)[1]


def test_a_file_is_found_in_the_yamls_folder_first_then_in_the_current_one(tmp_path):
    write(tmp_path / "a" / "workflow.py", FLOW.format(name="beside the yaml"))
    write(tmp_path / "cwd" / "workflow.py", FLOW.format(name="current folder"))
    write(tmp_path / "cwd" / "math_agent" / "flow.py", FLOW.format(name="from the project"))
    assert load("workflow.py->Flow", tmp_path / "a").name == "beside the yaml"
    assert load("workflow.py->Flow").name == "current folder"
    assert load("math_agent/flow.py->Flow", tmp_path / "a").name == "from the project"
    assert load(f"{tmp_path}/a/workflow.py -> Flow").name == "beside the yaml"


def test_two_files_named_workflow_are_two_modules_with_their_own_neighbours(tmp_path):
    for folder in ("a", "b"):
        neighbour = f"from {folder}_helper import NAME\n"
        write(tmp_path / folder / f"{folder}_helper.py", f"NAME = {folder!r}\n")
        flow = FLOW.format(name="x").replace("'x'", "NAME")
        write(tmp_path / folder / "workflow.py", neighbour + flow)
    first, second = (load("workflow.py->Flow", tmp_path / folder) for folder in "ab")
    assert (first.name, second.name) == ("a", "b")
    assert first.__module__ != second.__module__
    assert load("workflow.py->Flow", tmp_path / "a") is first


def test_a_file_next_to_the_workflow_hides_no_library_after_loading(tmp_path):
    write(tmp_path / "a" / "colorsys.py", "MINE = True\n")
    write(tmp_path / "a" / "workflow.py", FLOW.format(name="x"))
    load("workflow.py->Flow", tmp_path / "a")
    sys.modules.pop("colorsys", None)
    import colorsys

    assert not hasattr(colorsys, "MINE")


def test_a_neighbour_can_be_imported_while_the_workflow_runs(tmp_path):
    write(tmp_path / "a" / "late_neighbour.py", "VALUE = 5\n")
    late = (
        "    def late(self):\n        import late_neighbour\n        return late_neighbour.VALUE\n"
    )
    write(tmp_path / "a" / "workflow.py", FLOW.format(name="x") + late)
    assert load("workflow.py->Flow", tmp_path / "a")().late() == 5


def test_a_module_is_imported_from_the_project(tmp_path):
    write(tmp_path / "p" / "agents_x" / "flow.py", FLOW.format(name="module"))
    assert load("agents_x.flow->Flow", tmp_path / "p").name == "module"


@pytest.mark.parametrize("own", [None, "tutorial/__init__.py", "tutorial/mine.py"])
def test_the_tutorials_judge_is_found_whatever_the_current_folder_holds(tmp_path, own):
    if own:
        write(tmp_path / "cwd" / own, "")
    code = (
        "from ajet.core.user_code.importing import load_object\n"
        "from ajet.core.judge.judge import BaseJudge\n"
        "spec = 'tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge'\n"
        "print(load_object(spec, base_dirs=[], base=BaseJudge, location='here').__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "MathAnswerAsJudge\n", done.stderr


def test_an_example_may_import_another_one_that_is_in_the_package_alone(tmp_path):
    write(tmp_path / "cwd" / "tutorial" / "__init__.py", "")
    own = "from tutorial.example_math_agent.workflow import SYSTEM_PROMPT\n" + FLOW.format(name="x")
    write(tmp_path / "cwd" / "tutorial" / "example_own" / "flow.py", own)
    code = (
        "from ajet.core.user_code.importing import load_object\n"
        "from ajet import Workflow\n"
        "spec = 'tutorial.example_own.flow->Flow'\n"
        "print(load_object(spec, base_dirs=[], base=Workflow, location='here').__name__)\n"
        "import sys; print(sys.modules['tutorial.example_math_agent'].__spec__.origin)\n"
    )
    command = [sys.executable, "-c", code]
    cwd = tmp_path / "cwd"
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.stdout.startswith("Flow\n"), done.stderr
    assert str(tmp_path) not in done.stdout


def test_a_users_own_tutorial_folder_comes_before_the_projects(tmp_path):
    write(tmp_path / "cwd" / "tutorial" / "own_flow.py", FLOW.format(name="mine"))
    assert load("tutorial.own_flow->Flow").name == "mine"


def test_mistakes_are_one_line_with_their_place(tmp_path):
    a = tmp_path / "a"
    file = write(a / "workflow.py", FLOW.format(name="x") + "NUMBER = 3\nclass Other: pass\n")
    assert "no such file; looked for " in error_of("flow.py->Flow", a)
    assert f"{a}/flow.py" in error_of("flow.py->Flow", a)
    assert error_of("workflow.py->Flo", a) == f"{file} has no class 'Flo'; did you mean 'Flow'?"
    assert error_of("workflow.py->Xyz", a) == f"{file} has no class 'Xyz'; it has Flow, Other"
    assert error_of("workflow.py->NUMBER", a) == f"'NUMBER' in {file} is a int, not a class"
    judge = write(a / "judge.py", "def judge(task, output): return 1.0\n")
    assert error_of("judge.py->judge", a) == (
        f"'judge' in {judge} is a function, not a class; write a class, derived from "
        "ajet.Workflow, "
        "that calls it"
    )
    assert error_of("workflow.py->Other", a) == (
        f"{file}:5: Other is not a Workflow; derive it from ajet.Workflow"
    )
    assert error_of("workflow.py", a) == "write file.py->Class or package.module->Class"
    assert "no module 'no_such_package'; looked in" in error_of("no_such_package.x->Y", a)
    assert "pass --project-dir" in error_of("no_such_package.x->Y", a)


BROKEN = {
    "class Flow(:\n": "syntax error: invalid syntax",
    "\nimport no_such_library\n": "it imports 'no_such_library', which is not installed",
    "\nfrom ajet import NoSuchName\n": "ImportError: ",
    "\n1 / 0\n": "ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("text", BROKEN, ids=BROKEN.get)
def test_a_file_that_does_not_load_names_the_line(tmp_path, text):
    file = write(tmp_path / "a" / "workflow.py", text)
    line = 1 if text.startswith("class") else 2
    message = error_of("workflow.py->Flow", tmp_path / "a")
    assert message.startswith(f"{file}:{line}: {BROKEN[text]}")


def test_a_file_that_was_mended_loads(tmp_path):
    file = write(tmp_path / "a" / "workflow.py", "1 / 0\n")
    error_of("workflow.py->Flow", tmp_path / "a")
    file.write_text(FLOW.format(name="mended now"))
    assert load("workflow.py->Flow", tmp_path / "a").name == "mended now"


LEAVES = 'it calls sys.exit() while it loads; put that under if __name__ == "__main__"'


@pytest.mark.parametrize("call", ["sys.exit()", "sys.exit(3)", "exit(0)", "main()"])
def test_a_file_that_exits_as_it_loads_names_the_line(tmp_path, call):
    text = "import argparse, sys\ndef main(): sys.exit()\n" + call + "\n"
    file = write(tmp_path / "a" / "workflow.py", text)
    line = 2 if call == "main()" else 3
    assert error_of("workflow.py->Flow", tmp_path / "a") == f"{file}:{line}: {LEAVES}"


def test_arguments_that_a_file_parses_as_it_loads_name_the_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ajet", "check", "--conf", "x.yaml"])
    text = "import argparse\nargparse.ArgumentParser().parse_args()\n"
    file = write(tmp_path / "a" / "workflow.py", text)
    assert error_of("workflow.py->Flow", tmp_path / "a") == f"{file}:2: {LEAVES}"


def test_an_error_inside_a_library_names_the_users_line(tmp_path):
    file = write(tmp_path / "a" / "workflow.py", "import json\njson.loads('{')\n")
    message = error_of("workflow.py->Flow", tmp_path / "a")
    assert message.startswith(f"{file}:2: JSONDecodeError: Expecting property name")


@pytest.mark.parametrize("text", [b"\0", b"\xff\xfe"])
def test_a_file_that_is_no_text_is_a_syntax_error(tmp_path, text):
    write(tmp_path / "a" / "workflow.py", "").write_bytes(text)
    message = error_of("workflow.py->Flow", tmp_path / "a")
    assert "workflow.py" in message and ": syntax error: " in message and "None" not in message


NO_WORKFLOWS = {
    "torch->Tensor": "Tensor is not a Workflow; derive it from ajet.Workflow",
    "nt.py->Point": "Point is not a Workflow; derive it from ajet.Workflow",
    "sys->flags": "'flags' in sys is a flags, not a class",
}


@pytest.mark.parametrize("spec", NO_WORKFLOWS)
def test_a_class_without_lines_of_its_own_is_no_workflow_either(tmp_path, spec):
    named = "from collections import namedtuple\nPoint = namedtuple('Point', 'x')\n"
    write(tmp_path / "a" / "nt.py", named)
    message = error_of(spec, tmp_path / "a")
    assert message.endswith(NO_WORKFLOWS[spec]) and "ajet_user" not in message


HELPER_FLOW = """
from ajet import Workflow
{imports}
class Flow(Workflow):
    name = NAME
    def later(self): return {later}
"""
IMPORTS = {
    "helper.py": ("import helper; NAME = helper.NAME", "helper.NAME"),
    "lib/__init__.py": ("from lib import NAME", "NAME"),
    "lib/names.py": ("import lib.names; NAME = lib.names.NAME", "lib.names.NAME"),
    "lib/own/names.py": ("from lib.own import names; NAME = names.NAME", "names.NAME"),
}


@pytest.mark.parametrize("neighbour", IMPORTS)
def test_two_folders_with_a_neighbour_of_one_name_get_each_their_own(tmp_path, neighbour):
    imports, later = IMPORTS[neighbour]
    for folder in ("a", "b"):
        write(tmp_path / folder / neighbour, f"NAME = {folder!r}\n")
        text = HELPER_FLOW.format(imports=imports, later=later)
        for flow in ("workflow.py", "again.py"):
            write(tmp_path / folder / flow, text)
    first, second = (load("workflow.py->Flow", tmp_path / folder) for folder in "ab")
    assert (first.name, second.name) == ("a", "b")
    assert (first().later(), second().later()) == ("a", "b")
    assert load("again.py->Flow", tmp_path / "a").name == "a"


def test_a_neighbour_is_one_module_for_all_files_of_its_folder(tmp_path):
    for folder in ("a", "b"):
        write(tmp_path / folder / "helper.py", "class Shared: pass\n")
        for flow in ("one.py", "two.py"):
            text = "from helper import Shared\n" + FLOW.format(name="x") + "    shared = Shared\n"
            write(tmp_path / folder / flow, text)
    one = load("one.py->Flow", tmp_path / "a")
    other = load("one.py->Flow", tmp_path / "b")
    two = load("two.py->Flow", tmp_path / "a")
    assert one.shared is two.shared and one.shared is not other.shared


def test_a_neighbour_hides_no_library_that_is_imported_already(tmp_path):
    import json

    write(tmp_path / "a" / "json.py", "MINE = True\n")
    write(tmp_path / "a" / "ajet.py", "MINE = True\n")
    write(tmp_path / "a" / "workflow.py", FLOW.format(name="x"))
    load("workflow.py->Flow", tmp_path / "a")
    assert sys.modules["json"] is json and not hasattr(sys.modules["ajet"], "MINE")


class Plain:
    def __init__(self, config=None): self.config = config  # fmt: skip


class TakesNothing:
    def __init__(self): pass  # fmt: skip


class TakesTwo:
    def __init__(self, config, key): pass  # fmt: skip


class Raises:
    def __init__(self, config): raise RuntimeError("no\nkey")  # fmt: skip


class Exits:
    def __init__(self, config): sys.exit(3)  # fmt: skip


def line_of(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{__file__}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_an_object_is_made_with_the_config_or_without():
    assert construct(Plain, 7, "ajet.x").config == 7
    assert isinstance(construct(TakesNothing, 7, "ajet.x"), TakesNothing)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TakesTwo, f"{line_of('class TakesTwo')}: TakesTwo is made as TakesTwo(config): give"),
        (Raises, f"{line_of('raise RuntimeError')}: RuntimeError: no key"),
        (Exits, f"{line_of('sys.exit(3)  # fmt')}: it calls sys.exit()"),
    ],
)
def test_an_object_that_cannot_be_made_is_one_line_with_the_users_place(kind, message):
    with pytest.raises(ConfigError) as error:
        construct(kind, 7, "ajet.x")
    assert str(error.value).startswith(f"ajet.x: {message}") and "\n" not in str(error.value)


class Base:
    def act(self, task, tuner): raise NotImplementedError  # fmt: skip


class Acts(Base):
    def act(self, task, tuner, extra=1): pass  # fmt: skip


class ActsOnAnything(Base):
    def act(self, *given): pass  # fmt: skip


class ActsAlone(Base):
    @staticmethod
    def act(task, tuner): pass  # fmt: skip


class DoesNotAct(Base):
    pass


class ActsOnOne(Base):
    def act(self, task): pass  # fmt: skip


class ActsOnThree(Base):
    def act(self, task, tuner, extra): pass  # fmt: skip


class IsNoMethod(Base):
    act = 3


@pytest.mark.parametrize("kind", [Acts, ActsOnAnything, ActsAlone])
def test_a_method_that_takes_the_arguments_passes(kind):
    require_method(kind, "act", Base, ("task", "tuner"), "ajet.x")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Base, "names Base itself: name your class derived from it"),
        (DoesNotAct, "DoesNotAct does not define act(self, task, tuner)"),
        (ActsOnOne, "ActsOnOne.act cannot be called with (task, tuner): write act(self, task, "),
        (ActsOnThree, "ActsOnThree.act cannot be called with (task, tuner): write act(self, "),
        (IsNoMethod, "IsNoMethod.act cannot be called with (task, tuner): write act(self, task"),
    ],
)
def test_a_method_that_cannot_be_called_is_one_line_with_the_classs_place(kind, message):
    place = "" if kind is Base else f"{line_of(f'class {kind.__name__}(')}: "
    with pytest.raises(ConfigError) as error:
        require_method(kind, "act", Base, ("task", "tuner"), "ajet.x")
    assert str(error.value).startswith(f"ajet.x: {place}{message}")


def test_a_class_made_without_arguments_may_not_need_one():
    require_no_arguments(TakesNothing, "ajet.x")
    with pytest.raises(ConfigError, match=r"Raises is made as Raises\(\): give the arguments of"):
        require_no_arguments(Raises, "ajet.x")
