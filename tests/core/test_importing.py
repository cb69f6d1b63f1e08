"""The user's classes are found where the config says, and a mistake is one line with its place."""

import subprocess
import sys
from pathlib import Path

import pytest

from ajet.core.errors import ConfigError
from ajet.core.importing import load_object
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
    return load_object(spec, base_dirs=base_dirs, kind=kind, where="ajet.rollout.user_workflow")


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
        "from ajet.core.importing import load_object\n"
        "from ajet.core.judge.judge import BaseJudge\n"
        "spec = 'tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge'\n"
        "print(load_object(spec, base_dirs=[], kind=BaseJudge, where='here').__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "MathAnswerAsJudge\n", done.stderr


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
    assert error_of("workflow.py->NUMBER", a) == f"'NUMBER' in {file} is a int, no class"
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
