"""A mistake in the user's own reader is one line with its file and line."""

from pathlib import Path

import pytest

import ajet
from ajet.core.config import load_config
from ajet.core.errors import AjetError
from ajet.core.task.reader import BaseTaskReader, make_reader

HEAD = """\
from ajet import BaseTaskReader, Task
class R(BaseTaskReader):
"""
GOOD = """\
    def get_training_tasks(self): return [Task("a", "q"), Task("b", "q")]
    def get_validation_tasks(self): return []
"""


def reader_of(folder: Path, body: str):
    (folder / "rd.py").write_text(HEAD + body)
    (folder / "run.yaml").write_text("ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}")
    return make_reader(load_config(folder / "run.yaml", ["ajet.task_reader.type=rd.py->R"]))


def error_of(folder: Path, body: str, split: str = "training") -> str:
    with pytest.raises(AjetError) as error:
        getattr(reader_of(folder, body), f"get_{split}_tasks")()
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("ajet.task_reader.type: 'rd.py->R': ")
    return text.removeprefix("ajet.task_reader.type: 'rd.py->R': ")


def training(body: str) -> str:
    return f"    def get_training_tasks(self): {body}\n"


def test_the_base_class_is_a_public_name():
    assert ajet.BaseTaskReader is BaseTaskReader


def test_a_reader_without_a_config_of_its_own_is_made_and_has_one(tmp_path):
    reader = reader_of(
        tmp_path,
        "    def __init__(self): self.name = 'a'\n"
        "    def get_training_tasks(self): return [Task(self.name, self.config.ajet.model.path)]\n"
        "    def get_validation_tasks(self): return ()\n",
    )
    (task,) = reader.get_training_tasks()
    assert (task.task_id, task.main_query) == ("a", "m")
    assert reader.get_validation_tasks() == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (training("raise RuntimeError('db\\n down')"), "rd.py:3: RuntimeError: db down"),
        (training("raise SystemExit(0)"), "rd.py:3: it calls sys.exit()"),
        (training("import json; json.loads('{')"), "rd.py:3: JSONDecodeError: "),
        ("    def __init__(self, config): self.rows = config.rows\n", "rd.py:3: AttributeError: "),
        ("    def __init__(self, config, more): ...\n", "rd.py:2: R is made as R(config): "),
        ("    pass\n", "rd.py:2: R does not define get_training_tasks()"),
        (
            "    async def get_training_tasks(self): ...\n",
            "rd.py:3: R.get_training_tasks() is async",
        ),
    ],
)
def test_an_error_in_a_users_reader_is_reported_with_its_line(tmp_path, body, message):
    assert error_of(tmp_path, body).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("None", " gave a NoneType; return a list of ajet.Task"),
        ("(Task(str(i), 'q') for i in range(3))", " gave a generator; return a list of ajet.Task"),
        ("[{'question': 'q'}]", ": number 1 of the list is a dict, not an ajet.Task"),
        ("[Task('a', 'q'), Task(2, 'q')]", ": number 2 of the list has a task_id that is not text"),
        ("[Task('a', None)]", ": number 1 of the list has a main_query that is not text"),
        ("[Task('a', 'q', ['hello'])]", ": number 1 of the list has init_messages that are not a"),
        (
            "[Task('b', 'q'), Task('a', 'q'), Task('a', 'q')]",
            ": numbers 2 and 3 of the list have one task_id 'a'; give each its own",
        ),
        ("[]", " gave an empty list; a run needs training tasks"),
    ],
)
def test_a_users_reader_must_return_a_list_of_different_tasks(tmp_path, given, message):
    place = f"{tmp_path}/rd.py:3: R.get_training_tasks()"
    assert error_of(tmp_path, training(f"return {given}")).startswith(place + message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "rd.py:2: R does not define get_validation_tasks(); it returns a list of ajet.Task"),
        ("    def get_validation_tasks(self): raise KeyError('x')\n", "rd.py:4: KeyError: 'x'"),
    ],
)
def test_the_validation_tasks_are_checked_as_well(tmp_path, body, message):
    body = training("return [Task('a', 'q')]") + body
    assert error_of(tmp_path, body, "validation") == f"{tmp_path}/{message}"


def test_an_ajet_error_of_a_users_reader_keeps_its_words(tmp_path):
    body = training("from ajet.core.errors import DataError; raise DataError('no rows in db')")
    assert error_of(tmp_path, body) == f"{tmp_path}/rd.py:3: no rows in db"


def test_a_method_that_wants_arguments_is_named(tmp_path):
    body = "    def get_training_tasks(self, split): ...\n"
    assert "R.get_training_tasks() missing 1 required" in error_of(tmp_path, body)


def test_a_good_reader_gives_its_tasks(tmp_path):
    reader = reader_of(tmp_path, GOOD)
    assert [task.task_id for task in reader.get_training_tasks()] == ["a", "b"]
    assert reader.get_validation_tasks() == []
