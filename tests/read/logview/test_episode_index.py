import sqlite3
from dataclasses import replace

import pytest
from logview_fixtures import write_run
from record_fixtures import episode, group_of, two_turns

from ajet.core.errors import CheckpointError, ConfigError
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.episode_index import EpisodeIndex, Selection


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        yield folder


@pytest.fixture
def store(folder):
    with EpisodeStore(folder.episodes_db) as store:
        yield store


@pytest.fixture
def index(folder):
    index = EpisodeIndex(folder.episodes_db)
    yield index
    index.close()


def names(index, which=None, **how):
    return [row["episode_id"][-7:] for row in index.list(which, **how)[0]]


def test_episodes_sort_by_a_column_and_those_without_a_value_come_last(store, index):
    rewards = (0.5, 1.0, None, 0.0)
    store.write(1, [group_of(*(episode(member=n, reward=r) for n, r in enumerate(rewards)))])
    assert names(index, sort="reward") == ["0000-03", "0000-00", "0000-01", "0000-02"]
    assert names(index, sort="-reward") == ["0000-01", "0000-00", "0000-03", "0000-02"]
    first, after = index.list(sort="reward", limit=3)
    assert [row["reward"] for row in first] == [0.0, 0.5, 1.0]
    assert [row["reward"] for row in index.list(sort="reward", limit=3, after=after)[0]] == [None]
    with pytest.raises(ConfigError, match="sort='id; DROP': choose from step, task"):
        index.list(sort="id; DROP")


def test_a_group_is_its_members_alone_in_their_order_and_found_by_an_index(store, index):
    groups = [
        group_of(*(episode(group=group, member=member) for member in (1, 0))) for group in (0, 1, 2)
    ]
    store.write(1, groups)
    second = groups[1].trajectories[0].workflow_task.group_id
    found = index.group(1, "train", second)
    assert [row["rollout_index"] for row in found] == [0, 1]
    assert {row["group_id"] for row in found} == {second}
    plan = index._connection.execute(
        "EXPLAIN QUERY PLAN SELECT * FROM rows WHERE step = 1 AND mode = 'train' AND group_id = ''"
    ).fetchall()
    assert "group_id=?" in plan[0]["detail"]


def test_a_search_finds_what_was_said_by_anyone_but_the_system(store, index):
    said = episode(turns=two_turns("How many Äpfel?"), query="How many Äpfel?")
    store.write(1, [group_of(said, episode(member=1, turns=(), reward=None))])
    found = {
        text: index.count(Selection(text=text))
        for text in ("how apfel", "äpf", "print(6*7)", "42", "agent", "role", "times", "Äpfel no")
    }
    assert found == {
        "how apfel": 1,  # the question, whatever the case and the accents
        "äpf": 1,  # a word may go on
        "print(6*7)": 1,  # a reply; signs between the words do not count
        "42": 1,  # a tool's result
        "agent": 0,  # the system prompt, which every episode has
        "role": 0,  # keys of messages
        "times": 1,  # the other episode's task
        "Äpfel no": 0,  # all words
    }
    with pytest.raises(ConfigError, match=r"text='\(\*' has no letters or digits"):
        index.count(Selection(text="(*"))


def test_a_search_finds_chinese_words_within_a_sentence(store, index):
    store.write(1, [group_of(episode(query="小明有三个苹果", turns=two_turns("小明有三个苹果")))])
    assert index.count(Selection(text="三个苹果")) == 1
    assert index.count(Selection(text="三苹果")) == 0


def test_episodes_are_found_by_tool_agent_and_staleness(store, index):
    first = two_turns()[0]
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    reply = {"role": "assistant", "tool_calls": [call]}
    calls = replace(first, reply=reply, agent_name="finder")
    store.write(6, [group_of(episode(step=6, turns=(calls,)), episode(step=6, member=1))])
    assert names(index, Selection(tool="look_up")) == ["0000-00"]
    assert names(index, Selection(agent="finder")) == ["0000-00"]
    assert index.count(Selection(tool="look")) == 0
    # sampled with the weights of updates 3 and 4, and trained by update 6 as the sixth
    assert [row["staleness"] for row in index.list(sort="step")[0]] == [2, 2]
    assert index.count(Selection(min_staleness=3)) == 0


def test_a_search_reads_text_with_characters_that_cannot_be_stored(store, index):
    turn = two_turns()[0]
    call = {"id": "c", "type": "function", "function": {"name": "bad \ud800"}}
    reply = {"role": "assistant", "content": "half \ud800 found", "tool_calls": [call]}
    store.write(1, [group_of(episode(turns=(replace(turn, reply=reply),)))])
    assert index.count(Selection(text="half found")) == 1
    assert index.count(Selection(tool="bad ?")) == 1


