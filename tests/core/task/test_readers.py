"""Rows become tasks from every kind of place, and a bad place or row is one line."""

import json
from pathlib import Path

import pytest

from ajet.core.config import load_config
from ajet.core.errors import AjetError
from ajet.core.task.reader import make_reader, task_from_row
from ajet.sources.prepare import DataRecipe, write_splits

ROWS = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(3)]


def reader_of(folder: Path, *overrides: str):
    path = folder / "run.yaml"
    path.write_text("ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}\n")
    return make_reader(load_config(path, [f"ajet.task_reader.{text}" for text in overrides]))


def hf(folder: Path, place: str, *more: str):
    return reader_of(
        folder, "type=huggingface_dat_repo", f"huggingface_dat_repo.dataset_path={place}", *more
    )


def jsonl(folder: Path, text: str, *more: str):
    (folder / "data.jsonl").write_text(text)
    place = "jsonl_dataset_file.training.file_path=data.jsonl"
    return reader_of(folder, "type=jsonl_dataset_file", place, *more)


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def error_of(reader, split: str = "training") -> str:
    with pytest.raises(AjetError) as error:
        getattr(reader, f"get_{split}_tasks")()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_gsm8k_row_becomes_a_task(tmp_path):
    task = jsonl(tmp_path, lines(ROWS)).get_training_tasks()[1]
    assert (task.task_id, task.main_query, task.env_type) == ("train-1", "q1", "no_env")
    assert task.metadata == ROWS[1] and task.init_messages == []


@pytest.mark.parametrize("name", ["question", "main_query", "query", "prompt", "problem"])
def test_the_question_may_have_any_usual_name(name):
    assert task_from_row({name: "q"}, 0, split="train", source="s").main_query == "q"


def test_the_row_may_bring_its_id_environment_and_messages():
    system = {"role": "system", "content": "be brief"}
    row = {"query": "q", "task_id": 7, "env_type": "shop", "init_messages": [system]}
    task = task_from_row(row, 0, split="train", source="s")
    assert (task.task_id, task.env_type, task.init_messages) == ("7", "shop", [system])


def test_a_chat_prompt_is_the_last_question_and_what_precedes_it():
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "q"}
    task = task_from_row({"prompt": [system, user]}, 0, split="train", source="s")
    assert (task.main_query, task.init_messages) == ("q", [system])


@pytest.mark.parametrize(
    "prompt", ["<video> What?", [{"role": "user", "content": "<video> What?"}]]
)
def test_a_question_about_a_video_is_refused_and_a_field_of_videos_alone_is_not(prompt):
    with pytest.raises(AjetError) as error:
        task_from_row({"prompt": prompt, "videos": ["a.mp4"]}, 2, split="train", source="d.parquet")
    assert str(error.value) == (
        "d.parquet: row 3: <video> stands for one of its videos, and only text and images can be "
        "trained"
    )
    row = {"prompt": "What?", "videos": ["a.mp4"]}
    task = task_from_row(row, 2, split="train", source="d.parquet")
    assert task.metadata["videos"] == ["a.mp4"]


def test_a_prompt_of_messages_comes_before_the_question_that_it_was_made_from():
    system = {"role": "system", "content": "Use a box."}
    prompt = [system, {"role": "user", "content": "2+2?"}]
    row = {"question": "2+2?", "prompt": prompt, "answer": "4"}
    task = task_from_row(row, 0, split="train", source="d.jsonl")
    assert [message["content"] for message in task.init_messages] == ["Use a box."]
    assert task.main_query == "2+2?"


def test_the_config_can_name_the_questions_field(tmp_path):
    rows = [{"question": "not this", "text": "this"}]
    reader = jsonl(tmp_path, lines(rows), "query_field=text")
    assert reader.get_training_tasks()[0].main_query == "this"


def test_a_field_that_is_blank_is_no_question_and_the_next_one_is(tmp_path):
    [task] = jsonl(tmp_path, lines([{"question": " ", "prompt": "q"}])).get_training_tasks()
    assert task.main_query == "q"


