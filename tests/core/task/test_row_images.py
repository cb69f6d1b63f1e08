"""Images of rows, in the forms of the data sets of verl, TRL, ROLL and others, become parts of the
messages."""

import base64
import io
import json

import pytest
from PIL import Image

from ajet.agents.single_turn import first_messages
from ajet.core.config import load_config
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.task.chat_rows import chat_tasks
from ajet.core.task.preference_rows import preference_tasks
from ajet.core.task.reader import make_reader, task_from_row
from ajet.core.task.task import Task


def png(color):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(file, "PNG", compress_level=1)
    return file.getvalue()


def url(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def shown(data):
    return {"type": "image_url", "image_url": {"url": url(data)}}


def text(value):
    return {"type": "text", "text": value}


def user(content):
    return {"role": "user", "content": content}


RED, BLUE = png("red"), png("blue")
REPLY = {"role": "assistant", "content": "red"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "blue.png").write_bytes(BLUE)
    return tmp_path


def task_of(row, folder=None):
    return task_from_row(row, 0, split="train", source="d.parquet", folder=folder)


def error_of(row, folder=None):
    with pytest.raises(DataError) as error:
        task_of(row, folder)
    assert "\n" not in str(error.value)
    return error.value


MARKED = "<image>What? <image>"
PARTS = [shown(RED), text("What? "), shown(BLUE)]
FORMS = {
    "verl, with bytes": (
        {"prompt": [user(MARKED)], "images": [{"bytes": RED, "path": None}, {"bytes": BLUE}]},
        PARTS,
    ),
    "verl, with paths": (
        {"prompt": [user(MARKED)], "images": [{"image": "red.png"}, "pictures/blue.png"]},
        PARTS,
    ),
    "a question with marks": ({"question": MARKED, "images": [RED, BLUE]}, PARTS),
    "TRL, with places": (
        {
            "prompt": [user([{"type": "image"}, text("What? "), {"type": "image", "text": None}])],
            "images": [{"path": "red.png", "bytes": None}, {"path": "-", "bytes": BLUE}],
        },
        PARTS,
    ),
    "TRL, without marks": (
        {"prompt": [user("What?")], "images": [RED, BLUE]},
        [shown(RED), shown(BLUE), text("What?")],
    ),
    "TRL and ROLL, one image": (
        {"problem": "What?", "image": Image.open(io.BytesIO(RED)), "solution": "red"},
        [shown(RED), text("What?")],
    ),
    "base64": (
        {"prompt": "<image>What?", "images": [base64.b64encode(RED).decode()]},
        [shown(RED), text("What?")],
    ),
    "base64 with the fields of bytes": (
        {"prompt": "<image>What?", "images": [{"bytes": base64.b64encode(RED).decode()}]},
        [shown(RED), text("What?")],
    ),
    "a cell of CSV": (
        {"question": "What?", "images": '["red.png"]'},
        [shown(RED), text("What?")],
    ),
    "transformers": (
        {"prompt": [user([{"type": "image", "image": "pictures/blue.png"}, text("What?")])]},
        [shown(BLUE), text("What?")],
    ),
    "OpenAI": ({"prompt": [user([text("What?"), shown(RED)])]}, [text("What?"), shown(RED)]),
    "Anthropic": (
        {
            "prompt": [
                user(
                    [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": base64.b64encode(RED).decode(),
                            },
                        }
                    ]
                )
            ]
        },
        [shown(RED)],
    ),
}


@pytest.mark.parametrize(("row", "parts"), FORMS.values(), ids=FORMS)
def test_each_form_is_the_same_parts(row, parts, folder):
    task = task_of(row, folder)
    assert task.query_parts == parts
    assert task.main_query == "".join(part.get("text", "<image>") for part in parts)
    assert first_messages(task, None) == [user(parts)]


def test_images_of_earlier_messages_come_first():
    row = {
        "prompt": [user("<image>Red?"), REPLY, user("And<image>?")],
        "system": "See.",
        "images": [RED, BLUE],
    }
    task = task_of(row)
    assert task.init_messages == [
        {"role": "system", "content": "See."},
        user([shown(RED), text("Red?")]),
        REPLY,
    ]
    assert task.query_content == [text("And"), shown(BLUE), text("?")]
    assert task.main_query == "And<image>?"


def test_the_metadata_has_the_messages_and_no_raw_images():
    prompt = [user("<image>Red?"), REPLY, user([{"type": "image", "image": BLUE}, text("?")])]
    asked = [user([shown(RED), text("Red?")]), REPLY, user([shown(BLUE), text("?")])]
    row = {"prompt": prompt, "images": [RED], "answer": "a", "system": "See."}
    assert task_of(row).metadata == {"prompt": asked, "answer": "a", "system": "See."}
    row = {"question": "What?", "images": [RED], "answer": "a"}
    assert task_of(row).metadata == {"question": "What?", "answer": "a"}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Is <image> a tag?"},
        {"question": "Is <image> a tag?", "images": []},
        {"question": "Is <image> a tag?", "images": None, "image": ""},
        {"question": "Is <image> a tag?", "image": "python:3.12"},
        {"question": [user("Is <image> a tag?")], "images": [None]},
    ],
)
def test_a_mark_without_images_is_text(row):
    assert task_of(row) == Task("train-0", "Is <image> a tag?", metadata=row)


