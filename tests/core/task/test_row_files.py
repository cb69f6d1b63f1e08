"""Every format and place gives the same rows, under the reader's name and its older ones."""

import json

import datasets
import pandas
import pyarrow as pa
import pytest
from pyarrow import parquet

from ajet.core.config import load_config
from ajet.core.errors import AjetError
from ajet.core.task.arrow_rows import rows_of
from ajet.core.task.reader import make_reader
from ajet.core.task.row_files import read_rows, read_split

ROWS = [{"question": "q0", "answer": "a0"}, {"question": "q1", "answer": "a1"}]


def write_lines(rows, file):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_list(rows, file):
    file.write_text(json.dumps(rows, indent=1))


def write_wrapped(rows, file):
    file.write_text(json.dumps({"data": rows}, indent=1))


def write_nested(rows, file):
    file.write_text(json.dumps({"data": {str(n): row for n, row in enumerate(rows)}}))


def write_by_id(rows, file):
    file.write_text(json.dumps({f"id-{n}": row for n, row in enumerate(rows)}))


def write_viewed(rows, file, cut=()):
    """As the Hub's dataset viewer answers."""
    entries = [{"row_idx": n, "row": r, "truncated_cells": list(cut)} for n, r in enumerate(rows)]
    features = [{"feature_idx": 0, "name": "question"}]
    file.write_text(json.dumps({"features": features, "rows": entries, "partial": False}))


def write_pandas(orient):
    return lambda rows, file: pandas.DataFrame(rows).to_json(file, orient=orient)


def write_csv(rows, file):
    file.write_text("\n".join(",".join(row) for row in [rows[0], *(r.values() for r in rows)]))


def write_parquet(rows, file):
    parquet.write_table(pa.Table.from_pylist(rows), file)


def write_arrow(rows, file, make=pa.ipc.new_file):
    table = pa.Table.from_pylist(rows)
    with make(file, table.schema) as writer:
        writer.write_table(table)


def write_stream(rows, file):
    write_arrow(rows, file, pa.ipc.new_stream)


FORMATS = {
    "lines": (".jsonl", write_lines),
    "list": (".json", write_list),
    "wrapped": (".json", write_wrapped),
    "lines in .json": (".json", write_lines),
    "nested": (".json", write_nested),
    "by id": (".json", write_by_id),
    "viewed": (".json", write_viewed),
    **{f"pandas {o}": (".json", write_pandas(o)) for o in ("columns", "index", "split", "records")},
    "csv": (".csv", write_csv),
    "parquet": (".parquet", write_parquet),
    "arrow": (".arrow", write_arrow),
    "stream": (".arrow", write_stream),
}


def reader_of(folder, kind, *overrides, run="rollout: {user_workflow: w.py->W}"):
    (folder / "run.yaml").write_text(f"ajet: {{model: {{path: m}}, {run}}}\n")
    place = "ajet.task_reader"
    given = [f"{place}.type={kind}", *(f"{place}.{text}" for text in overrides)]
    return make_reader(load_config(folder / "run.yaml", given))


TYPES = {
    "dataset": ("dataset.training", "dataset.validation"),
    "jsonl_dataset_file": (
        "jsonl_dataset_file.training.file_path",
        "jsonl_dataset_file.validation.file_path",
    ),
    "huggingface_dat_repo": ("huggingface_dat_repo.dataset_path", None),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_under_each_name_of_the_reader(tmp_path, kind, name):
    suffix, write = FORMATS[name]
    write(ROWS, tmp_path / f"rows{suffix}")
    training, validation = TYPES[kind]
    places = [f"{key}=rows{suffix}" for key in (training, validation) if key]
    reader = reader_of(tmp_path, kind, *places)
    tasks = reader.get_training_tasks()
    assert [task.metadata for task in tasks] == ROWS
    assert [task.task_id for task in tasks] == ["train-0", "train-1"]
    held_out = [task.metadata for task in reader.get_validation_tasks()]
    assert held_out == (ROWS if validation else [])


def test_two_places_may_have_two_formats_and_a_folder_has_its_splits(tmp_path):
    (tmp_path / "d").mkdir()
    write_parquet(ROWS[:1], tmp_path / "d" / "train.parquet")
    write_lines(ROWS[1:], tmp_path / "d" / "test.jsonl")
    reader = reader_of(tmp_path, "dataset", "dataset.training=d")
    assert [t.main_query for t in reader.get_training_tasks()] == ["q0"]
    assert [t.task_id for t in reader.get_validation_tasks()] == ["test-0"]
    reader = reader_of(
        tmp_path, "dataset", "dataset.training=d/train.parquet", "dataset.validation=d/test.jsonl"
    )
    assert [t.main_query for t in reader.get_validation_tasks()] == ["q1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": ROWS, "test": ROWS}, "it may be a row, or hold rows in train or test"),
        ({"data": []}, "all.json: the train split is empty"),
        (3, "a int is not a list of rows"),
    ],
)
def test_a_json_file_that_may_be_two_things_is_refused(tmp_path, content, message):
    (tmp_path / "all.json").write_text(json.dumps(content))
    with pytest.raises(AjetError) as error:
        reader_of(tmp_path, "dataset", "dataset.training=all.json").get_training_tasks()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_answer_of_the_viewer_with_cut_cells_is_refused(tmp_path):
    write_viewed(ROWS, tmp_path / "rows.json", cut=["question"])
    with pytest.raises(AjetError, match="the dataset viewer cut question of row 0"):
        read_rows(tmp_path / "rows.json")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_half_a_character_is_refused(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"question": "\ud83d\ude00, \\ud83d"}))
    assert read_rows(tmp_path / name) == [{"question": "\N{GRINNING FACE}, \\ud83d"}]
    (tmp_path / name).write_text(json.dumps({"question": "a", "tags": [{"\ud83d": 1}]}))
    with pytest.raises(AjetError, match="1: a text has half of a character"):
        read_rows(tmp_path / name)