def test_columns_that_ajet_does_not_read_are_known(tmp_path):
    rows = [
        {"question": "q", "prompt": "p", "answer": "a", "level": 3, "none": None},
        {"question": "q", "source": "s", "system": "b"},
    ]
    reader = jsonl(tmp_path, lines(rows))
    reader.get_training_tasks()
    assert reader.unread_columns == {"prompt", "level", "source"}


def test_a_validation_file_is_optional(tmp_path):
    assert jsonl(tmp_path, lines(ROWS)).get_validation_tasks() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "data.jsonl: the train split is empty"),
        ('{"question": "q"}\n{"q": 1, "a": 2}\n', "data.jsonl: row 2 has none of the fields"),
        ('{"question": null}\n', "row 1: the field question is empty; it is the task's question"),
        (
            '{"prompt": [{"role": "user", "content": ""}]}\n',
            "row 1: prompt[0]: the user's message is empty",
        ),
        (
            '{"prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": "q"}], '
            '"init_messages": [{"role": "system", "content": "b"}]}',
            "row 1 has init_messages, and messages before the question in prompt; keep one",
        ),
        (
            '{"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}',
            "row 1: prompt is neither text nor chat messages that end with the user's",
        ),
        (
            '{"question": "q", "init_messages": "hi"}\n',
            "row 1: init_messages is not a list",
        ),
        ('{"question": "q", "init_messages": ["hi"]}\n', "row 1: init_messages is not a list"),
        ('{"question": "q", "init_messages": {"role": "user"}}\n', "row 1: init_messages is not"),
    ],
)
def test_bad_rows_are_told_by_their_number(tmp_path, text, message):
    assert message in error_of(jsonl(tmp_path, text))


def test_a_row_without_the_field_says_what_it_has(tmp_path):
    message = error_of(jsonl(tmp_path, '{"q": 1, "a": 2}\n', "query_field=question"))
    assert "it has q, a. Name the question's field in ajet.task_reader.query_field" in message


def test_rows_of_which_none_has_a_question_are_for_a_workflow_of_ones_own(tmp_path):
    tasks = jsonl(tmp_path, lines([{"title": "a"}, {"title": "b"}])).get_training_tasks()
    assert [task.main_query for task in tasks] == ["Empty", "Empty"]
    assert [task.metadata["title"] for task in tasks] == ["a", "b"]


def test_the_metadata_of_a_row_is_the_tasks_metadata(tmp_path):
    row = {"main_query": "q", "env_type": "e", "metadata": {"answer": "4", "main_query": "no"}}
    [task] = jsonl(tmp_path, lines([row])).get_training_tasks()
    assert (task.metadata["answer"], task.metadata["main_query"]) == ("4", "q")


def test_each_made_up_task_has_a_number_of_its_own(tmp_path):
    reader = reader_of(tmp_path, "type=random_dummy", "random_dummy.num_training=1200")
    numbers = [task.metadata["random_number"] for task in reader.get_training_tasks()]
    assert len(set(numbers)) == 1200
    assert numbers != sorted(numbers)
    again = reader_of(tmp_path, "type=random_dummy", "random_dummy.num_training=1200")
    assert numbers == [task.metadata["random_number"] for task in again.get_training_tasks()]


def test_a_missing_folder_is_named(tmp_path):
    assert "dataset_path is missing" in error_of(reader_of(tmp_path, "type=huggingface_dat_repo"))
    assert "./no: no such data folder or file" in error_of(hf(tmp_path, "./no"))


