"""`ajet examples`, outside the repository."""

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, list(args))


def test_examples_are_listed_with_their_titles():
    lines = run("examples").stdout.splitlines()
    assert ["math_agent", "The math agent"] in [line.split(maxsplit=1) for line in lines]


def test_a_copied_example_is_where_the_documentation_has_it(elsewhere):
    assert run("examples", "math_agent", "example_debate").exit_code == 0
    copied = elsewhere / "tutorial" / "example_math_agent"
    assert {"demo.yaml", "workflow.py", "README.md"} <= {path.name for path in copied.iterdir()}
    assert (elsewhere / "tutorial" / "example_debate" / "demo.yaml").is_file()
    assert (elsewhere / "tutorial" / "__init__.py").is_file()


def test_a_copy_is_never_written_over(elsewhere):
    run("examples", "math_agent")
    (elsewhere / "tutorial" / "example_math_agent" / "demo.yaml").write_text("mine")
    again = run("examples", "debate", "math_agent")
    assert again.exit_code == 1 and "move it away" in again.stderr
    assert not (elsewhere / "tutorial" / "example_debate").exists()
    assert (elsewhere / "tutorial" / "example_math_agent" / "demo.yaml").read_text() == "mine"


def test_an_unknown_example_is_one_line_with_those_that_there_are():
    done = run("examples", "maths")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "no maths; there are cluster, countdown" in done.stderr


def test_a_config_of_an_example_that_is_not_copied_says_how_to_copy_it():
    done = run("check", "--conf", "tutorial/example_debate/demo.yaml")
    assert done.exit_code == 1
    assert done.stderr.rstrip().endswith("copy the example: ajet examples debate [AJ-CFG-001]")