def test_the_index_follows_a_run_that_goes_on_and_one_that_goes_back(store, index):
    store.write(1, [group_of(episode())])
    assert (index.count(), index.count(Selection(text="times"))) == (1, 1)
    store.write(2, [group_of(episode(step=2, query="Who?", turns=two_turns("Who?")))])
    assert (index.count(), index.count(Selection(text="who"))) == (2, 1)
    # resumed from step 1: another step 2 has the ids of the one before
    store.truncate_from(2)
    again = episode(step=2, query="Where?", turns=two_turns("Where?")[:1])
    store.write(2, [group_of(again)])
    assert (index.count(), index.count(Selection(text="who"))) == (2, 0)
    assert index.count(Selection(text="where")) == 1
    store.truncate_from(1)
    assert index.count() == 0


def test_a_search_may_stop_before_it_knows_the_older_episodes(folder, store):
    def found(words="times"):
        return names(index, Selection(text=words), whole=False)

    store.write(1, [group_of(*(episode(member=member) for member in range(3)))])
    index = EpisodeIndex(folder.episodes_db, chunk=1)
    assert (index.add_words(0.0), found()) == (2, ["0000-02"])
    assert index.count(Selection(text="times"), whole=False) == 1
    later = episode(step=2, query="Who?", turns=two_turns("Who?"))
    store.write(2, [group_of(later)])  # comes before the older ones
    assert (index.add_words(0.0), found(), found("who")) == (2, ["0000-02"], ["0000-00"])
    assert (index.add_words(0.0), found()) == (1, ["0000-02", "0000-01"])
    assert (index.add_words(60.0), found()) == (0, ["0000-02", "0000-01", "0000-00"])
    store.truncate_from(2)  # a run that goes back begins again
    assert (index.add_words(0.0), found()) == (2, ["0000-02"])
    assert len(names(index, Selection(text="times"))) == 3
    index.close()


def test_the_index_writes_nothing_into_the_run_folder(folder, store, index):
    store.write(1, [group_of(episode())])
    before = {path: path.stat().st_size for path in folder.path.rglob("*")}
    assert index.count(Selection(text="times")) == 1
    assert {path: path.stat().st_size for path in folder.path.rglob("*")} == before


def test_a_damaged_row_is_one_line(folder, store, index):
    store.write(1, [group_of(episode())])
    with sqlite3.connect(folder.episodes_db) as damage:
        damage.execute("UPDATE episodes SET num_turns = 'many'")
    with pytest.raises(CheckpointError, match=r"episodes\.sqlite cannot be used: cannot store"):
        index.count()


def test_a_view_that_never_ends_is_refused(folder, store, index):
    store.write(1, [group_of(episode())])
    with sqlite3.connect(folder.episodes_db) as harm:
        columns = [row[1] for row in harm.execute("PRAGMA table_info(episodes)")]
        harm.execute("ALTER TABLE episodes RENAME TO finite")
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        named = ", ".join("x AS id" if name == "id" else name for name in columns)
        harm.execute(f"CREATE VIEW episodes AS {endless} SELECT {named} FROM n, finite")
    for ask in (index.count, index.whole, lambda: EpisodeReader(folder.episodes_db)):
        with pytest.raises(CheckpointError, match=r"has a view \(episodes\)"):
            ask()


def test_the_whole_is_known_before_the_index_is_made(store, index):
    assert index.whole() == {"count": 0, "modes": [], "statuses": [], "tags": []}
    store.write(1, [group_of(episode())])
    assert index.whole() == {"count": 1, "modes": ["train"], "statuses": ["ok"], "tags": []}


def test_a_run_that_is_still_starting_has_no_episodes(tmp_path):
    index = EpisodeIndex(tmp_path / "episodes.sqlite")
    assert (index.list(), index.count(), index.held_out()) == (([], None), 0, ([], []))
    index.close()


def test_a_task_is_counted_by_step_and_a_failed_episode_is_no_success(tmp_path):
    folder = write_run(tmp_path / "math")
    index = EpisodeIndex(folder.episodes_db)
    shown = [
        (row["step"], row["mode"], row["num"], row["successes"]) for row in index.task("task-0")
    ]
    assert shown == [(1, "eval", 1, 1), (1, "train", 2, 1), (2, "train", 1, 0)]
    index.close()
