"""Recorded conversations become tasks, from every kind of place, always the same ones."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ajet.core.config import AjetConfig, load_config
from ajet.core.config.tracing import read_filter
from ajet.core.errors import AjetError, ConfigError
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.task.reader import make_reader
from ajet.sources.tracing.conversation import conversation_of
from ajet.sources.tracing.spans import call_messages, nest, value_messages
from tests.core.record.record_fixtures import episode, group_of
from tests.env_server import StubService

SYSTEM = {"role": "system", "content": "Be brief."}


def user(text):
    return {"role": "user", "content": text}


def said(text, *calls):
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    listed = [{"id": "c0", "type": "function", "function": each} for each in functions]
    return {"role": "assistant", "content": text} | ({"tool_calls": listed} if listed else {})


def config_of(place: str | None, **settings):
    settings = {"base_url": place, "validation_fraction": 0, **settings}
    reader = {"type": "tracing", "tracing": settings}
    return AjetConfig.model_validate({"ajet": {"task_reader": reader}})


def reader_of(place: str | None, **settings):
    return make_reader(config_of(place, **settings))


def database(folder: Path, *rows) -> str:
    """A `conversations` table; a row is (id, messages, score, label, model, created_at)."""
    path = folder / "talks.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "CREATE TABLE conversations (id TEXT, messages TEXT NOT NULL, score REAL, label TEXT, "
            "model TEXT, created_at TEXT)"
        )
        told = [(name, json.dumps(messages), *rest) for name, messages, *rest in rows]
        file.executemany("INSERT INTO conversations VALUES (?, ?, ?, ?, ?, ?)", told)
    return str(path)


def talk(number, query="q", answer="a", score=None, label=None, model=None, day=1):
    at = f"2026-03-{day:02d}T10:00:00"
    return (f"id{number}", [user(query), said(answer)], score, label, model, at)


def queries(reader):
    return [task.main_query for task in reader.get_training_tasks()]


# --- from messages to a task ---------------------------------------------------------------------


def test_the_last_thing_the_user_said_is_the_question_and_the_last_reply_the_answer(tmp_path):
    messages = [SYSTEM, user("hi"), said("hello"), user("6*7?"), said("", ("calc", "6*7"))]
    messages += [{"role": "tool", "content": "42", "tool_call_id": "c0"}, said("It is 42.")]
    (task,) = reader_of(
        database(tmp_path, ("a", messages, 1.0, "good", "m1", "2026-03-01"))
    ).get_training_tasks()
    assert task.main_query == "6*7?"
    assert task.init_messages == [SYSTEM, user("hi"), said("hello")]
    assert task.metadata["answer"] == "It is 42."
    assert task.metadata["scores"] == {"score": 1.0} and task.metadata["labels"] == {
        "label": "good"
    }
    assert (task.metadata["model"], task.metadata["source_id"]) == ("m1", "a")
    assert task.metadata["ended"] == "2026-03-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user("q")],
        [said("a")],
        [user(" "), said("a")],
        [user("q"), said(" ")],
        [user("q"), said("let me see", ("calc", "1"))],
        [user([{"type": "image_url"}]), said("a"), user("q"), said("b")],
    ],
)
def test_without_a_question_and_a_final_answer_it_is_no_conversation(messages):
    assert conversation_of("x", messages) is None


def test_the_order_is_that_of_time_and_the_same_words_are_one_task(tmp_path):
    place = database(
        tmp_path, talk(1, "late", day=9), talk(2, "early", day=2), talk(3, "late", day=3)
    )
    tasks = reader_of(place).get_training_tasks()
    assert [task.main_query for task in tasks] == ["early", "late"]
    assert tasks == reader_of(place).get_training_tasks()
    assert tasks[0].task_id.startswith("trace-") and tasks[0].task_id != tasks[1].task_id


def test_the_held_out_share_is_exact_and_follows_from_the_words(tmp_path):
    rows = [talk(number, f"question {number}") for number in range(10)]
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    splits = []
    for folder, order in ((tmp_path / "one", rows), (tmp_path / "two", rows[::-1])):
        reader = reader_of(database(folder, *order), validation_fraction=0.3)
        splits.append([reader.get_training_tasks(), reader.get_validation_tasks()])
    training, held_out = ({task.task_id for task in part} for part in splits[0])
    assert (len(training), len(held_out)) == (7, 3) and not training & held_out
    assert [{task.task_id for task in part} for part in splits[1]] == [training, held_out]


def test_the_tasks_are_written_as_lines_that_the_jsonl_reader_reads(tmp_path):
    out = tmp_path / "new" / "tasks.jsonl"
    place = database(tmp_path, talk(1, "one"), talk(2, "two"))
    tasks = reader_of(place, train_output_path=str(out)).get_training_tasks()
    lines = {"training": {"file_path": str(out)}}
    reader = {"type": "jsonl_dataset_file", "jsonl_dataset_file": lines}
    config = AjetConfig.model_validate({"ajet": {"task_reader": reader}})
    assert make_reader(config).get_training_tasks() == tasks


# --- sources -------------------------------------------------------------------------------------


def test_a_run_folder_gives_its_episodes_with_their_rewards(tmp_path):
    store = EpisodeStore(tmp_path / "episodes.sqlite")
    other = episode(member=1, query="7 times 7?", reward=0.0)
    store.write(1, [group_of(episode(), other)])
    store.close()
    first, second = reader_of(str(tmp_path)).get_training_tasks()
    assert (first.main_query, first.metadata["answer"]) == ("6 times 7?", "42")
    assert first.metadata["scores"] == {"reward": 1.0}
    assert second.main_query == "7 times 7?" and second.metadata["scores"] == {"reward": 0.0}
    kept = [{"type": "score", "params": {"min": 0.5}}]
    assert queries(reader_of(str(tmp_path), filters=kept)) == ["6 times 7?"]


def openinference(query, answer, *, extra=()):
    """A span's attributes as OpenInference flattens them, tool call and all."""
    return {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt-4o-mini",
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "Be brief.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.contents.0.message_content.type": "text",
        "llm.input_messages.1.message.contents.0.message_content.text": query,
        "llm.input_messages.2.message.role": "assistant",
        "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c0",
        "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "calc",
        "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"a": 1}',
        "llm.input_messages.3.message.role": "tool",
        "llm.input_messages.3.message.content": "42",
        "llm.input_messages.3.message.tool_call_id": "c0",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": answer,
        **dict(extra),
    }


