"""A YAML, or a row of data, that is made to harm is refused in one line."""

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, DataError
from ajet.core.task.jsonl import read_jsonl

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


def written(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return file


def test_aliases_that_multiply_the_yaml_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"its aliases .* multiply it to more than 100000 values"):
        load_config(written(tmp_path, f"ajet: {{}}\n{BOMB}"))


def test_a_few_aliases_are_taken(tmp_path):
    text = "mine: {a: &a [1, 2], b: *a}\najet: {model: {path: 'embedded:math'}}\n"
    assert load_config(written(tmp_path, text)).mine.b == [1, 2]


@pytest.mark.parametrize("tag", ["object/apply:os.mkdir", "object/new:os.mkdir"])
def test_a_tag_that_would_run_code_is_refused_and_runs_none(tmp_path, tag):
    text = f"ajet: {{model: {{path: 'embedded:math'}}}}\nmine: !!python/{tag} ['{tmp_path}/made']\n"
    with pytest.raises(ConfigError, match="could not determine a constructor") as caught:
        load_config(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000 + "]" * 5000])
def test_an_override_that_python_cannot_read_is_one_line(tmp_path, value):
    file = written(tmp_path, "ajet: {model: {path: 'embedded:math'}}\n")
    with pytest.raises(ConfigError, match="train_batch_size") as caught:
        load_config(file, [f"ajet.data.train_batch_size={value}"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../escape", "..", ".", "a/b", "a\\b", "a\x00b"])
def test_an_experiment_is_named_by_no_path(tmp_path, name):
    text = f"ajet: {{model: {{path: 'embedded:math'}}, experiment_name: {name!r}}}\n"
    with pytest.raises(ConfigError, match=r"experiment_name|not allowed"):
        load_config(written(tmp_path, text.replace("\\x00", "\\0").replace("'a\\0b'", '"a\\0b"')))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"q": ' + "[" * 20_000 + "]" * 20_000 + "}", "nested too deeply"),
        ('{"q": 1' + "0" * 6000 + "}", "not valid JSON"),
    ],
)
def test_a_row_that_python_cannot_read_is_named_with_its_file_and_line(tmp_path, row, why):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"q": 1}\n' + row + "\n")
    with pytest.raises(DataError, match=f"rows.jsonl:2: .*{why}"):
        read_jsonl(file)
