import sqlite3
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from record_fixtures import (
    SYSTEM,
    TOOLS,
    advantages_of,
    episode,
    group_of,
    sample_of,
    two_turns,
)

from ajet.core.errors import CheckpointError, DataError
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.task.task import Task
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Selection, SelectionName
from ajet.core.trajectory.turn import Turn
from ajet.read.episode_reader import EpisodeFilter, EpisodeReader


@pytest.fixture
def path(tmp_path):
    return tmp_path / "episodes.sqlite"


@pytest.fixture
def store(path):
    with EpisodeStore(path) as opened:
        yield opened


def test_an_episode_reads_back_as_it_was(path, store):
    one = episode()
    store.write(1, [group_of(one)], {one.episode_id: advantages_of(one, 0.5)}, [sample_of(one)])
    with EpisodeReader(path) as reader:
        back = reader.episode("000001-train-0000-00")
    assert (back.row.step, back.row.mode, back.row.status) == (1, "train", "ok")
    assert (back.row.reward, back.row.is_success, back.row.advantage) == (1.0, True, 0.5)
    assert (back.row.num_turns, back.row.num_sampled_tokens) == (2, 5)
    assert (back.row.min_policy_version, back.row.max_policy_version) == (3, 4)
    assert back.row.seconds == 2.5
    assert back.metadata == {"final_answer": "42"}
    for turn, original in zip(back.turns, one.turns, strict=True):
        assert turn.prompt_ids.tolist() == list(original.completion.prompt_ids)
        assert turn.token_ids.tolist() == list(original.completion.token_ids)
        assert turn.logprobs.tolist() == list(original.completion.logprobs)
        assert turn.messages == original.messages
        assert (turn.tools, turn.reply) == (TOOLS, original.reply)
    assert [t.loss_mask.tolist() for t in back.turns] == [[1, 1, 1], [1, 1]]
    assert [t.advantages.tolist() for t in back.turns] == [[0.5, 0.5, 0.5], [0.5, 0.5]]


def trained_tokens(episode_id="000001-train-0000-00"):
    """Of its second turn: log-probabilities of both tokens, a ratio of the first, which is cut."""
    tokens = TrainedTokens()
    tokens.row(episode_id, 1, "policy_logprobs", 2)[:] = -1.5, -0.25
    tokens.row(episode_id, 1, "ratios", 2)[0] = 1.25
    tokens.cut(episode_id, 1, "high", [0])
    return tokens


def test_what_the_update_computed_for_a_token_reads_back(path, store):
    store.write(1, [group_of(episode())], tokens=trained_tokens())
    with EpisodeReader(path) as reader:
        first, second = reader.episode("000001-train-0000-00").turns
    assert first.trained is None
    assert second.trained.cuts == {"high": [0]}
    assert set(second.trained.numbers) == {"policy_logprobs", "ratios"}  # NULL for the others
    assert second.trained.numbers["policy_logprobs"].tolist() == [-1.5, -0.25]
    assert second.trained.numbers["ratios"].tolist() == pytest.approx([1.25, np.nan], nan_ok=True)


def test_a_step_that_is_written_again_or_taken_back_has_no_old_numbers(path, store):
    store.write(1, [group_of(episode())], tokens=trained_tokens())
    store.write(1, [group_of(episode())])
    with EpisodeReader(path) as reader:
        assert reader.episode("000001-train-0000-00").turns[1].trained is None
    store.write(1, [group_of(episode())], tokens=trained_tokens())
    store.truncate_from(1)
    store.write(1, [group_of(episode())])
    with EpisodeReader(path) as reader:
        assert reader.episode("000001-train-0000-00").turns[1].trained is None


def test_a_file_of_an_earlier_release_is_read_and_gone_on_with(path):
    with EpisodeStore(path) as store:
        store.write(1, [group_of(episode())])
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE trained_tokens")
    with EpisodeReader(path) as reader:
        assert reader.episode("000001-train-0000-00").turns[1].trained is None
    with EpisodeStore(path) as store:
        store.write(1, [group_of(episode())], tokens=trained_tokens())
    with EpisodeReader(path) as reader:
        assert reader.episode("000001-train-0000-00").turns[1].trained is not None


