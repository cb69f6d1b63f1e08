"""Groups between an explorer and a trainer, in a database."""

import sqlite3
import threading
from contextlib import closing

import pytest
from sqlalchemy.dialects import postgresql, sqlite

from ajet.core.buffer.buffer import (
    MEMORY,
    AttemptOver,
    FinishedGroup,
    GroupBuffer,
    InFlight,
    batch_note,
    plan_index,
)
from ajet.core.buffer.priority import PRIORITIES, priority, priority_named
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.buffer.tables import redacted
from ajet.core.errors import CheckpointError, ConfigError
from tests.core.buffer.group_makers import group

ONE_AHEAD = StalenessBound(1, 2, 1, 2)


def file_buffer(folder, bound=ONE_AHEAD, **options):
    return GroupBuffer(f"sqlite:///{folder}/buffer.sqlite", bound, **options)


def item(number, version=0, step=1, counts=True, **more):
    return FinishedGroup(
        plan_index(step, number), group(number, version, step=step, **more), (), counts
    )


def numbers(items):
    return [each.group.number for each in items]


def test_groups_are_taken_in_the_order_of_the_plan():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    for number in (3, 0, 2, 1):
        buffer.put([item(number)], 0)
    assert numbers(buffer.take(0, 2).items) == [0, 1]
    assert numbers(buffer.take(1, 2).items) == [2, 3]


def test_nothing_is_taken_before_there_is_a_batch():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(0)], 0)
    assert buffer.take(0, 2) is None
    assert numbers(buffer.take(0).items) == [0]  # without a number: what there is


def test_too_old_groups_expire_and_are_returned_with_a_reason():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(0, 0), item(1, 1), item(2, 1), item(3, 2)], 0)
    taken = buffer.take(2, 2)
    assert (numbers(taken.items), numbers(taken.expired)) == ([1, 2], [0])
    assert buffer.take(2, 1).expired == taken.expired  # of the same step
    assert buffer.counts()["expired"] == 1


def test_the_oldest_token_of_a_group_counts_and_not_its_newest():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(0, 0, newest=2), item(1, 2, newest=2)], 2)
    assert numbers(buffer.take(2, 1).items) == [1]


def test_a_group_that_a_selection_left_out_fills_no_place():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(0, counts=False), item(1), item(2)], 0)
    taken = buffer.take(0, 2)
    assert (numbers(taken.items), numbers(taken.left_out)) == ([1, 2], [0])
    assert numbers(taken.all) == [0, 1, 2]


def test_the_baselines_of_a_group_come_with_it():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    made = FinishedGroup(plan_index(1, 0), group(0), (group(0, rewards=(0.5,)),))
    buffer.put([made], 0)
    assert buffer.take(0, 1).items == [made]


def test_a_step_waits_for_a_group_whose_last_step_it_is():
    buffer = GroupBuffer(MEMORY, StalenessBound(1, 1, 1, 1))
    buffer.begin([InFlight(plan_index(1, 0), 7, 0), InFlight(plan_index(2, 0), 8, 0)])
    buffer.put([item(0, 0, step=2)], 0)
    assert numbers(buffer.take(0, 1).items) == [0]  # the first may still come at version 1
    buffer.mark_trained(1)
    buffer.begin([InFlight(plan_index(3, 0), 9, 1)])
    buffer.put([item(0, 1, step=3)], 1)
    assert buffer.take(1, 1) is None
    buffer.put([item(0, 0, step=1)], 0)
    assert buffer.take(1, 1).items[0].index == plan_index(1, 0)


def test_room_is_what_the_trainer_can_train_in_time():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    assert buffer.capacity_left(0) == 4
    buffer.begin([InFlight(plan_index(1, n), n, 0) for n in range(4)])
    assert buffer.capacity_left(0) == 0
    buffer.put([item(0), item(1)], 0)
    buffer.take(0, 2)
    assert buffer.capacity_left(0) == 0  # the trainer has them, and is still at 0
    buffer.mark_trained(1)
    assert buffer.capacity_left(1) == 2
    assert buffer.capacity_left(1, last=2) == 0  # the last step's groups run already


def test_a_full_buffer_holds_the_explorer_back():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD, capacity=3)
    assert buffer.capacity_left(0) == 3
    buffer.put([item(0), item(1), item(2)], 0)
    assert buffer.capacity_left(0) == 0


