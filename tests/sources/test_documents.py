"""Documents are cut where they may be, and no word is lost."""

import sys

import pytest

from ajet.core.config.task_reader import DocumentReader
from ajet.core.errors import DataError
from ajet.core.text.install import install_command
from ajet.sources.generation.documents import read_chunks, split_text

TEXT = "One two. Three is 3.14! Four?\n\nFive\nsix. 七八。九十。"


def read(folder, place, **settings):
    section = DocumentReader(document_path=place, **settings)
    return read_chunks(section, [folder], folder / "cache")


@pytest.mark.parametrize(
    ("split_by", "size", "expected"),
    [
        ("sentence", 16, ["One two.", "Three is 3.14!", "Four?", "Five\nsix. 七八。", "九十。"]),
        ("paragraph", 40, ["One two. Three is 3.14! Four?", "Five\nsix. 七八。九十。"]),
        ("character", 20, ["One two. Three is 3.", "14! Four?\n\nFive\nsix.", "七八。九十。"]),
        ("sentence", 1000, [TEXT]),
        ("paragraph", 12, ["One two. Thr", "ee is 3.14!", "Four?", "Five\nsix. 七", "八。九十。"]),
    ],
)
def test_pieces_end_where_they_may(split_by, size, expected):
    chunks = split_text(TEXT, size, split_by)
    assert chunks == expected and all(len(chunk) <= size for chunk in chunks)


@pytest.mark.parametrize("split_by", ["sentence", "paragraph", "character"])
@pytest.mark.parametrize("size", [1, 5, 9, 50])
def test_nothing_but_white_space_is_lost(split_by, size):
    assert "".join("".join(split_text(TEXT, size, split_by)).split()) == "".join(TEXT.split())


def test_a_folder_is_read_by_names_and_the_rest_is_left_out(tmp_path):
    (tmp_path / "docs" / "b").mkdir(parents=True)
    for name, text in (("z.txt", "zed"), ("a.md", "ay"), ("b/c.rst", "see"), ("x.png", "no")):
        (tmp_path / "docs" / name).write_text(text)
    chunks = read(tmp_path, "docs")
    assert [(p.document, p.number, p.text) for p in chunks] == [
        ("a.md", 0, "ay"),
        ("c.rst", 0, "see"),
        ("z.txt", 0, "zed"),
    ]


def test_the_pieces_are_kept_until_the_words_or_the_cut_change(tmp_path):
    document = tmp_path / "a.txt"
    document.write_text("One. Two.")
    first = read(tmp_path, "a.txt")
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text().replace("One", "Kept"))
    assert read(tmp_path, "a.txt")[0].text == "Kept. Two."
    assert read(tmp_path, "a.txt", cache_enabled=False) == first
    assert len(read(tmp_path, "a.txt", chunk_size=5)) == 2
    document.write_text("Three.")
    assert read(tmp_path, "a.txt")[0].text == "Three."


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "none.txt: no such document or folder"),
        ("a.png", b"x", "this kind is not read; give one of .txt"),
        ("a.txt", b" \n ", "a.txt: there is no text in these documents"),
        ("a.txt", b"\xff\xfe\x00", "a.txt:1: not UTF-8"),
        ("a.pdf", b"x", f"PDF needs pypdf: {install_command('documents')}"),
        ("a.docx", b"x", f".docx needs python-docx: {install_command('documents')}"),
    ],
)
def test_a_document_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, name, content, message):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    monkeypatch.setitem(sys.modules, "docx", None)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        read(tmp_path, name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_folder_without_documents_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no document here; one of \*.txt"):
        read(tmp_path, "empty")