def test_a_turns_reward_and_state_read_back(path, store):
    first, second = two_turns()
    one = episode(turns=(replace(first, reward=-0.1, state_key="at 3"), second))
    store.write(1, [group_of(one)])
    with EpisodeReader(path) as reader:
        turns = reader.episode(one.episode_id).turns
    assert [(turn.reward, turn.state_key) for turn in turns] == [(-0.1, "at 3"), (None, None)]


def test_a_turn_stores_only_what_its_agents_turn_before_has_not(path, store):
    store.write(1, [group_of(episode())])
    rows = sqlite3.connect(path).execute(
        "SELECT base_turn, messages_kept, messages, prompt_kept, length(prompt_ids) FROM turns"
    )
    first, second = rows.fetchall()
    assert first[:2] == (None, 0)
    assert second[:2] == (0, 3)  # system, user and the first reply are there already
    assert second[2] == '[{"role":"tool","content":"42","tool_call_id":"call_0"}]'
    assert second[3] == 13  # 10 prompt ids and 3 sampled ones


def test_a_rewritten_history_reads_back_as_it_was(path, store):
    first, _ = two_turns()
    edited = [SYSTEM, {"role": "user", "content": "a summary"}]
    completion = Completion((100, 101, 999), (4,), (-1.0,), "length", 3)
    one = episode(turns=(first, Turn(completion, edited, None, {"role": "assistant"})))
    store.write(1, [group_of(one)])
    with EpisodeReader(path) as reader:
        turn = reader.episode(one.episode_id).turns[1]
    assert turn.messages == edited
    assert turn.prompt_ids.tolist() == [100, 101, 999]
    assert (turn.prompt_kept, turn.tools, turn.loss_mask) == (2, None, None)


def test_a_token_trained_on_any_timeline_has_mask_one(path, store):
    one = episode()
    whole = sample_of(one)
    short = whole.loss_mask.copy()
    short[10:12] = False
    rest = whole.loss_mask & ~short
    samples = [
        type(whole)(*(*_head(whole), mask, *_tail(whole))) for mask in (short, rest)
    ]  # the tokens 10 and 11 are trained on the second timeline
    store.write(1, [group_of(one)], {one.episode_id: advantages_of(one, 1.0)}, samples)
    with EpisodeReader(path) as reader:
        assert reader.episode(one.episode_id).turns[0].loss_mask.tolist() == [1, 1, 1]


def _head(sample):
    return sample.episode_id, sample.group_id, sample.token_ids


def _tail(sample):
    return sample.logprobs, sample.advantages, sample.spans, 3, 4


def test_a_distinct_tool_list_is_stored_once(path, store):
    store.write(1, [group_of(episode(member=0), episode(member=1))])
    assert sqlite3.connect(path).execute("SELECT count(*) FROM tools").fetchone() == (1,)


def test_writing_a_step_again_replaces_its_episodes(path, store):
    store.write(1, [group_of(episode(reward=0.0))])
    store.write(1, [group_of(episode(reward=1.0, turns=two_turns()[:1]))])
    with EpisodeReader(path) as reader:
        (row,) = reader.list()
        assert (row.reward, len(reader.episode(row.episode_id).turns)) == (1.0, 1)


def test_truncate_from_forgets_later_steps(path, store):
    for step in (1, 2, 3):
        store.write(step, [group_of(episode(step=step))])
        store.write(step, [group_of(episode(step=step, mode="eval"))])
    assert store.truncate_from(3) == 2
    with EpisodeReader(path) as reader:
        left = [(row.step, row.mode) for row in reader.list()]
    assert left == [(2, "eval"), (2, "train"), (1, "eval"), (1, "train")]
    assert sqlite3.connect(path).execute("SELECT count(*) FROM turns").fetchone() == (8,)