def otlp(trace, span, attributes, parent="", end="1772359200000000000"):
    def value(each):
        return {"intValue": str(each)} if isinstance(each, int) else {"stringValue": each}

    pairs = [{"key": key, "value": value(each)} for key, each in attributes.items()]
    return {
        "traceId": trace,
        "spanId": span,
        "parentSpanId": parent,
        "name": "ChatCompletion",
        "endTimeUnixNano": end,
        "attributes": pairs,
    }


def batch(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [*spans]}]}]}


def spans_file(folder: Path, *records) -> str:
    path = folder / "spans.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_otlp_lines_give_one_task_a_trace_from_its_longest_call(tmp_path):
    short = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "name this chat",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Sums",
        "llm.token_count.prompt": 7,
    }
    place = spans_file(
        tmp_path,
        batch(otlp("t1", "s1", openinference("6*7?", "It is 42."), parent="s0")),
        batch(otlp("t1", "s2", short, parent="s0", end="1772359209000000000")),
        batch(otlp("t2", "s3", {"http.method": "GET"})),
    )
    (task,) = reader_of(place).get_training_tasks()
    assert (task.main_query, task.metadata["answer"]) == ("6*7?", "It is 42.")
    assert task.init_messages == [SYSTEM]
    assert (task.metadata["model"], task.metadata["source_id"]) == ("gpt-4o-mini", "t1")
    assert task.metadata["ended"] == "2026-03-01T10:00:00+00:00"


def phoenix_span(trace, span, attributes, parent=None, end="2026-03-01T10:00:00Z"):
    context = {"trace_id": trace, "span_id": span}
    return {
        "id": f"U3Bhbjo{span}",
        "name": "agent",
        "context": context,
        "parent_id": parent,
        "end_time": end,
        "attributes": attributes,
    }


VALUES = {"input.value": "2+2?", "output.value": "4", "input.mime_type": "text/plain"}


@pytest.mark.parametrize(
    "record",
    [
        phoenix_span("t", "s", VALUES),
        phoenix_span("t", "s", {"input": {"value": "2+2?"}, "output": {"value": "4"}}),
        {"context.trace_id": "t", "context.span_id": "s", "attributes.input.value": "2+2?"}
        | {"attributes.output.value": "4", "end_time": "2026-03-01T10:00:00Z"},
    ],
    ids=["flat", "nested", "table"],
)
def test_phoenixs_exports_are_read_in_every_form(tmp_path, record):
    (task,) = reader_of(spans_file(tmp_path, record)).get_training_tasks()
    assert (task.main_query, task.metadata["answer"]) == ("2+2?", "4")
    assert task.metadata["source_id"] == "t"


