"""A Hub that takes no connection costs no wait, and what the cache has of it is still read."""

import shutil
import socket
import time
from importlib import import_module
from pathlib import Path

import pytest
from huggingface_hub import constants

from ajet.core.errors import DataError
from ajet.core.task.hub import read_hub

ADDRESS = "http://hub.invalid"  # a name that never resolves


@pytest.fixture(scope="module")
def datasets():
    """The package, imported where its tests run and not wherever this file is collected."""
    import_module("datasets.config")
    return import_module("datasets")


@pytest.fixture
def unreachable(monkeypatch, tmp_path, datasets) -> Path:
    """The empty cache of a machine that does not reach the Hub."""
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", ADDRESS)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", ADDRESS)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_a_data_set_that_is_not_cached_is_one_line_without_a_retry(
    unreachable, monkeypatch, datasets
):
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(DataError, match="neither a local folder nor reachable on the Hub"):
        read_hub("owner/rows", "train")
    assert waits == []
    assert not (constants.HF_HUB_OFFLINE or datasets.config.HF_HUB_OFFLINE)  # put back


def test_a_cached_data_set_is_read(unreachable, tmp_path, datasets):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"question": "q"}\n')
    datasets.load_dataset(str(folder), split="train", cache_dir=str(unreachable))
    shutil.move(unreachable / "rows", unreachable / "owner___rows")
    assert read_hub("owner/rows", "train") == [{"question": "q"}]


def test_behind_a_proxy_the_request_itself_is_made(unreachable, monkeypatch, datasets):
    was_offline = []

    def load_dataset(*_, **__):
        was_offline.append(datasets.config.HF_HUB_OFFLINE)
        return datasets.Dataset.from_list([{"question": "q"}])

    monkeypatch.setenv("https_proxy", "http://proxy.invalid:1")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_hub("owner/rows", "train") == [{"question": "q"}]
    assert was_offline == [False]


def test_offline_mode_opens_no_connection(unreachable, monkeypatch, datasets):
    connected = []
    monkeypatch.setattr(socket, "create_connection", lambda *place, **_: connected.append(place))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="reachable on the Hub"):
        read_hub("owner/rows", "train")
    assert connected == []