def test_a_json_file_may_be_one_row(tmp_path):
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    columns = {"columns": ["a"], "index": [0], "data": [[1, 2]]}
    for number, content in enumerate(
        [row, ROWS[0], {"title": "t", "tags": []}, {"a": {}}, columns]
    ):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(content, indent=1))
        assert read_rows(file) == [content]


# --- what `datasets` saves -----------------------------------------------------------------------


def test_what_save_to_disk_wrote_is_read_and_its_caches_are_not(tmp_path):
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(tmp_path / "one", num_shards=2)
    write_arrow([{"question": "cached"}], tmp_path / "one" / "cache-0123.arrow")
    one = reader_of(tmp_path, "dataset", "dataset.training=one")
    assert [task.metadata for task in one.get_training_tasks()] == ROWS
    splits = datasets.DatasetDict({"train": saved.select([1]), "dev": saved})
    splits.save_to_disk(tmp_path / "all")
    write_arrow([{"question": "cached"}], tmp_path / "all" / "train" / "cache-0123.arrow")
    both = reader_of(tmp_path, "dataset", "dataset.training=all", "dataset.validation_split=dev")
    assert [task.metadata for task in both.get_training_tasks()] == ROWS[1:]
    assert [task.metadata for task in both.get_validation_tasks()] == ROWS


def test_one_saved_dataset_is_the_training_split_alone(tmp_path, warnings):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    reader = reader_of(tmp_path, "huggingface_dat_repo", "huggingface_dat_repo.dataset_path=one")
    assert len(reader.get_training_tasks()) == 2 and reader.get_validation_tasks() == []
    assert "one saved Dataset, which is the training split alone" in warnings[0]
    with pytest.raises(AjetError, match="one: one saved Dataset has no split 'test'"):
        read_split("one", "test", [tmp_path])