def test_without_a_call_the_outermost_span_counts(tmp_path):
    inner = {"input.value": "inner", "output.value": "thing"}
    place = spans_file(
        tmp_path, phoenix_span("t", "s2", inner, parent="s1"), phoenix_span("t", "s1", VALUES)
    )
    assert queries(reader_of(place)) == ["2+2?"]


def test_annotations_in_the_spans_are_scores_and_labels(tmp_path):
    notes = {
        "annotations.0.annotation.name": "helpful",
        "annotations.0.annotation.score": 0.75,
        "trace.evaluations.0.evaluation.name": "tone",
        "trace.evaluations.0.evaluation.label": "kind",
    }
    place = spans_file(tmp_path, phoenix_span("t", "s", VALUES | notes))
    (task,) = reader_of(place).get_training_tasks()
    assert task.metadata["scores"] == {"helpful": 0.75}
    assert task.metadata["labels"] == {"tone": "kind"}


PARTS = [{"role": "user", "parts": [{"type": "text", "content": "6*7?"}]}]
CALLED = {"type": "tool_call", "id": "c0", "name": "calc", "arguments": {"a": 6}}
ANSWERED = {"type": "tool_call_response", "id": "c0", "response": "42"}
WITH_TOOLS = [
    *PARTS,
    {"role": "assistant", "parts": [CALLED]},
    {"role": "tool", "parts": [ANSWERED]},
]
DONE = [
    {"role": "assistant", "parts": [{"type": "text", "content": "42"}], "finish_reason": "stop"}
]


@pytest.mark.parametrize("as_text", [True, False])
def test_opentelemetrys_own_messages_are_chat_messages(as_text):
    written = json.dumps if as_text else (lambda value: value)
    attributes = {
        "gen_ai.system_instructions": written([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": written(WITH_TOOLS),
        "gen_ai.output.messages": written(DONE),
    }
    assert call_messages(nest(attributes)) == [
        SYSTEM,
        user("6*7?"),
        said("", ("calc", '{"a": 6}')),
        {"role": "tool", "content": "42", "tool_call_id": "c0"},
        said("42"),
    ]


def test_one_message_that_is_no_list_and_the_older_names_are_read():
    attributes = {"gen_ai.input.messages": PARTS[0], "gen_ai.output.messages": DONE[0]}
    assert call_messages(nest(attributes)) == [user("6*7?"), said("42")]
    older = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "6*7?"}
    older |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "42"}
    assert call_messages(nest(older)) == [user("6*7?"), said("42")]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("q", "a"),
        ('{"messages": [{"role": "user", "content": "q"}]}', '{"output": "a"}'),
        ('{"question": "q"}', '{"messages": [{"role": "assistant", "content": "a"}]}'),
        ('{"input": "q"}', '{"choices": [{"message": {"role": "assistant", "content": "a"}}]}'),
    ],
)
def test_a_spans_values_may_be_text_or_json(asked, answered):
    attributes = nest({"input.value": asked, "output.value": answered})
    assert value_messages(attributes) == [user("q"), said("a")]


def test_a_list_that_is_no_chat_stays_text():
    attributes = nest({"input.value": "[3, 1, 2] sorted?", "output.value": "[1, 2, 3]"})
    assert value_messages(attributes) == [user("[3, 1, 2] sorted?"), said("[1, 2, 3]")]


def test_a_table_of_spans_is_read(tmp_path):
    path = tmp_path / "studio.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE span_table (spanId TEXT, traceId TEXT, attributes TEXT)")
        nested = {"gen_ai": {"input": {"messages": json.dumps(PARTS)}}}
        nested["gen_ai"]["output"] = {"messages": json.dumps(DONE)}
        file.execute("INSERT INTO span_table VALUES ('s', 't', ?)", [json.dumps(nested)])
    assert queries(reader_of(str(path))) == ["6*7?"]


# --- a Phoenix server ----------------------------------------------------------------------------


