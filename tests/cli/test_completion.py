"""What a shell shows after Tab."""

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app

SHELLS = ("bash", "zsh", "fish")


def completed(shell, line):
    """The words that the shell is given for the last word of a line."""
    words = line.split(" ")
    variables = {
        "_AJET_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = CliRunner().invoke(app, [], prog_name="ajet", env=variables)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ajet che", {"check"}),
        ("ajet check --conf x.yaml --backbone ", {"debug", "verl", "trinity"}),
        ("ajet --conf x.yaml --backbone t", {"trinity"}),  # without a command: train
        ("ajet --conf x.yaml --backb", {"--backbone"}),
        ("ajet examples math_l", {"math_langchain", "math_langgraph"}),
    ],
)
def test_commands_options_and_values_are_completed(shell, line, words):
    shown = completed(shell, line)
    assert all(word in shown for word in words)
    assert "train" not in shown


@pytest.mark.parametrize(("shell", "shown"), [("bash", ""), ("zsh", "_files"), ("fish", "")])
def test_paths_are_left_to_the_shell(shell, shown):
    assert completed(shell, "ajet --conf tuto").strip() == shown


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_is_shown(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the shell is named
    done = CliRunner().invoke(app, ["--show-completion", shell], prog_name="ajet")
    assert done.exit_code == 0 and f"_AJET_COMPLETE=complete_{shell}" in done.stdout
