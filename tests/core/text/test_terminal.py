"""What the console makes of texts. Control characters are in rollout/test_hostile_values.py."""

import io
import os
import signal

import pytest

from ajet.core.text.terminal import Console, can_redraw


def test_a_part_of_an_address_is_no_emoji():
    file = io.StringIO()
    Console(file=file).print("joined the Ray of [fd00:a::1]:6379", markup=False)
    assert file.getvalue() == "joined the Ray of [fd00:a::1]:6379\n"


def test_a_reader_that_is_gone_ends_the_command_as_ctrl_c_does():
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(KeyboardInterrupt), open(writer, "w") as file:  # noqa: PTH123
        Console(file=file).print("more than head reads")
    signal.signal(signal.SIGINT, earlier)


@pytest.fixture
def terminal(monkeypatch):
    """A file that is a terminal, in an environment without a notebook."""
    for name in ("JPY_PARENT_PID", "MPLBACKEND", "FORCE_COLOR", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    reader, writer = os.openpty()
    with open(writer, "w") as file:  # noqa: PTH123
        yield file
    os.close(reader)


def test_a_terminal_is_redrawn(terminal):
    assert can_redraw(Console(file=terminal))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JPY_PARENT_PID", "7"),
        ("MPLBACKEND", "module://matplotlib_inline.backend_inline"),
        ("MPLBACKEND", "inline"),
        ("TERM", "dumb"),
    ],
)
def test_a_cell_of_a_notebook_gets_plain_lines_though_it_is_a_terminal(
    terminal, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    assert not can_redraw(Console(file=terminal))


def test_a_file_gets_plain_lines_also_where_colours_are_asked_for(terminal, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not can_redraw(Console(file=io.StringIO()))