def phoenix(path, headers):
    """Two projects, the second with two pages of spans, one of them scored."""
    first = phoenix_span("t1", "s1", VALUES)
    second = phoenix_span("t2", "s2", {"input.value": "3+3?", "output.value": "6"})
    third = phoenix_span("t3", "s3", {"input.value": "4+4?", "output.value": "8"})
    note = {"span_id": "s3", "name": "correct", "result": {"score": 1, "label": "yes"}}
    route, _, query = path.partition("?")
    pages = {
        "/v1/projects": [{"name": "shop"}, {"name": "my chat"}],
        "/v1/projects/shop/spans": [first],
        "/v1/projects/shop/span_annotations": [],
        "/v1/projects/my%20chat/spans": [third] if "cursor=p2" in query else [second],
        "/v1/projects/my%20chat/span_annotations": [note],
    }
    more = route.endswith("chat/spans") and "cursor" not in query
    return 200, {"data": pages[route], "next_cursor": "p2" if more else None}


def test_a_phoenix_server_gives_all_pages_of_all_projects_with_their_scores(tmp_path, monkeypatch):
    monkeypatch.setenv("PHOENIX_API_KEY", "secret")
    with StubService(phoenix) as stub:
        tasks = reader_of(stub.url).get_training_tasks()
        (one,) = reader_of(stub.url, project="shop").get_training_tasks()
    assert [task.main_query for task in tasks] == ["2+2?", "3+3?", "4+4?"]
    assert tasks[2].metadata["scores"] == {"correct": 1.0}
    assert tasks[2].metadata["labels"] == {"correct": "yes"}
    assert one.main_query == "2+2?"
    assert {headers["Authorization"] for _, headers in stub.calls} == {"Bearer secret"}


def test_a_phoenix_without_annotations_still_gives_tasks(tmp_path, warnings):
    def older(path, headers):
        return (404, {}) if "annotations" in path else phoenix(path, headers)

    with StubService(older) as stub:
        assert len(reader_of(stub.url).get_training_tasks()) == 3
    assert "this Phoenix has no annotations" in warnings[0]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, "no"), "HTTP 401 no; is PHOENIX_API_KEY set?"),
        ((200, "<html>"), "JSONDecodeError"),
        ((200, {"x": 1}), "is this a Phoenix server?"),
        ((200, {"data": [], "next_cursor": "p1"}), "the page 'p1' leads back to itself"),
        (None, "Server disconnected"),
    ],
)
def test_a_server_that_is_none_is_one_line(tmp_path, reply, message):
    with StubService(lambda *_: reply) as stub, pytest.raises(AjetError) as error:
        reader_of(stub.url).get_training_tasks()
    assert message in str(error.value) and "\n" not in str(error.value)


# --- filters -------------------------------------------------------------------------------------

TOLD = {"role": "tool", "content": "1"}
TALKS = [
    talk(1, "short", "yes", score=0.2, label="bad", model="gpt-4o", day=1),
    talk(2, "a much longer question", "no", score=0.9, label="good", model="gpt-4.1", day=2),
    talk(3, "a much longer question?", "maybe", score=0.5, model="qwen", day=3),
    ("id4", [user("tool"), said("", ("calc", "1")), TOLD, said("one")], None, None, None, None),
]


@pytest.mark.parametrize(
    ("name", "params", "kept"),
    [
        ("score", {"min": 0.5}, [2, 3]),
        ("score", {"min": 0.3, "max": 0.6, "name": "score"}, [3]),
        ("score", {"min": 0, "name": "other"}, []),
        ("feedback", {"labels": ["good", "fine"]}, [2]),
        ("length", {"min_messages": 3}, [4]),
        ("length", {"max_characters": 8}, [1, 4]),
        ("tool_use", {}, [4]),
        ("tool_use", {"used": False}, [1, 2, 3]),
        ("tool_use", {"names": ["search"]}, []),
        ("regex", {"pattern": "^a .*longer"}, [2, 3]),
        ("regex", {"pattern": "yes|no", "field": "answer", "keep": False}, [3, 4]),
        ("regex", {"pattern": "^1$", "field": "any"}, [4]),
        ("model", {"names": ["gpt-4*"]}, [1, 2]),
        ("date", {"after": "2026-03-02", "before": "2026-03-03T10:00:00"}, [2]),
        ("deduplication", {"similarity_threshold": 0.8}, [1, 2, 4]),
    ],
)
def test_a_filter_keeps_what_it_says(tmp_path, name, params, kept):
    place = database(tmp_path, *TALKS)
    filters = [{"type": name, "params": params}]
    reader = reader_of(place, filters=filters)
    if kept:
        ids = {task.metadata["source_id"] for task in reader.get_training_tasks()}
        assert ids == {f"id{number}" for number in kept}
    else:
        with pytest.raises(AjetError, match=f"4 recorded, 0 kept \\(dropped: {name} 4\\)"):
            reader.get_training_tasks()


