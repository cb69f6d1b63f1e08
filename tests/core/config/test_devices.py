"""`device_mapping`: a list or ROLL's text, read and never run."""

import pytest

from ajet.core.config import load_config
from ajet.core.config.section import device_list
from ajet.core.errors import ConfigError


@pytest.mark.parametrize(
    ("mapping", "devices"),
    [
        ([0, 3], [0, 3]),
        ("[0, 3]", [0, 3]),
        ("list(range(0,4))", [0, 1, 2, 3]),
        ("list(range(3))", [0, 1, 2]),
        ("range(2, 4)", [2, 3]),
        ("list(range(0, 8, 3))", [0, 3, 6]),
        ("list(range(0,2)) + [5]", [0, 1, 5]),
    ],
)
def test_a_list_and_rolls_text_are_read(mapping, devices):
    assert device_list(mapping) == devices


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ("__import__('os').getpid()", "cannot be read; write a list as"),
        ("list(range(0,8)", "cannot be read"),
        ("range(0,8))", "cannot be read"),
        ("list(range(0,8,0))", "cannot be read"),
        ("list(range(0,9999999999))", "cannot be read"),
        ("[0] * 8", "cannot be read"),
        ("", "cannot be read"),
        ([0, -1], "numbers from 0"),
        ([True], "numbers from 0"),
        (["0"], "numbers from 0"),
        ([], "names no GPU"),
        ("list(range(4,4))", "names no GPU"),
        ("[0,1]+[1]", "names GPU 1 twice"),
    ],
)
def test_anything_else_is_refused_and_never_run(mapping, problem):
    with pytest.raises(ValueError, match=problem):
        device_list(mapping)


def test_a_wrong_mapping_of_a_yaml_is_one_line_with_its_place(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout:\n    device_mapping: eight\n")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value) == (
        f"{path}:4: ajet.rollout.device_mapping: 'eight' cannot be read; write a list as [0, 1] or "
        "a text as list(range(0,8))"
    )


def test_the_text_of_roll_is_a_list_in_the_tree(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "ajet:\n  model: {path: m}\n  trainer_common: {device_mapping: 'list(range(0,2))'}\n"
    )
    assert load_config(path).ajet.trainer_common.device_mapping == [0, 1]