def test_a_buffer_that_cannot_hold_a_step_is_refused():
    with pytest.raises(ConfigError, match="capacity=1"):
        GroupBuffer(MEMORY, ONE_AHEAD, capacity=1)


def test_fresh_groups_come_before_those_that_were_trained_already():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD, max_reuse=2)
    buffer.put([item(0), item(1), item(2)], 0)
    assert numbers(buffer.take(0, 2).items) == [0, 1]
    buffer.mark_trained(1)
    assert numbers(buffer.take(1, 2).items) == [0, 2]
    buffer.mark_trained(2)
    assert buffer.counts() == {"ready": 2, "trained": 1}  # two have a use left
    assert buffer.take(2, 2) is None  # and are too old for it
    assert buffer.counts() == {"trained": 3}


def test_priority_orders_what_waits():
    for name, expected in (("oldest", [0, 1]), ("newest", [1, 2]), ("spread", [0, 2])):
        buffer = GroupBuffer(MEMORY, ONE_AHEAD, priority=PRIORITIES[name])
        buffer.put([item(0, rewards=(0.0, 2.0)), item(1, rewards=(1.0, 1.0)), item(2)], 0)
        assert numbers(buffer.take(0, 2).items) == expected, name


def test_a_priority_of_ones_own_is_known_by_its_name():
    @priority("odd first")
    def odd_first(place, group):
        return place % 2

    assert priority_named("odd first") is odd_first
    del PRIORITIES["odd first"]
    with pytest.raises(ConfigError, match="newest, oldest, spread"):
        priority_named("odd first")


def test_groups_that_were_taken_but_not_trained_are_taken_again_after_a_restart(tmp_path):
    first = file_buffer(tmp_path)
    first.put([item(0), item(1)], 0)
    first.begin([InFlight(plan_index(2, 0), 5, 0)])
    assert numbers(first.take(0, 2).items) == [0, 1]
    first.close()  # killed
    again = file_buffer(tmp_path)
    assert again.reopen(0) == 0
    assert again.in_flight() == [InFlight(plan_index(2, 0), 5, 0)]
    assert numbers(again.take(0, 2).items) == [0, 1]


def test_steps_after_the_checkpoint_are_undone_and_those_before_stay_done(tmp_path):
    first = file_buffer(tmp_path)
    first.put([item(n, 0, step=1) for n in range(2)], 0)
    first.take(0, 2), first.mark_trained(1)  # the checkpoint is of step 1
    first.put([item(n, 1, step=2) for n in range(2)], 1)
    first.take(1, 2), first.mark_trained(2)
    first.put([item(0, 0, step=3)], 0)
    assert first.take(2) is None  # it is too old at version 2
    first.close()
    again = file_buffer(tmp_path)
    again.reopen(1)
    assert again.counts() == {"trained": 2, "ready": 3}
    taken = again.take(1)  # at version 1 it is not
    assert [each.index for each in taken.items] == [
        plan_index(2, 0),
        plan_index(2, 1),
        plan_index(3, 0),
    ]


def test_tokens_of_lost_updates_count_as_older_than_they_were(tmp_path):
    bound = StalenessBound(2, 1, 1, 2)
    first = file_buffer(tmp_path, bound)
    # The checkpoint is of step 3. Tokens of the lost version 4 are one update beyond it, so they
    # are as far from version 3 as those of version 2; those of version 6 are three away.
    first.put([item(0, 4), item(1, 6)], 4)
    first.close()
    again = file_buffer(tmp_path, bound)
    again.reopen(3)
    taken = again.take(3, 1)
    assert taken is not None and numbers(taken.items) == [0] and numbers(taken.expired) == [1]
    again.reopen(3)
    assert again.take(5, 1) is None  # 5 - 2 is more than 2
    assert again.counts() == {"expired": 2}


def test_the_reason_of_a_group_that_is_too_old_says_whether_updates_were_lost():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(n, 0, step=2) for n in range(2)] + [item(0, 2, step=4)], 2)
    buffer.put([item(0, 0, step=5)], 0)
    buffer.reopen(1)  # version 2 is lost: its tokens count as those of version 0
    assert numbers(buffer.take(1, 2).items) == [0, 1]
    buffer.put([item(n, 2, step=6) for n in range(2)], 2)
    lost, old = buffer.take(2, 2).expired
    age = "more than 1 updates old (trinity.max_staleness)"
    assert buffer.expired_reason(old.group, 2) == f"its oldest token got {age}"
    assert buffer.expired_reason(lost.group, 2) == (
        f"updates that sampled it are lost with an earlier attempt: it counts as {age}"
    )


