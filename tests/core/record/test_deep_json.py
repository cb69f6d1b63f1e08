"""A file of a run folder that nests a hundred thousand lists, or that never ends, is one line, or
is left out."""

import json
import os

import pytest

from ajet.core.config.saved import saved_config
from ajet.core.errors import AjetError, CheckpointError
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.summary import RunSummary
from ajet.core.record.warning_log import warning_rows
from ajet.core.run.attempt_record import earlier_identity, read_attempts

DEEP = "[" * 100_000


@pytest.mark.parametrize("read", [RunOrigin.read, RunSummary.read])
def test_a_file_that_nests_too_deeply_is_one_line(tmp_path, read):
    file = tmp_path / "file.json"
    file.write_text(DEEP)
    with pytest.raises(CheckpointError, match=r"file\.json cannot be read: .*recursion") as caught:
        read(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["yaml", "project_dir", "current_folder"])
def test_a_path_that_is_no_text_is_one_line(tmp_path, name):
    origin = {"yaml": None, "project_dir": None, "current_folder": ".", "begun": "2026-01-01"}
    file = tmp_path / "origin.json"
    file.write_text(json.dumps(origin | {"stop_token_ids": [], name: [[1]]}))
    with pytest.raises(CheckpointError, match=r"origin\.json cannot be read: .* not list"):
        RunOrigin.read(file)


def test_a_config_that_nests_too_deeply_is_one_line(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config_yaml.write_text(DEEP)
    with pytest.raises(CheckpointError, match=r"config\.yaml cannot be read") as caught:
        earlier_identity(folder)
    assert "\n" not in str(caught.value)


def endless_link(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [endless_link, os.mkfifo])
def test_a_file_that_never_ends_is_not_read(tmp_path, make):
    folder = RunFolder(tmp_path)
    for file in (
        folder.origin_json,
        folder.summary_json,
        folder.config_yaml,
        folder.warnings_jsonl,
        folder.attempts / "0001" / "attempt.json",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        make(file)
    for read in (
        lambda: RunOrigin.read(folder.origin_json),
        lambda: RunSummary.read(folder.summary_json),
        lambda: saved_config(folder.config_yaml, yaml_path=tmp_path / "r.yaml", project_dir=None),
    ):
        with pytest.raises(AjetError):
            read()
    assert (earlier_identity(folder), read_attempts(folder)) == (None, [])
    assert warning_rows(folder.warnings_jsonl) == []
