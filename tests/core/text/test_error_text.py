"""An exception as one line."""

import json

import pytest

from ajet.core.text.error_text import one_line, user_traceback
from ajet.core.text.install import install_command


def test_a_missing_package_of_an_extra_is_said_with_its_command():
    error = ModuleNotFoundError("No module named 'agentscope'", name="agentscope.agent")
    assert one_line(error) == (
        f"ModuleNotFoundError: No module named 'agentscope': {install_command('agentscope')}"
    )
    other = ModuleNotFoundError("No module named 'no_such_lib'", name="no_such_lib")
    assert one_line(other) == "ModuleNotFoundError: No module named 'no_such_lib'"


async def chat():
    return {"content": "4"}


def attribute(reply):
    return reply.text


def item(reply):
    return reply["content"]


@pytest.mark.parametrize("use", [attribute, item, len, json.loads])
def test_a_forgotten_await_is_said_where_the_coroutine_is_used_as_its_result(use):
    reply = chat()
    with pytest.raises((AttributeError, TypeError)) as caught:
        use(reply)
    reply.close()
    advice = "chat() was not awaited: write await before the call"
    assert advice not in one_line(caught.value), "the coroutine has ended"

    reply = chat()
    with pytest.raises((AttributeError, TypeError)) as caught:
        use(reply)
    assert advice in one_line(caught.value)
    assert (user_traceback(caught.value) or "").splitlines()[-1] == advice
    reply.close()


def test_an_error_that_is_not_about_a_coroutine_has_no_advice_about_one():
    with pytest.raises(AttributeError) as caught:
        attribute("4")
    assert "await" not in one_line(caught.value)