def test_a_group_that_no_step_can_train_any_more_is_recorded_with_the_next():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(n, 3, step=4) for n in range(2)], 3)
    assert buffer.reopen(1) == 0  # 3 is two updates beyond 1: as old as -1
    buffer.put([item(n, 1, step=2) for n in range(2)], 1)
    taken = buffer.take(1, 2)
    assert taken is not None
    assert [each.index for each in taken.expired] == [plan_index(4, 0), plan_index(4, 1)]


def test_in_turns_a_batch_of_lost_updates_is_played_again():
    buffer = GroupBuffer(MEMORY, StalenessBound(0, 2))
    buffer.put([item(n, 1, step=2) for n in range(2)], 1)
    buffer.put([item(n, 2, step=3) for n in range(2)], 2)
    assert buffer.reopen(1) == 2
    assert set(buffer.known_tasks()) == {plan_index(2, 0), plan_index(2, 1)}
    buffer.put([item(n, 2, step=3) for n in range(2)], 2)
    taken = buffer.take(2)
    assert taken is not None and [each.lost_after for each in taken.items] == [None, None]


def test_what_the_last_step_leaves_is_taken_for_the_record():
    """Step 2 of a lost attempt let a group expire, and two more began for steps 2 and 3."""
    buffer = GroupBuffer(MEMORY, StalenessBound(1, 1, 1, 1))
    buffer.put([item(0, 0, step=2)], 0)
    assert buffer.take(2, 1) is None and buffer.counts() == {"expired": 1}
    buffer.put([item(0, 1, step=3), item(0, 1, step=4)], 1)
    buffer.reopen(1)
    first = buffer.take(1, 1)
    assert first is not None and [each.index for each in first.items] == [plan_index(2, 0)]
    buffer.mark_trained(2)
    for _ in range(2):  # the second time for a run that was killed in its last step
        last = buffer.take(2, 1, is_last=True)
        assert last is not None and [each.index for each in last.items] == [plan_index(3, 0)]
        assert [each.index for each in last.surplus] == [plan_index(4, 0)]
        assert last.expired == [] and [each.index for each in last.all] == [
            plan_index(3, 0),
            plan_index(4, 0),
        ]
        buffer.reopen(2)


def test_what_ends_during_the_last_update_is_returned_for_the_record_and_nothing_later():
    """Three groups begin for a last step that takes one: one ends during its update, one later."""
    buffer = GroupBuffer(MEMORY, StalenessBound(1, 1, 1, 1, waits=False))
    buffer.reopen(0)
    buffer.begin([InFlight(plan_index(1, number), number, 0) for number in range(3)])
    assert buffer.put([item(0)], 0, last_step=1)
    taken = buffer.take(0, 1, is_last=True)
    assert taken is not None and (numbers(taken.items), taken.surplus) == ([0], [])
    assert buffer.put([item(2)], 0, last_step=1)
    assert numbers(buffer.mark_trained(1, is_last=True)) == [2]
    assert not buffer.put([item(1)], 0, last_step=1)
    assert [each.index for each in buffer.in_flight()] == [plan_index(1, 1)]
    assert buffer.counts() == {"begun": 1, "trained": 1, "expired": 1}
    buffer.reopen(0)  # killed before its checkpoint: both are there again, and the third begins
    assert buffer.counts() == {"begun": 1, "ready": 2}
    assert buffer.put([item(1)], 0, last_step=1)


def test_only_groups_that_have_ended_are_read_again():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.begin([InFlight(plan_index(1, number), number, 0) for number in range(3)])
    buffer.put([item(2), item(0)], 0)
    asked = [plan_index(1, number) for number in range(2, -1, -1)]
    assert numbers(buffer.finished(asked)) == [0, 2]
    assert numbers(buffer.finished(asked[:1])) == [2]


