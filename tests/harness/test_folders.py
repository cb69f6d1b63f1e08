"""What a program leaves is copied and written over without following its links."""

import os

import pytest

from ajet.harness.workflow import CUT, changes
from ajet.sandbox.files import copy_folder, remove_folder, write_files


def test_a_link_in_the_way_of_a_file_is_removed_and_not_followed(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "kept").write_text("kept")
    (folder / "tests").symlink_to(outside)
    (folder / "test_a.py").symlink_to(outside / "kept")
    write_files(folder, {"tests/kept": "new", "test_a.py": "new"}, "files")
    assert (outside / "kept").read_text() == "kept"
    assert (folder / "tests" / "kept").read_text() == (folder / "test_a.py").read_text() == "new"


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", ""])
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path, path):
    with pytest.raises(ValueError, match=r"files: .* is not a path inside the folder"):
        write_files(tmp_path, {path: ""}, "files")


def test_pipes_are_left_out_of_a_copy_and_of_the_changes(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    os.mkfifo(after / "pipe")
    (after / "a").write_text("text")
    copy_folder(after, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["a"]
    assert changes(before, after, 1000) == "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+text\n"


def test_changes_name_what_is_no_text_and_end_at_the_bound(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    (before / "gone").write_text("x\n")
    (after / "picture").write_bytes(b"\x00\x01")
    text = changes(before, after, 1000)
    assert text == "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n" + (
        "picture: added, not text or too large to show\n"
    )
    assert changes(before, after, 10) == text[:10] + CUT


def test_a_folder_is_removed_though_a_program_took_the_rights_on_it_away(tmp_path):
    inner = tmp_path / "folder" / "inner"
    inner.mkdir(parents=True)
    (inner / "a").write_text("")
    inner.chmod(0)
    remove_folder(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