def test_filters_combine(path, store):
    failed = episode(
        member=1, reward=None, status=EpisodeStatus.TIMEOUT, error="deadline", turns=()
    )
    store.write(1, [group_of(episode(member=0, query="Three APPLES"), failed)])
    store.write(2, [group_of(episode(step=2, reward=0.0, query="two pears"))])

    def found(**filters):
        with EpisodeReader(path) as reader:
            return [r.episode_id for r in reader.list(EpisodeFilter(**filters))]

    assert found(status="timeout") == ["000001-train-0000-01"]
    assert found(is_success=False) == ["000002-train-0000-00"]
    assert found(text="apples") == ["000001-train-0000-00"]
    assert found(text="%") == []
    assert found(min_reward=0.5, last_step=1) == ["000001-train-0000-00"]
    assert found(first_step=2, mode="eval") == []


def test_pages_follow_each_other_without_gap(path):
    with EpisodeStore(path) as store:
        everything = [
            group_of(*(episode(group=g, member=m, turns=()) for m in range(8))) for g in range(250)
        ]
        store.write(1, everything)
    with EpisodeReader(path) as reader:
        seen, after = [], None
        while page := reader.list(limit=300, after=after):
            seen += [row.episode_id for row in page]
            after = page[-1].id
        assert reader.count() == 2000
    assert seen == sorted(seen, reverse=True) and len(set(seen)) == 2000


def test_a_reader_sees_each_step_while_the_writer_is_open(path, store):
    store.write(1, [group_of(episode())])
    with EpisodeReader(path) as reader:
        assert reader.count() == 1
        store.write(2, [group_of(episode(step=2))])
        assert reader.count() == 2
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM episodes")


def test_a_query_with_a_lone_surrogate_is_stored(path, store):
    odd = episode(query="lone \ud83d surrogate", turns=())
    store.write(1, [group_of(odd)])
    with EpisodeReader(path) as reader:
        assert reader.episode(odd.episode_id).row.query == "lone \ufffd surrogate"


def test_a_damaged_page_is_called_damaged_and_never_asks_for_room(path, store):
    for step in range(1, 40):
        store.write(step, [group_of(episode(step=step))])
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):  # all but those that describe the tables
        content[page * 4096 : page * 4096 + 200] = b"\xab" * 200
    path.write_bytes(content)
    with EpisodeReader(path) as reader, pytest.raises(CheckpointError, match="is damaged: "):
        list(reader.walk())
    with (
        EpisodeStore(path) as again,
        pytest.raises(CheckpointError, match=r"damaged.*move it away"),
    ):
        again.write(40, [group_of(episode(step=40))])