def test_a_use_that_the_checkpoint_does_not_know_is_not_counted(tmp_path):
    bound = StalenessBound(3, 1, 1, 3)
    first = file_buffer(tmp_path, bound, max_reuse=2)
    first.put([item(0)], 0)
    for step in (1, 2):
        first.take(step - 1, 1), first.mark_trained(step)
    assert first.counts() == {"trained": 1}
    first.close()
    again = file_buffer(tmp_path, bound, max_reuse=2)
    again.reopen(1)
    again.take(1, 1), again.mark_trained(2)
    assert again.counts() == {"trained": 1}


def test_what_no_kept_checkpoint_can_ask_for_is_removed():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    for step in (1, 2):
        buffer.put([item(n, step - 1, step=step) for n in range(2)], step - 1)
        buffer.take(step - 1, 2), buffer.mark_trained(step)
    buffer.prune(1)
    assert set(buffer.known_tasks()) == {plan_index(2, 0), plan_index(2, 1)}


def test_a_group_that_begins_anew_has_one_row():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.begin([InFlight(plan_index(1, 0), 3, 0)])
    buffer.begin([InFlight(plan_index(1, 0), 3, 1)])
    assert buffer.in_flight() == [InFlight(plan_index(1, 0), 3, 1)]
    buffer.put([item(0, 1)], 1)
    assert (buffer.in_flight(), buffer.counts()) == ([], {"ready": 1})


def test_a_group_that_has_ended_still_says_which_task_it_had():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.begin([InFlight(plan_index(1, 0), 7, 0), InFlight(plan_index(1, 1), 3, 0)])
    buffer.put([item(1)], 0)
    assert buffer.known_tasks() == {plan_index(1, 0): 7, plan_index(1, 1): 3}


def test_two_takers_never_get_the_same_group(tmp_path):
    file_buffer(tmp_path).put([item(n) for n in range(40)], 0)
    found = []

    def take_all():
        buffer = file_buffer(tmp_path)
        while (taken := buffer.take(0, 2)) is not None:
            found.extend(numbers(taken.items))
        buffer.close()

    takers = [threading.Thread(target=take_all) for _ in range(3)]
    [each.start() for each in takers]
    [each.join() for each in takers]
    assert sorted(found) == list(range(40))


def test_on_postgresql_a_row_that_another_taker_holds_is_passed_over():
    query = GroupBuffer(MEMORY, ONE_AHEAD)._next_ready(2)
    text = " ".join(str(query.compile(dialect=postgresql.dialect())).split())
    assert text.endswith("FOR UPDATE SKIP LOCKED")
    assert "FOR UPDATE" not in str(query.compile(dialect=sqlite.dialect()))


def test_notes_are_what_two_processes_tell_each_other(tmp_path):
    one, other = file_buffer(tmp_path), file_buffer(tmp_path)
    one.write_notes(moment="3")
    one.put([item(0)], 0, moment="4")
    assert (other.read_note("moment"), other.read_note("nothing")) == ("4", None)


def test_runs_that_share_a_database_do_not_see_each_others_groups(tmp_path):
    one, other = file_buffer(tmp_path, run="a"), file_buffer(tmp_path, run="b")
    for buffer in (one, other):
        buffer.put([item(0), item(1)], 0, moment="0")
    other.clear()
    assert (other.counts(), other.read_note("moment"), other.take(0)) == ({}, None, None)
    assert one.read_note("moment") == "0"
    assert numbers(one.take(0, 2).items) == [0, 1]


SECRET = "postgresql://me:s3cret@db.example:5432/runs?password=s3cret"


def test_an_address_is_shown_without_what_could_be_a_secret():
    assert redacted(SECRET) == "postgresql://db.example:5432/runs"


@pytest.mark.parametrize("url", [SECRET, "nowhere s3cret", "sqlite:////no/such/s3cret/folder"])
def test_an_address_that_cannot_be_opened_is_one_line_without_a_secret(url):
    with pytest.raises(ConfigError, match=r"trinity\.buffer\.url") as caught:
        GroupBuffer(url, ONE_AHEAD)
    message = str(caught.value)
    assert "\n" not in message
    assert "me:" not in message and ("s3cret" not in message or url.startswith("sqlite"))


def test_a_database_that_breaks_is_one_line(tmp_path):
    buffer = file_buffer(tmp_path)
    with buffer._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE ajet_groups")
    with pytest.raises(CheckpointError, match="no such table") as caught:
        buffer.counts()
    assert "\n" not in str(caught.value)