def test_a_broken_saved_folder_is_one_line(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(AjetError, match=r"state\.json: not written by save_to_disk"):
        reader_of(tmp_path, "dataset", "dataset.training=one").get_training_tasks()
    (tmp_path / "bad.arrow").write_bytes(b"no")
    with pytest.raises(AjetError, match=r"bad\.arrow: not a readable Arrow file"):
        read_rows(tmp_path / "bad.arrow")


# --- what columns of structs add -----------------------------------------------------------------


def tool(name, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def chat(question, name, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


STRING = {"type": "string"}
OPTIONS = {"type": "object", "properties": {"unit": {"type": "string", "enum": ["C", None]}}}
CALLS = [
    {
        "messages": chat("Which time is it in UTC?", "now", {"zone": "UTC"}),
        "tools": [tool("now", {"zone": STRING}, ["zone"])],
    },
    {
        "messages": chat(
            "Rain in Oslo?", "weather", {"city": "Oslo", "days": [{"n": 2}, {"name": "Monday"}]}
        ),
        "tools": [
            tool("weather", {"city": STRING | {"description": "A city."}, "options": OPTIONS}, [])
        ],
    },
]
"""Two rows whose calls and schemas have other fields: structs, lists of structs, a real null."""


def without_own_nulls(messages):
    return [{k: v for k, v in message.items() if v is not None} for message in messages]


def test_fields_that_a_column_adds_to_calls_and_schemas_are_not_the_rows(tmp_path):
    write_parquet(CALLS, tmp_path / "a.parquet")
    write_arrow(CALLS, tmp_path / "a.arrow")
    datasets.Dataset.from_list(CALLS).save_to_disk(tmp_path / "saved")
    from_hub = datasets.Dataset.from_list(CALLS)
    read = [
        read_rows(tmp_path / "a.parquet"),
        read_rows(tmp_path / "a.arrow"),
        read_rows(next((tmp_path / "saved").glob("*.arrow"))),
        rows_of(from_hub, from_hub.features.arrow_schema),
    ]
    for rows in read:
        assert [row["tools"] for row in rows] == [row["tools"] for row in CALLS]
        for row, plain in zip(rows, CALLS, strict=True):
            messages = without_own_nulls(plain["messages"])
            assert without_own_nulls(row["messages"]) == messages


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".jsonl"])
def test_a_supervised_row_is_the_same_from_a_column_and_from_a_line(tmp_path, suffix):
    write = {".parquet": write_parquet, ".arrow": write_arrow, ".jsonl": write_lines}[suffix]
    write(CALLS, tmp_path / f"rows{suffix}")
    place = f"dataset.training=rows{suffix}"
    reader = reader_of(tmp_path, "dataset", place, run="kind: supervised")
    first, second = reader.get_training_tasks()
    [call] = first.init_messages[1]["tool_calls"]
    assert call["function"]["arguments"] == {"zone": "UTC"}
    assert first.metadata["tools"] == CALLS[0]["tools"]
    [call] = second.init_messages[1]["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Oslo", "days": [{"n": 2}, {"name": "Monday"}]}


def test_nulls_that_the_author_wrote_stay(tmp_path):
    arguments = {"zone": None}
    rows = [{"messages": chat("q", "now", arguments), "extra": {"a": None, "b": 1}}]
    write_lines(rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == rows
    # As JSON text in a column, and in a column that is no message, they stay too.
    text = [{"messages": chat("q", "now", json.dumps(arguments)), "extra": {"a": None, "b": 1}}]
    write_parquet(text, tmp_path / "rows.parquet")
    [row] = read_rows(tmp_path / "rows.parquet")
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"zone": null}'
    assert row["extra"] == {"a": None, "b": 1}


def test_maps_and_json_values_in_messages_are_objects(tmp_path):
    zones = pa.map_(pa.string(), pa.string())
    message = pa.struct([("role", pa.string()), ("arguments", zones), ("content", pa.string())])
    kind = pa.schema([("messages", pa.list_(message)), ("note", pa.json_())])
    row = {
        "messages": [{"role": "user", "arguments": [("zone", None)], "content": "q"}],
        "note": '{"a": null}',
    }
    table = pa.Table.from_pylist([row], schema=kind)
    assert rows_of(table.to_pylist(), table.schema) == [
        {
            "messages": [{"role": "user", "arguments": {"zone": None}, "content": "q"}],
            "note": {"a": None},
        }
    ]


@pytest.mark.parametrize(("kind", "digits"), [(pa.float32(), "0.1"), (pa.float16(), "0.1")])
def test_a_short_float_keeps_the_digits_that_were_written(kind, digits, tmp_path):
    schema = pa.schema([("answer", kind), ("list", pa.list_(kind))])
    table = pa.Table.from_pylist([{"answer": 0.1, "list": [0.1, None]}], schema=schema)
    parquet.write_table(table, tmp_path / "rows.parquet")
    [row] = read_rows(tmp_path / "rows.parquet")
    assert (str(row["answer"]), row["list"]) == (digits, [0.1, None])


def test_rows_numbered_by_pandas_are_rows(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(dict(enumerate(ROWS))))
    assert read_rows(tmp_path / "rows.json") == ROWS


def test_a_suffix_in_capitals_is_the_same_format(tmp_path):
    write_parquet(ROWS, tmp_path / "rows.PARQUET")
    assert read_rows(tmp_path / "rows.PARQUET") == ROWS


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["train-00000-of-00002.parquet"], "train-00001-of-00002.parquet is not here"),
        (["train-0.parquet", "train-1.jsonl.gz"], "train-1.jsonl.gz: compressed files"),
        (["train.jsonl.bz2"], "train.jsonl.bz2: compressed files"),
        (["train.pq"], "rename it to .parquet"),
        (["main/train-0.parquet", "main/test-0.parquet"], "main as the path"),
    ],
)
def test_a_split_that_is_only_partly_read_is_refused(names, problem, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_parquet(ROWS, tmp_path / name)
    with pytest.raises(AjetError, match=problem):
        read_split(str(tmp_path), "train", [tmp_path])