def test_a_folder_that_cannot_be_written_to_is_read(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with EpisodeStore(folder / "episodes.sqlite") as store:
            store.write(1, [group_of(episode())])
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert not (folder / "episodes.sqlite-shm").exists()
        with EpisodeReader(folder / "episodes.sqlite") as reader:
            assert reader.count() == 1
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_numpy_reward_is_a_number(path, store):
    store.write(1, [group_of(episode(reward=np.float32(0.25)))])
    with EpisodeReader(path) as reader:
        assert reader.list()[0].reward == 0.25


def test_a_failed_write_leaves_the_step_before(path, store):
    store.write(1, [group_of(episode())])
    store._connection.execute("PRAGMA max_page_count = 20")  # SQLite's own way to a full disk
    many = [group_of(*(episode(step=2, member=m) for m in range(200)))]
    with pytest.raises(CheckpointError, match="full; make room, then resume"):
        store.write(2, many)
    with EpisodeReader(path) as reader:
        assert [row.step for row in reader.list()] == [1]


def test_a_file_that_is_no_store_is_refused_in_one_line(path):
    path.write_text("not a database, but long enough to look like one" * 30)
    with pytest.raises(CheckpointError, match="not a database"):
        EpisodeStore(path)
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        EpisodeReader(path.with_name("absent.sqlite"))


def test_another_format_is_refused(path):
    EpisodeStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(CheckpointError, match="has format 99, this ajet reads format 3"):
        EpisodeReader(path)


def test_the_task_stands_once_with_the_seed_and_how_the_episode_ended(path, store):
    task = Task("t", "6 times 7?", metadata={"answer": "42", "tags": ["a", None]})
    late = episode(member=1, status=EpisodeStatus.TIMEOUT)
    zeroed = replace(late, selection=Selection(SelectionName.ZERO, "late (counts as reward 0)"))
    store.write(1, [Group("g", (episode(), zeroed), task)])
    with EpisodeReader(path) as reader:
        first, second = (reader.episode(f"000001-train-0000-0{n}") for n in (0, 1))
    assert first.task == second.task == task
    assert (first.seed, first.outcome, second.outcome) == (1, "ok", "timeout")
    assert (second.row.status, second.row.error) == ("truncated", "late (counts as reward 0)")
    assert sqlite3.connect(path).execute("SELECT count(*) FROM tasks").fetchone() == (1,)


@pytest.mark.parametrize("answer", [(1, 2), {1: 2}, object(), float("nan")])
def test_a_task_that_json_would_change_is_left_out(path, store, answer):
    store.write(1, [Group("g", (episode(),), Task("t", "q", metadata={"answer": answer}))])
    with EpisodeReader(path) as reader:
        assert reader.episode("000001-train-0000-00").task is None


def test_the_beginning_of_an_id_is_found_where_it_is_one_alone(path, store):
    store.write(1, [group_of(episode(), episode(member=1), episode(group=2))])
    with EpisodeReader(path) as reader:
        assert reader.find("000001-train-0002") == "000001-train-0002-00"
        assert reader.find("000001-train-0000-01") == "000001-train-0000-01"
        with pytest.raises(DataError, match="2 episodes begin with '000001-train-0000'"):
            reader.find("000001-train-0000")
        with pytest.raises(DataError, match="near: 000001-train-0002-00"):
            reader.find("000001-train-0002-0%")


def test_the_limit_that_cut_an_episode_is_read_back_also_where_a_selection_left_it_out(path, store):
    cut = episode(truncation=Truncation(Limit.MAX_STEPS, "its 2 calls"))
    left_out = episode(member=1, truncation=cut.truncation).leave_out(
        SelectionName.OVERLONG, "it was cut"
    )
    store.write(1, [group_of(cut, left_out, episode(member=2))])
    with EpisodeReader(path) as reader:
        read = [reader.episode(f"000001-train-0000-0{n}") for n in range(3)]
    assert [each.truncation for each in read] == [cut.truncation, cut.truncation, None]
    assert [each.row.error for each in read] == ["its 2 calls", "it was cut", None]


def test_rewards_of_agents_are_read_back_and_those_in_a_breakdown_of_before_too(path, store):
    rewards = {"pro": 1.0, "agent con": -1.0}
    judged = episode()
    judged = replace(
        judged,
        output=replace(judged.output, agent_rewards=rewards),
        reward_breakdown={"workflow": 1.0},
    )
    store.write(1, [group_of(judged)])
    store.close()
    with EpisodeReader(path) as reader:
        record = reader.episode("000001-train-0000-00")
    assert (record.reward_breakdown, record.agent_rewards) == ({"workflow": 1.0}, rewards)
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE episodes DROP COLUMN agent_rewards")
        before = '{"workflow": 1.0, "agent pro": 1.0, "agent agent con": -1.0}'
        connection.execute("UPDATE episodes SET reward_breakdown = ?", [before])
    for _ in range(2):  # as it is, and with the column that a resumed run adds
        with EpisodeReader(path) as reader:
            record = reader.episode("000001-train-0000-00")
        assert (record.reward_breakdown, record.agent_rewards) == ({"workflow": 1.0}, rewards)
        EpisodeStore(path).close()


def test_a_file_of_a_release_without_the_limits_opens_and_says_that_they_are_unknown(path, store):
    used = "the episode used its 2 calls (max_steps)"
    store.write(
        1, [group_of(episode(status=EpisodeStatus.TRUNCATED, error=used), episode(member=1))]
    )
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE episodes DROP COLUMN truncation")
    with EpisodeReader(path) as reader:
        old, whole = (reader.episode(f"000001-train-0000-0{n}") for n in (0, 1))
    assert (old.truncation, whole.truncation) == (Truncation(Limit.UNKNOWN, used), None)
    cut = episode(step=2, truncation=Truncation(Limit.ENGINE, "too long"))
    with EpisodeStore(path) as resumed:
        resumed.write(2, [group_of(cut)])
    with EpisodeReader(path) as reader:
        assert reader.episode("000001-train-0000-00").truncation == old.truncation
        assert reader.episode("000002-train-0000-00").truncation == cut.truncation