LAYOUTS = {
    "flat": ["train.jsonl", "test.jsonl"],
    "shards": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test.jsonl"],
    "data folder": ["data/train-00000.jsonl", "data/test-00000.jsonl"],
    "split folders": ["train/part-0.jsonl", "train/part-1.jsonl", "test/part-0.jsonl"],
    "name/config": ["main/train.jsonl", "main/test.jsonl"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_local_folder_is_read_in_its_usual_layouts(tmp_path, layout):
    place = tmp_path / "gsm8k"
    for index, name in enumerate(LAYOUTS[layout]):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(lines([{"question": f"{name} {index}"}]))
    reader = hf(tmp_path, "gsm8k/main" if layout == "name/config" else "gsm8k")
    names = [name for name in LAYOUTS[layout] if "train" in name]
    tasks = reader.get_training_tasks()
    assert [task.main_query.split()[0] for task in tasks] == names
    assert len(reader.get_validation_tasks()) == 1


def test_one_file_or_one_json_list_is_a_data_set(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps(ROWS))
    reader = hf(tmp_path, "all.json", "huggingface_dat_repo.validation_split=null")
    assert len(reader.get_training_tasks()) == 3 and reader.get_validation_tasks() == []


LATIN = '{"question": "q"}\n{"question": "Stra\xdfe"}\n'.encode("latin-1")


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path):
    (tmp_path / "d").mkdir()
    for name in ("train.jsonl", "test.json"):
        (tmp_path / "d" / name).write_bytes(LATIN)
    for split, name in (("training", "train.jsonl"), ("validation", "test.json")):
        message = error_of(hf(tmp_path, "d"), split)
        assert message.endswith(f"d/{name}:2: not UTF-8; save the file in UTF-8")


def test_text_may_hold_any_character_and_begin_with_a_byte_order_mark(tmp_path):
    question = "one\u2028line, \x85 too"
    row = json.dumps({"question": question}, ensure_ascii=False)
    (tmp_path / "data.jsonl").write_bytes(f"\ufeff{row}\r\n".encode())
    place = "jsonl_dataset_file.training.file_path=data.jsonl"
    (task,) = reader_of(tmp_path, "type=jsonl_dataset_file", place).get_training_tasks()
    assert task.main_query == question


def test_a_json_list_of_other_things_is_told_by_its_row(tmp_path):
    (tmp_path / "all.json").write_text('[{"question": "q"}, 1]')
    assert "all.json: row 2 is a int, not an object" in error_of(hf(tmp_path, "all.json"))


CSV_TEXT = '\ufeffquestion,team\r\n"Twice, ""again"",\nhelp",billing\r\n\r\nWhere is it?,\r\n'
"""A cell with a comma, quotes and a line feed; an empty line; an empty cell."""


@pytest.mark.parametrize("place", ["d", "d/train.csv"])
def test_csv_is_read_as_spreadsheets_write_it(tmp_path, place):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.csv").write_text(CSV_TEXT, newline="")
    by_file = f"jsonl_dataset_file.training.file_path={tmp_path}/d/train.csv"
    for reader in hf(tmp_path, place), reader_of(tmp_path, "type=jsonl_dataset_file", by_file):
        first, second = reader.get_training_tasks()
        assert (first.main_query, first.metadata["team"]) == ('Twice, "again",\nhelp', "billing")
        assert (second.main_query, second.metadata["team"]) == ("Where is it?", None)
    assert "d/no.csv: no such data folder or file" in error_of(hf(tmp_path, "d/no.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question;team\na;b\n", ":1: the header 'question;team' has no comma; save the file with"),
        ("question,question\na,b\n", ":1: the header has 'question' twice; give each column"),
        ('question,team\n"a,b\n', ":2: not valid CSV: unexpected end of data"),
        ("", ": the train split is empty"),
    ],
)
def test_a_csv_that_is_none_is_told_by_its_line(tmp_path, text, message):
    (tmp_path / "tasks.csv").write_text(text)
    by_file = f"jsonl_dataset_file.training.file_path={tmp_path}/tasks.csv"
    assert f"tasks.csv{message}" in error_of(
        reader_of(tmp_path, "type=jsonl_dataset_file", by_file)
    )


def test_one_split_in_two_formats_is_refused_and_not_read_twice(tmp_path):
    recipe = DataRecipe("arithmetic", sizes={"train": 2, "test": 2})
    write_splits(recipe, tmp_path / "d", "jsonl")
    write_splits(recipe, tmp_path / "e", "parquet")
    (tmp_path / "e" / "train.parquet").rename(tmp_path / "d" / "train.parquet")
    reader = hf(tmp_path, "d")
    message = error_of(reader)
    assert "d: train.jsonl and train.parquet are both the split 'train'" in message
    assert len(reader.get_validation_tasks()) == 2


