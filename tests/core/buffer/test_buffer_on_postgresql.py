"""The buffer's claims once more, on the PostgreSQL whose address is in AJET_TEST_POSTGRESQL:

AJET_TEST_POSTGRESQL=postgresql+psycopg://me:password@localhost/scratch pytest -k postgresql
"""

import inspect
import os
import threading

import pytest

from ajet.core.buffer.buffer import ATTEMPT, AttemptOver, GroupBuffer, InFlight, plan_index
from tests.core.buffer import test_buffer as claims

URL = os.environ.get("AJET_TEST_POSTGRESQL")
pytestmark = pytest.mark.skipif(URL is None, reason="AJET_TEST_POSTGRESQL names no database")
OF_SQLITE = ("on_postgresql", "an_address", "breaks", "a_priority_of", "has_locked")
CLAIMS = [
    function
    for name, function in inspect.getmembers(claims, inspect.isfunction)
    if name.startswith("test_") and not any(word in name for word in OF_SQLITE)
]


@pytest.fixture(autouse=True)
def empty():
    for run in ("", "a", "b"):
        buffer = GroupBuffer(URL, claims.ONE_AHEAD, run=run)
        buffer.clear()
        buffer.close()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_buffer_behaves_the_same_on_postgresql(claim, monkeypatch, tmp_path):
    class Fresh(GroupBuffer):
        """A database in memory is empty when it is opened."""

        def __init__(self, url, *arguments, **options):
            super().__init__(URL, *arguments, **options)
            if url == claims.MEMORY:
                self.clear()

    monkeypatch.setattr(claims, "GroupBuffer", Fresh)
    fixtures = inspect.signature(claim).parameters
    claim(**({"tmp_path": tmp_path} if "tmp_path" in fixtures else {}))


def test_no_attempt_begins_while_an_explorer_of_the_one_before_puts_something():
    """The note is locked from the check to the end of the transaction."""
    trainer, explorer = (GroupBuffer(URL, claims.ONE_AHEAD) for _ in range(2))
    trainer.reopen(0, **{ATTEMPT: "first"})
    explorer.attempt = "first"
    checked, reopened = threading.Event(), threading.Event()
    check = explorer._check_attempt

    def check_and_wait(db):
        check(db)
        checked.set()
        assert not reopened.wait(0.5)  # the trainer has to wait

    explorer._check_attempt = check_and_wait
    begun = [InFlight(plan_index(1, 0), 0, 0)]
    putting = threading.Thread(target=lambda: explorer.begin(begun))
    putting.start()
    checked.wait(5)
    trainer.reopen(0, **{ATTEMPT: "second"})
    reopened.set()
    putting.join(5)
    assert len(trainer.in_flight()) == 1
    explorer._check_attempt = check
    with pytest.raises(AttemptOver):
        explorer.begin(begun)


def test_a_group_that_is_being_put_while_the_last_step_ends_is_recorded_or_refused():
    """Neither is in between: the trainer's version is locked until the group is stored."""
    trainer, explorer = (GroupBuffer(URL, claims.ONE_AHEAD) for _ in range(2))
    trainer.reopen(0)
    read, marked = threading.Event(), threading.Event()
    locked = explorer._locked_trained

    def read_and_wait(db):
        found = locked(db)
        read.set()
        assert not marked.wait(0.5)  # the trainer has to wait
        return found

    explorer._locked_trained = read_and_wait
    putting = threading.Thread(target=lambda: explorer.put([claims.item(0)], 0, last_step=1))
    putting.start()
    assert read.wait(5)
    assert claims.numbers(trainer.mark_trained(1, is_last=True)) == [0]
    marked.set()
    putting.join(5)

    explorer._locked_trained = locked
    write, stored = trainer._write_notes, []

    def write_and_wait(db, notes):
        write(db, notes)
        putting.start()
        putting.join(0.5)  # the explorer has to wait
        assert stored == []

    trainer._write_notes = write_and_wait
    late = [claims.item(1)]
    putting = threading.Thread(target=lambda: stored.append(explorer.put(late, 0, last_step=2)))
    assert trainer.mark_trained(2, is_last=True) == []
    putting.join(5)
    assert stored == [False]
