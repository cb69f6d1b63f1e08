"""`bp("TAG")` stops only where its tag is named."""

import os
import subprocess
import sys

import pytest

from ajet import bp
from ajet.core.user_code.breakpoint import debug_tags


@pytest.fixture
def stops(monkeypatch):
    stopped = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(True))
    return stopped


@pytest.mark.parametrize(
    ("named", "count"), [("", 0), ("judge", 0), ("tool", 1), ("judge| tool", 1), ("too", 0)]
)
def test_a_breakpoint_holds_only_where_its_tag_is_named(monkeypatch, stops, named, count):
    monkeypatch.setenv("AJET_DEBUG_TAGS", named)
    bp("tool")
    assert len(stops) == count


def test_without_tags_nothing_stops(monkeypatch, stops):
    monkeypatch.delenv("AJET_DEBUG_TAGS", raising=False)
    bp("")
    assert stops == []


PROGRAM = """
from ajet import bp

def count(number):
    bp("other")
    bp("here")
    return number + 1

print("counted", count(41))
"""


def test_pdb_begins_in_the_callers_frame():
    env = {**os.environ, "AJET_DEBUG_TAGS": "here"}
    env.pop("PYTHONBREAKPOINT", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="p number\ncontinue\n",
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("(Pdb)") == 2 and "(Pdb) 41" in done.stdout
    assert "counted 42" in done.stdout


def test_tags_are_named_as_a_or_b():
    assert debug_tags(" a|b ||a") == ("a", "b")