def test_filters_apply_in_their_order_and_count_what_they_drop(tmp_path):
    place = database(tmp_path, *TALKS, talk(9, " ", "no question"))
    filters = [
        {"type": "date", "enabled": False, "params": {"after": "2030-01-01"}},
        {"type": "score", "params": {"min": 0.5}},
        {"type": "deduplication"},
        {"type": "regex", "params": {"pattern": "nothing"}},
    ]
    with pytest.raises(AjetError) as error:
        reader_of(place, filters=filters).get_training_tasks()
    dropped = "no question and answer 1, score 2, deduplication 1, regex 1"
    assert str(error.value) == f"{place}: no task: 5 recorded, 0 kept (dropped: {dropped})"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "scores"}, "filter 1: no filter 'scores'; did you mean 'score'?"),
        ({"type": "grammar"}, "filter 1: no filter 'grammar'; there are score"),
        ({"name": "score"}, "filter 1 has a key 'name'; a filter has type, params and enabled"),
        ({"type": "score", "params": {"minimum": 1}}, "no parameter 'minimum'; there are name"),
        ({"type": "regex"}, "filter 1 (regex): pattern is missing"),
        ({"type": "regex", "params": {"pattern": "("}}, "'(' is not a valid pattern: missing )"),
        ({"type": "date", "params": {"after": "May"}}, "'May' is not a date: write 2026-01-31"),
        ({"type": "score", "enabled": 1}, "enabled is true or false, params is a section"),
    ],
)
def test_a_mistake_in_a_filter_is_one_line(given, message):
    with pytest.raises(ValueError) as error:
        read_filter(1, given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_mistake_in_a_filter_is_found_when_the_config_is_read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  task_reader:\n    tracing:\n      filters: [{type: scores}]\n")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    key = "ajet.task_reader.tracing.filters"
    said = "filter 1: no filter 'scores'; did you mean 'score'?"
    assert str(error.value) == f"{path}:4: {key}: {said}"


# --- bad places ----------------------------------------------------------------------------------


def _not_sqlite(folder):
    (folder / "x.db").write_bytes(b"SQLite format 3\x00 and then nothing")
    return str(folder / "x.db")


def _other_tables(folder):
    with closing(sqlite3.connect(folder / "y.db")) as file, file:
        file.execute("CREATE TABLE users (id TEXT)")
    return str(folder / "y.db")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: "nowhere.db", "nowhere.db: no such file, and no http:// address"),
        (_not_sqlite, "cannot be read as SQLite"),
        (_other_tables, "there are the tables users; episodes, conversations, spans"),
        (lambda folder: spans_file(folder, {"a": 1}), "object 1 is not a span"),
        (lambda folder: spans_file(folder, batch()), "no task: 0 recorded, 0 kept"),
        (
            lambda folder: database(folder, ("a", {"no": "list"}, None, None, None, None)),
            "conversations, row 1: messages: a list is expected, got a dict",
        ),
        (
            lambda folder: database(folder, ("a", ["text"], None, None, None, None)),
            "conversations, row 1: messages is not a list of chat messages",
        ),
    ],
)
def test_a_place_without_conversations_is_one_line(tmp_path, make, message):
    with pytest.raises(AjetError) as error:
        reader_of(make(tmp_path)).get_training_tasks()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_source_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match="base_url is missing"):
        reader_of(None).get_training_tasks()


def test_agentjets_name_of_the_section_is_taken(tmp_path):
    place = database(tmp_path, talk(1, "q1"))
    path = tmp_path / "old.yaml"
    section = {"base_url": place, "filters": [{"type": "deduplication", "enabled": True}]}
    tree = {"task_reader": {"type": "tracing", "feedback_tracing": section}}
    tree |= {"model": {"path": "m"}, "rollout": {"user_workflow": "w.py->W"}}
    path.write_text(json.dumps({"ajet": tree}))
    config = load_config(path)
    assert not config.notices and queries(make_reader(config)) == ["q1"]
    key = "ajet.task_reader.feedback_tracing.base_url"
    assert load_config(path, [f"{key}=x.db"]).ajet.task_reader.tracing.base_url == "x.db"