def test_with_places_the_marks_are_text():
    row = {"prompt": [user([{"type": "image"}, text("<image>?")])], "images": [RED]}
    assert task_of(row).query_parts == [shown(RED), text("<image>?")]


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        ({"prompt": MARKED, "images": [RED]}, (1, 2)),
        ({"prompt": [user([{"type": "image"}, text("?")])]}, (0, 1)),
        ({"prompt": [user([shown(RED), text("?")])], "images": [RED]}, (1, 0)),
    ],
)
def test_as_many_places_as_images(row, numbers):
    error = error_of(row)
    assert str(error) == (
        f"d.parquet: row 1: images has {numbers[0]} images, and the messages have {numbers[1]} "
        "places for them (<image>, or a part of type image)"
    )
    assert error.code == Code.ROW_FORM


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("none.png", "an image is refused: {}/none.png: No such file or directory"),
        (b"no image", "an image is refused: it is not one of PNG, JPEG, WEBP, GIF, BMP, or "),
        ("https://a.example/a.png", "an image is refused: addresses (https:) are not fetched"),
        ({"size": 3}, "an image is refused: it has neither data nor a place"),
    ],
)
def test_a_bad_image_is_named_with_its_row(image, message, folder):
    error = error_of({"prompt": "<image>?", "images": [image]}, folder)
    assert str(error).startswith(f"d.parquet: row 1: {message.format(folder)}")
    assert error.code == Code.IMAGE


def test_two_columns_of_images_are_refused():
    message = str(error_of({"prompt": "?", "images": [RED], "image": BLUE}))
    assert message == "d.parquet: row 1 has images and image; keep one of them"


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [user("<image>Color?"), REPLY], "images": [RED]},
        {"conversations": [{"from": "human", "value": "<image>Color?"}, REPLY], "images": [RED]},
        {"prompt": "<image>Color?", "completion": "red", "images": [RED]},
        {"instruction": "<image>Color?", "output": "red", "image": RED},
        {"messages": [user("Color?"), REPLY], "image": RED},
    ],
)
def test_supervised_rows_have_images_in_each_shape(row):
    [task] = chat_tasks([row], split="train", source="d.jsonl", train_on="all")
    assert task.init_messages == [user([shown(RED), text("Color?")]), REPLY]
    assert task.main_query == "<image>Color?"


def test_an_image_in_a_reply_is_context_and_never_trained():
    drawn = {"role": "assistant", "content": [{"type": "image"}, text("Here.")]}
    row = {"messages": [user("Draw."), drawn, user("Color?"), REPLY], "images": [RED]}
    with pytest.raises(DataError, match="messages\\[1\\], an assistant's, shows an image"):
        chat_tasks([row], split="train", source="d.jsonl", train_on="all")
    [task] = chat_tasks([row], split="train", source="d.jsonl", train_on="last")
    assert task.init_messages[1]["content"] == [shown(RED), text("Here.")]


def test_both_replies_of_a_pair_see_the_images():
    row = {"prompt": "<image>Color?", "chosen": "red", "rejected": "blue", "images": [RED]}
    [task] = preference_tasks([row], split="train", source="d.jsonl", loss="dpo")
    prompt = user([shown(RED), text("Color?")])
    assert task.init_messages[0] == task.metadata["rejected"][0] == prompt


def lines(row):
    return (json.dumps(row) + "\n").encode()


def parquet(row):
    pyarrow = pytest.importorskip("pyarrow")
    parquet_files = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet_files.write_table(pyarrow.Table.from_pylist([row]), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.jsonl", lambda: lines({"question": "<image>?", "images": ["red.png"]})),
        ("train.json", lambda: lines({"question": "?", "image": "red.png"})),
        ("train.csv", lambda: b"question,image\n?,red.png\n"),
        (
            "train.parquet",
            lambda: parquet({"question": "<image>?", "images": [{"bytes": RED, "path": "r.png"}]}),
        ),
        (
            "train.parquet",
            lambda: parquet(
                {
                    "prompt": [user([{"type": "image", "text": None}, text("?")])],
                    "images": [{"bytes": None, "path": "red.png"}],
                }
            ),
        ),
    ],
)
@pytest.mark.parametrize("place", ["", "train/"])
def test_files_are_below_the_folder_of_the_data(name, content, place, tmp_path):
    data = tmp_path / "data" / place
    data.mkdir(parents=True)
    (data / "red.png").write_bytes(RED)
    (data / name).write_bytes(content())
    (tmp_path / "x.yaml").write_text("ajet: {model: {path: m}, task_reader: {type: dataset}}")
    overrides = [f"ajet.task_reader.dataset.training={tmp_path / 'data'}"]
    [task] = make_reader(load_config(tmp_path / "x.yaml", overrides)).get_training_tasks()
    assert task.query_parts == [shown(RED), text("?")]