def test_a_database_that_another_process_has_locked_is_waited_for(tmp_path):
    buffer = file_buffer(tmp_path)
    with closing(sqlite3.connect(tmp_path / "buffer.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        putting = threading.Thread(target=buffer.put, args=([item(0), item(1)], 0))
        putting.start()
        putting.join(0.2)
        assert putting.is_alive()
        other.execute("ROLLBACK")
        putting.join(30)
    assert numbers(buffer.take(0, 2).items) == [0, 1]


def test_an_explorer_of_an_earlier_sitting_has_nothing_to_say(tmp_path):
    trainer, explorer = file_buffer(tmp_path), file_buffer(tmp_path)
    trainer.reopen(0, sitting="first")
    explorer.attempt = "first"
    explorer.begin([InFlight(plan_index(1, 0), 5, 0)], plan="1")
    trainer.reopen(0, sitting="second", plan="0")
    for say in (lambda: explorer.begin([], plan="2"), lambda: explorer.put([item(0)], 0)):
        with pytest.raises(AttemptOver):
            say()
    notes = {"sitting": "second", "plan": "0", "trained": "0"}
    assert (trainer.read_notes(), trainer.counts()) == (notes, {"begun": 1})


def test_the_trainers_version_is_noted_with_its_step():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.put([item(0), item(1)], 0)
    buffer.take(0, 2)
    assert buffer.capacity_left(0) == 2
    buffer.mark_trained(1)
    assert (buffer.read_note("trained"), buffer.capacity_left(0)) == (
        "1",
        2,
    )  # two are trained: two more


def test_groups_that_fill_no_place_in_a_batch_take_none_of_the_capacity():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD, capacity=2)
    buffer.put([item(0, counts=False), item(1, counts=False), item(2, counts=False)], 0)
    assert buffer.capacity_left(0) == 2


def test_a_run_that_goes_on_from_ever_earlier_checkpoints_counts_every_way_back():
    """Sampled at 5, 2 updates beyond 3: from there as old as version 1, and from 2 as -1."""
    for way in ([3], [4, 3]):
        buffer = GroupBuffer(MEMORY, StalenessBound(4, 2, 1, 8))
        buffer.put([item(0, 5), item(1, 5)], 5)
        for step in way:
            assert buffer.reopen(step) == 0
        assert buffer.take(5, 2) is not None
        assert buffer.reopen(2) == 0
        assert buffer.take(4, 2) is None and buffer.counts() == {"expired": 2}


def test_a_group_says_from_where_on_the_updates_that_sampled_it_are_lost():
    buffer = GroupBuffer(MEMORY, StalenessBound(9, 3, 1, 27))
    buffer.put([item(0, 4, newest=6), item(1, 4), item(2, 2)], 4)

    def lost_after():
        taken = buffer.take(8, 3)
        assert taken is not None
        return [each.lost_after for each in taken.items]

    # A later checkpoint is of other updates; an earlier one is before those that were kept.
    for step, expected in ((5, [5, None, None]), (3, [3, 3, None]), (4, [3, 3, None])):
        buffer.reopen(step)
        assert lost_after() == expected


def test_a_group_that_begins_again_after_lost_updates_has_none_of_them():
    buffer = GroupBuffer(MEMORY, ONE_AHEAD)
    buffer.begin([InFlight(plan_index(2, 0), 7, 2)])
    buffer.reopen(1)
    buffer.begin([InFlight(plan_index(2, 0), 7, 1)])
    buffer.put([item(0, 2, step=2)], 1)
    taken = buffer.take(2, 1)
    assert taken is not None and taken.items[0].lost_after is None


def test_what_no_checkpoint_asks_for_goes_however_much_it_is():
    buffer = GroupBuffer(MEMORY, StalenessBound(0, 40_000))
    empty = [item(n, rewards=()) for n in range(40_000)]  # what is in them does not count here
    buffer.put(empty, 0, **{batch_note(1): "{}", batch_note(2): "{}"})
    buffer.take(0)
    buffer.mark_trained(1)
    buffer.prune(1)
    assert buffer.counts() == {}
    assert set(buffer.read_notes()) == {"trained", batch_note(2)}
