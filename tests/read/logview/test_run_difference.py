"""Two starts beside each other: keys of the config, lines of the code."""

import pytest
from logview_fixtures import Client, write_run

from ajet.core.errors import CheckpointError
from ajet.core.record.run_folder import RunFolder
from ajet.read.logview.run_difference import Start, difference
from ajet.read.logview.server import LogviewServer


def keep(path, config, **code):
    (path / "code" / "agents").mkdir(parents=True)
    (path / "config.yaml").write_text(config)
    for name, text in code.items():
        (path / "code" / "agents" / f"{name}.py").write_text(text)


def test_two_starts_of_a_run_are_compared_by_key_and_by_line(tmp_path):
    folder = RunFolder(tmp_path)
    keep(folder.attempt(1), "a: {x: 1, y: 2}", same="1\n", prompt="be kind\nask\n", gone="x\n")
    keep(folder.attempt(2), "a: {x: 1, y: 3, z: 4}", same="1\n", prompt="be brief\nask\n")
    found = difference(Start(folder, 1), Start(folder, 2))
    assert found["config"] == [
        {"key": "a.y", "left": "2", "right": "3"},
        {"key": "a.z", "left": None, "right": "4"},
    ]
    gone, prompt = found["code"]
    assert (gone["name"], gone["in_left"], gone["in_right"]) == ("agents/gone.py", True, False)
    assert prompt["lines"] == ["@@ -1,2 +1,2 @@", "-be kind", "+be brief", " ask"]
    assert found["num_files"] == 3


def test_a_config_that_cannot_be_read_is_one_line(tmp_path):
    folder = RunFolder(tmp_path)
    keep(folder.attempt(1), "a: [")
    with pytest.raises(CheckpointError, match=r"0001/config.yaml cannot be read: "):
        difference(Start(folder, 1), Start(folder, 1))


def test_runs_without_starts_of_their_own_are_beside_each_other(tmp_path):
    paths = []
    for name, line in {"a": "one", "b": "two"}.items():
        folder = write_run(tmp_path / name)
        keep(folder.path, f"key: {line}", agent=f"{line}\n")
        paths.append(folder.path)
    with LogviewServer(paths, port=0) as server:
        client = Client(server)
        found = client.json("/api/difference?run=b")
        assert (found["left"], found["right"]) == ("a:", "b:")
        assert found["config"] == [{"key": "key", "left": "one", "right": "two"}]
        assert found["code"][0]["lines"][1:] == ["-one", "+two"]
        assert client.get("/api/difference?run=b&left=c:")[0].status == 404
        assert client.json("/api/difference?run=b&left=b:")["code"] == []
