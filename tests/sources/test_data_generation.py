"""A model makes tasks of documents, once; what it gets wrong is asked again, counted and said."""

import json
import re

import pytest

from ajet.core.config import AjetConfig
from ajet.core.errors import AjetError
from ajet.core.task.reader import make_reader
from ajet.sources.generation.generator import parse_reply
from tests.cli.chat_server import ChatServer, message


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Alpha is the first letter.")
    (tmp_path / "b.txt").write_text("Beta is the second letter.")
    examples = [{"question": f"example {name}?", "answer": name} for name in ("x", "y")]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))


def reader_of(url, *, seed=0, documents=("a.txt", "b.txt"), query=None, unlike=None, **settings):
    section = {
        "document_reader": {"document_path": list(documents)},
        "query_reader": query or {},
        "base_url": url,
        "llm_model": "m",
        "task_num": 10,
        "deduplication_filter": unlike or {"enabled": False},
        **settings,
    }
    reader = {"type": "data_generation", "data_generation": section}
    return make_reader(AjetConfig.model_validate({"ajet": {"seed": seed, "task_reader": reader}}))


def written(body, count=5):
    """Five exercises whose words follow from the piece and the seed."""
    letter = re.search(r"Text:\n(\w+)", body["messages"][1]["content"])
    name = f"{letter.group(1) if letter else 'none'}-{body['seed']}"
    return [{"question": f"What is {name} no. {n}?", "answer": n} for n in range(count)]


def writes(body):
    return 200, message(f"Here you are:\n```json\n{json.dumps(written(body))}\n```\nAny [more]?")


EXAMPLES = {
    "type": "jsonl_dataset_file",
    "jsonl_dataset_file": {
        "training": {"file_path": "examples.jsonl"},
        "validation": {"file_path": "examples.jsonl"},
    },
}


def test_every_piece_is_asked_about_and_the_tasks_have_answers_and_sources():
    with ChatServer(writes) as server:
        tasks = reader_of(server.url).get_training_tasks()
    assert len(tasks) == 10 and len({task.task_id for task in tasks}) == 10
    assert [task.metadata["document"] for task in tasks] == ["a.txt"] * 5 + ["b.txt"] * 5
    assert tasks[3].main_query.startswith("What is Alpha-") and tasks[3].metadata["answer"] == "3"
    assert [body["max_tokens"] for body in server.requests] == [8192] * 2
    assert server.requests[0]["model"] == "m"


def test_the_next_run_reads_the_same_tasks_without_a_model(tmp_path):
    with ChatServer(writes) as server:
        first = reader_of(server.url).get_training_tasks()
    assert reader_of(server.url).get_training_tasks() == first
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"sampling_params": {"temperature": 0.1}},
        {"documents": ["b.txt"]},
        {"query": EXAMPLES},
        {"llm_model": "other"},
    ],
)
def test_other_settings_are_other_tasks(change):
    with ChatServer(writes) as server:
        reader_of(server.url).get_training_tasks()
        reader_of(server.url, **change).get_training_tasks()
    assert len(server.requests) > 2


def test_the_order_does_not_depend_on_which_call_ends_first(tmp_path):
    import time

    def slow_first(body):
        time.sleep(0.1 if "Alpha" in body["messages"][1]["content"] else 0)
        return writes(body)

    with ChatServer(writes) as server:
        first = reader_of(server.url, cache_dir="one").get_training_tasks()
    with ChatServer(slow_first) as server:
        second = reader_of(server.url, cache_dir="two").get_training_tasks()
    assert [task.main_query for task in second] == [task.main_query for task in first]


def test_examples_are_shown_and_no_task_is_like_them():
    def copies(body):
        parts = [{"question": "Example X?", "answer": "x"}, *written(body, 4)]
        return 200, message(json.dumps(parts))

    unlike = {"enabled": True, "params": {"similarity_threshold": 0.9}}
    with ChatServer(copies) as server:
        reader = reader_of(server.url, query=EXAMPLES, unlike=unlike, task_num=2)
        tasks = reader.get_training_tasks()
    asked = server.requests[0]["messages"][1]["content"]
    assert "- example x?" in asked and "- example y?" in asked
    assert not [task for task in tasks if task.main_query == "Example X?"]
    assert [t.main_query for t in reader.get_validation_tasks()] == ["example x?", "example y?"]


def test_a_malformed_reply_is_asked_for_again_with_another_seed():
    replies = ["I cannot.", '[{"question": 3}]']

    def stumbles(body):
        return (200, message(replies.pop())) if replies else writes(body)

    with ChatServer(stumbles) as server:
        tasks = reader_of(server.url, task_num=5).get_training_tasks()
    assert len(tasks) == 5
    assert len({body["seed"] for body in server.requests}) == 3
    assert len({json.dumps(body["messages"]) for body in server.requests}) == 1


def test_what_is_missing_is_asked_for_in_the_next_round_with_what_was_asked():
    with ChatServer(lambda body: (200, message(json.dumps(written(body, 3))))) as server:
        tasks = reader_of(server.url, task_num=5, documents=["a.txt"]).get_training_tasks()
    first, second = (body["messages"][1]["content"] for body in server.requests)
    assert len(tasks) == 5 and "asked already" not in first
    assert all(f"- {task.main_query}" in second for task in tasks[:3])


def test_fewer_tasks_than_asked_for_are_said_with_the_reasons(warnings):
    def always_the_same(body):
        return 200, message('[{"question": "What is Alpha?", "answer": "a letter"}]')

    unlike = {"enabled": True}
    with ChatServer(always_the_same) as server:
        tasks = reader_of(server.url, task_num=2, unlike=unlike).get_training_tasks()
    assert len(tasks) == 1
    assert warnings == ["data_generation: only 1 of 2 tasks (5 too much alike)"]


def test_a_model_that_is_not_there_is_one_line_and_nothing_is_kept(tmp_path):
    refused = {"error": {"message": "no such model"}}
    with ChatServer(lambda body: (404, refused)) as server, pytest.raises(AjetError) as error:
        reader_of(server.url).get_training_tasks()
    assert "no such model" in str(error.value) and "\n" not in str(error.value)
    assert not list((tmp_path / "generated_tasks").glob("tasks-*"))


def test_a_run_that_was_stopped_asks_only_for_what_is_missing():
    def fails_on_beta(body):
        is_beta = "Beta" in body["messages"][1]["content"]
        return (400, {"error": {"message": "busy"}}) if is_beta else writes(body)

    with ChatServer(fails_on_beta) as server:
        reader = reader_of(server.url, documents=["a.txt"], task_num=5)
        reader.get_training_tasks()
        before = len(server.requests)
        server.reply = writes
        reader_of(server.url, task_num=10).get_training_tasks()
    assert [("Beta" in b["messages"][1]["content"]) for b in server.requests[before:]] == [True]


@pytest.mark.parametrize(
    ("reply", "pairs"),
    [
        ('[{"question": " q ", "answer": 4}]', [("q", "4")]),
        ('{"tasks": [{"question": "q", "answer": "a"}]}', [("q", "a")]),
        ('see [1]: [{"question": "q", "answer": "a"}] [end', [("q", "a")]),
        ('[{"question": "q"}, {"question": "r", "answer": "a"}]', [("r", "a")]),
        ('[{"question": "", "answer": "a"}, {"question": "q", "answer": " "}]', []),
        ('[{"question": "q", "answer": "a"}', []),
        ("[" * 100_000, []),
        ("", []),
    ],
)
def test_pairs_are_found_whatever_is_written_around_them(reply, pairs):
    assert parse_reply(reply) == pairs
