"""An exception as one line."""

from ajet.core.text.error_text import one_line


def test_a_missing_package_of_an_extra_is_said_with_its_command():
    error = ModuleNotFoundError("No module named 'agentscope'", name="agentscope.agent")
    assert one_line(error) == (
        "ModuleNotFoundError: No module named 'agentscope': pip install 'ajet[agentscope]'"
    )
    other = ModuleNotFoundError("No module named 'no_such_lib'", name="no_such_lib")
    assert one_line(other) == "ModuleNotFoundError: No module named 'no_such_lib'"
