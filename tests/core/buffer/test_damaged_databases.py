"""Databases of groups and episodes that are cut short, changed or something else: whoever opens
them says one line that names the file, or works."""

import random
import sqlite3

import pytest

from ajet.core.buffer.buffer import FinishedGroup, GroupBuffer, plan_index
from ajet.core.buffer.journal import Journal
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.errors import CheckpointError
from tests.core.buffer.group_makers import group

PAGE = 4096


def opened(folder):
    return GroupBuffer(f"sqlite:///{folder}/buffer.sqlite", StalenessBound(1, 2, 1, 2), run="r")


def item(number):
    return FinishedGroup(plan_index(1, number), group(number))


def use_buffer(folder):
    buffer = opened(folder)
    try:
        buffer.reopen(1)
        for read in (buffer.in_flight, buffer.known_tasks, buffer.counts, buffer.read_notes):
            read()
        buffer.capacity_left(1)
        buffer.take(1, 2)
        buffer.mark_trained(2)
        buffer.put([item(9)], 0)
        buffer.prune(1)
        buffer.take(2)
    finally:
        buffer.close()


def use_journal(folder):
    journal = Journal(folder / "finished.sqlite", "same")
    journal.reopen({"": 5})
    journal.put(group(9).trajectories[0])
    journal.take("000001-train-0001")
    journal.remove(journal.groups_except(lambda _: False))
    journal.close()


USES = {"buffer.sqlite": use_buffer, "finished.sqlite": use_journal}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The content of both files, each of several pages."""
    folder = tmp_path_factory.mktemp("good")
    buffer, journal = opened(folder), Journal(folder / "finished.sqlite", "same")
    buffer.put([item(number) for number in range(6)], 0, plan="x" * 3000)
    buffer.take(0, 2)
    buffer.mark_trained(1)
    buffer.close()
    journal.reopen({"": 0})
    for number in range(6):
        for trajectory in group(number).trajectories:
            journal.put(trajectory)
    journal.close()
    return {name: (folder / name).read_bytes() for name in USES}


def damages(content):
    yield b""
    for length in (10, 100, 1000, PAGE, len(content) // 2, len(content) - 1, len(content) - PAGE):
        yield content[:length]
    yield random.Random(1).randbytes(len(content))
    for start in range(0, len(content), PAGE):
        for page in (bytes(PAGE), random.Random(start).randbytes(PAGE)):
            yield content[:start] + page + content[start + PAGE :]
    for seed in range(80):
        draw, changed = random.Random(seed), bytearray(content)
        for _ in range(draw.choice([1, 3, 30])):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        yield bytes(changed)


def said(name, folder):
    """The line of the file's user, or None where it works."""
    try:
        USES[name](folder)
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", USES)
def test_a_damaged_file_is_one_line_that_names_it_or_works(good, tmp_path, name):
    lines = []
    for number, content in enumerate(damages(good[name])):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(content)
        lines.append(said(name, folder))
        assert lines[-1] is None or str(folder / name) in lines[-1]
        assert lines[-1] is None or len(lines[-1].splitlines()) == 1
    assert len(lines) > 100 and len([line for line in lines if line]) > 20


def test_a_file_that_cannot_be_opened_says_what_is_lost_without_it(tmp_path):
    (tmp_path / "buffer.sqlite").mkdir()
    assert said("buffer.sqlite", tmp_path) == (
        f"{tmp_path}/buffer.sqlite cannot be used: unable to open database file; fix that, or "
        "move it away, and groups that were finished and not trained are lost"
    )


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("buffer.sqlite", "UPDATE ajet_groups SET version = 'x'", "TypeError"),
        ("buffer.sqlite", "UPDATE ajet_groups SET body = 5", "its groups are of another version"),
        ("finished.sqlite", "UPDATE finished SET body = 'x'", "its groups are of another version"),
        ("finished.sqlite", "UPDATE finished SET body = -1", "its groups are of another version"),
        (
            "finished.sqlite",
            "UPDATE finished SET body = substr(body, 1, 50)",
            "one of its groups is damaged",
        ),
    ],
)
def test_a_value_of_another_kind_is_one_line(good, tmp_path, name, change, reason):
    (tmp_path / name).write_bytes(good[name])
    with sqlite3.connect(tmp_path / name) as connection:
        connection.execute(change)
    connection.close()
    line = said(name, tmp_path)
    assert line is not None and str(tmp_path / name) in line and reason in line