@pytest.mark.parametrize("there", ["train.parquet", "test-00000-of-00002.jsonl", "train/a.jsonl"])
def test_prepare_data_writes_no_split_beside_another_file_of_it(tmp_path, there):
    recipe = DataRecipe("arithmetic", sizes={"train": 2, "test": 2})
    write_splits(recipe, tmp_path / "d", "jsonl")
    write_splits(recipe, tmp_path / "d", "jsonl", overwrite=True)  # its own files
    (tmp_path / "d" / there).parent.mkdir(exist_ok=True)
    (tmp_path / "d" / there).write_text("")
    with pytest.raises(AjetError) as error:
        write_splits(recipe, tmp_path / "d", "jsonl")
    split = there[:5].rstrip("-/.")
    assert f"d/{there}: --out {tmp_path / 'd'} already has a {split} split" in str(error.value)


def test_prepared_rows_must_hold_text(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(lines([{"question": "q", "answer": 3}]))
    with pytest.raises(AjetError, match="train row 1: 'question' and 'answer' must be text"):
        DataRecipe("gsm8k", source=tmp_path).rows("train")


def test_a_missing_split_lists_those_there(tmp_path):
    write_splits(DataRecipe("arithmetic", sizes={"train": 2, "test": 2}), tmp_path / "d", "jsonl")
    reader = hf(tmp_path, "d", "huggingface_dat_repo.validation_split=dev")
    assert error_of(reader, "validation").endswith("d: no split 'dev'; there are test, train")
    (tmp_path / "bare").mkdir()
    assert "no data file here" in error_of(hf(tmp_path, "bare"))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_prepared_data_is_read(tmp_path, form):
    columns = {"agent_name": "math_agent", "agent_cfg_path": "a.yaml"}
    recipe = DataRecipe("arithmetic", sizes={"train": 40, "test": 9}, columns=columns)
    counts = write_splits(recipe, tmp_path / "d", form)
    assert [(path.name, count) for path, count in counts.items()] == [
        (f"train.{form}", 40),
        (f"test.{form}", 9),
    ]
    tasks = hf(tmp_path, "d").get_training_tasks()
    assert len(tasks) == 40 and tasks[0].task_id == "arithmetic-train-0"
    assert "####" in tasks[0].metadata["answer"]
    assert tasks[0].metadata["agent_name"] == "math_agent"
    held_out = {task.main_query for task in hf(tmp_path, "d").get_validation_tasks()}
    assert not held_out & {task.main_query for task in tasks}


def test_math_answers_are_the_boxes_of_their_solutions(tmp_path):
    for split in ("train", "test"):
        row = {"problem": "p", "solution": r"so $\boxed{\frac{1}{2}}$.", "level": "1"}
        (tmp_path / f"{split}.jsonl").write_text(lines([row]))
    rows = DataRecipe("math-lighteval", source=tmp_path).rows("train")
    assert rows[0]["question"] == "p" and rows[0]["answer"] == r"\frac{1}{2}"


def test_a_broken_parquet_file_is_one_line(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.parquet").write_bytes(b"not parquet")
    assert "train.parquet: not a readable Parquet file" in error_of(hf(tmp_path, "d"))


def test_an_unreachable_hub_says_how_to_go_on(tmp_path, monkeypatch):
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = error_of(hf(tmp_path, "no-such-owner/no-such-data"))
    assert "neither a local folder nor reachable on the Hub" in message
    assert "ajet data prepare NAME --from FILES --out DIR" in message


def test_random_dummy_is_the_seeds(tmp_path):
    first, again = (reader_of(tmp_path, "type=random_dummy") for _ in range(2))
    assert first.get_training_tasks() == again.get_training_tasks()
    assert len(first.get_training_tasks()) == 32 and len(first.get_validation_tasks()) == 8


def test_a_users_own_reader_is_made_with_the_config(tmp_path):
    (tmp_path / "my_reader.py").write_text(
        "from ajet.core.task.reader import BaseTaskReader\n"
        "from ajet import Task\n"
        "class MyReader(BaseTaskReader):\n"
        "    def get_training_tasks(self):\n"
        "        return [Task('a', self.config.ajet.model.path)]\n"
    )
    reader = reader_of(tmp_path, "type=my_reader.py->MyReader")
    assert [task.main_query for task in reader.get_training_tasks()] == ["m"]
